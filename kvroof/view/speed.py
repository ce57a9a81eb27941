"""What `estimate` and `compare` answer, as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

from rich.console import RenderableType

from kvroof.ground.units import format_bytes, format_count, format_decimal, format_time
from kvroof.roofline.efficiency import GENERIC
from kvroof.serving.comparison import Comparison
from kvroof.serving.latency import Calibration, Estimate
from kvroof.serving.op_times import OpTime
from kvroof.spec.hardware import Hardware
from kvroof.view.memory import ledger_table
from kvroof.view.tables import Table, notes, verdict
from kvroof.view.words import CHANGES, fit_words, several

if TYPE_CHECKING:
    from kvroof.search.sensitivity import Sensitivity

BOUNDS = {
    "compute": "compute",
    "hbm": "HBM bandwidth",
    "network": "the link",
    "overhead": "launch overhead",
    "host": "host memory",
}
Evidence: TypeAlias = Literal["calibrated", "typical", "bounds"]
"""What times are: of measured kernels, of a typical machine's kernels, or what no schedule beats."""


def estimate_view(answer: Estimate, machine: Hardware, explain: bool) -> Iterator[RenderableType]:
    """Yield fit, longest context, times, rates, bounds, and the operations behind them."""
    ledger = answer.memory
    asked = f"{answer.batch:,} x ({answer.isl:,} in + {answer.osl:,} out) of {answer.model}"
    supposed = "" if answer.fits else "; the times below suppose that it did"
    yield verdict(answer.fits, fit_words(ledger, asked, several(answer.devices, machine.name)) + supposed)
    yield speed_table(answer)
    yield rates_table(answer)
    if explain:
        yield ledger_table(ledger, machine)
    for title, ops in phases(answer).items():
        yield op_table(title, ops, explain)
        if explain:
            yield cost_table(title, ops)
    if explain:
        yield notes("Machine", _machine(machine))
    yield notes("Assumptions", answer.assumptions)


def speed_table(answer: Estimate) -> Table:
    """Return the times of both phases, what bounds them and how far they may be off."""
    return Table(
        f"Speed ({_kind(answer)})",
        ("", "prefill", "decode"),
        [
            ("time", f"TTFT {format_time(answer.ttft_s)}", f"TPOT {format_time(answer.tpot_s)}"),
            ("bound by", BOUNDS[answer.bound.prefill], BOUNDS[answer.bound.decode]),
            ("MFU", f"{answer.mfu.prefill:.1%}", f"{answer.mfu.decode:.1%}"),
            ("MBU", f"{answer.mbu.prefill:.1%}", f"{answer.mbu.decode:.1%}"),
            *_sigma(answer),
            (
                "lower bound",
                format_time(answer.lower_bound_s.prefill),
                format_time(answer.lower_bound_s.decode),
            ),
        ],
    )


def rates_table(answer: Estimate) -> Table:
    """Return tokens per second, and how long and how many sequences the memory holds."""
    ledger = answer.memory
    return Table(
        "Rates",
        ("", "uncalibrated" if answer.calibration is None else "expected"),
        [
            ("one user reads", f"{1 / answer.tpot_s:,.1f} tokens/s"),
            (
                "whole batch, end to end",
                f"{answer.tokens_per_s:,.0f} output tokens/s in {format_time(answer.e2e_s)}",
            ),
            ("per device", f"{answer.tokens_per_s_per_device:,.0f} tokens/s"),
            (f"longest context at batch {answer.batch:,}", f"{ledger.max_tokens:,} tokens"),
            (f"most sequences of {ledger.tokens:,} tokens", f"{ledger.max_seqs:,}"),
            ("KV cache in all", f"{ledger.kv_capacity_tokens:,} tokens"),
        ],
    )


def phases(answer: Estimate) -> dict[str, tuple[OpTime, ...]]:
    """Return the operations of prefill and of decode by what heads them."""
    return {
        "Prefill by operation": answer.prefill_ops,
        "Decode by operation, mean step": answer.decode_ops,
    }


def evidence_of(calibration: Calibration | None) -> Evidence:
    """Return what times made with a calibration are."""
    if calibration is None:
        return "bounds"
    return "typical" if calibration.name == GENERIC else "calibrated"


def _kind(answer: Estimate) -> str:
    """Return what the times are: a calibration's, or operations in series at the peaks."""
    if answer.calibration is None:
        return "uncalibrated bound"
    error = answer.calibration.held_out_mape
    said = f", kernels off by {error:.0%} on points not fitted" if error is not None else ""
    if evidence_of(answer.calibration) == "typical":
        return f"of a typical machine, not of this one{said}"
    return f"calibrated: {answer.calibration.name}{said}"


def _sigma(answer: Estimate) -> list[tuple[str, str, str]]:
    """Return the row of what holds two in three measured times, where there is a calibration to give it."""
    if answer.interval is None:
        return []
    first, later = answer.interval.ttft_s, answer.interval.tpot_s
    return [("one sigma, 2 in 3", _range(*first), _range(*later))]


def _range(low: float, high: float) -> str:
    return f"{format_time(low)} to {format_time(high)}"


def sensitivity_table(slopes: Sensitivity) -> Table:
    """Return by how many percent each time changes when one number rises by a percent."""
    rows = [
        (words, f"{slopes.ttft[name]:+.3f}", f"{slopes.tpot[name]:+.3f}")
        for name, words in CHANGES.items()
        if slopes.ttft[name] or slopes.tpot[name]
    ]
    return Table("1 % more of it changes a time by so many %", ("", "TTFT", "TPOT"), rows)


def op_table(title: str, ops: Sequence[OpTime], explain: bool) -> Table:
    """Return operations with their times; the small ones only when explaining."""
    total = sum(op.seconds for op in ops)
    rows = [
        (
            op.name,
            f"{op.count:g}",
            format_time(op.seconds),
            f"{op.seconds / total:.1%}",
            BOUNDS[op.bound] if op.seconds else "-",
        )
        for op in ops
        if explain or op.seconds >= 0.005 * total
    ]
    return Table(title, ("operation", "times", "time", "share", "bound by"), rows)


def cost_table(title: str, ops: Sequence[OpTime]) -> Table:
    """Return what operations do and move, and the time that each of these takes by itself."""
    rows = [
        (
            op.name,
            format_decimal(op.flops, "FLOP"),
            format_decimal(op.hbm_bytes, "B"),
            format_decimal(op.net_bytes, "B") if op.net_bytes else "-",
            *(format_time(part) for part in (op.compute_s, op.hbm_s, op.network_s)),
        )
        for op in ops
    ]
    columns = ("operation", "work", "HBM", "link", "compute time", "HBM time", "link time")
    return Table(f"{title}, what it costs", columns, rows)


def compare_view(
    rows: Sequence[Comparison], hw: str | None, tokens: int, seqs: int
) -> Iterator[RenderableType]:
    """Yield one row per model: what it takes, and with a machine how fast it decodes."""
    footprint = [
        (
            r.model,
            format_count(r.params_total),
            format_count(r.params_active),
            f"{r.bytes_per_token:,}",
            format_bytes(r.payload_bytes),
        )
        for r in rows
    ]
    asked = f"{seqs:,} x {tokens:,} cached tokens"
    yield Table(asked, ("model", "params", "active", "B/token", "KV payload"), footprint)
    decoded = [
        (
            r.model,
            format_time(r.tpot_s),
            BOUNDS[r.decode_bound] if r.decode_bound else "-",
            "yes" if r.fits else "no",
            f"{r.max_seqs:,}",
        )
        for r in rows
        if r.tpot_s is not None
    ]
    if hw:
        columns = ("model", "decode step (bound)", "bound by", "fits", "most sequences")
        yield Table(f"{asked} on {hw}", columns, decoded)
    if not hw:
        yield notes("Note", ["name a machine with --hw for decode times and how many sequences fit"])
    said = dict.fromkeys(line for row in rows for line in row.assumptions)
    yield notes("Assumptions", (_said_by(line, rows) for line in said))


def _said_by(line: str, rows: Sequence[Comparison]) -> str:
    """Return an assumption with the models it is about, where it is not about all."""
    about = [row.model for row in rows if line in row.assumptions]
    return line if len(about) == len(rows) else f"{', '.join(about)}: {line}"


def _machine(machine: Hardware) -> list[str]:
    peaks = [f"{name} {format_decimal(value, 'FLOP/s')}" for name, value in machine.peak_flops_per_s.items()]
    said = [f"HBM {format_decimal(machine.hbm_bytes_per_s, 'B/s')}", f"dense peaks: {', '.join(peaks)}"]
    if machine.scale_up is not None:
        said.append(f"{machine.scale_up.name}: {format_decimal(machine.scale_up.bytes_per_s, 'B/s')} one way")
    return [*said, *machine.disagreements]
