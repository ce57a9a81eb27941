"""What `estimate` and `compare` answer, as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType

from kvroof.ground.units import format_bytes, format_count, format_decimal, format_time
from kvroof.serving.comparison import Comparison
from kvroof.serving.latency import Estimate
from kvroof.serving.op_times import OpTime
from kvroof.spec.hardware import Hardware
from kvroof.view.memory import ledger_table
from kvroof.view.tables import notes, table, verdict

if TYPE_CHECKING:
    from kvroof.search.sensitivity import Sensitivity

BOUNDS = {
    "compute": "compute",
    "hbm": "HBM bandwidth",
    "network": "the link",
    "overhead": "launch overhead",
    "host": "host memory",
}


def estimate_view(answer: Estimate, machine: Hardware, explain: bool) -> Iterator[RenderableType]:
    """Yield fit, longest context, times, rates, bounds, and the operations behind them."""
    ledger = answer.memory
    devices = f"{answer.devices} x {machine.name}" if answer.devices > 1 else machine.name
    spare = format_bytes(abs(ledger.headroom_bytes))
    asked = f"{answer.batch:,} x ({answer.isl:,} in + {answer.osl:,} out) of {answer.model}"
    yield verdict(
        answer.fits,
        f"{asked} fit on {devices}, {spare} to spare"
        if answer.fits
        else f"{asked} do not fit on {devices}: {spare} short; the times below suppose that it did",
    )
    kind = _kind(answer)
    yield table(
        f"Speed ({kind})",
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
    yield table(
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
        ],
    )
    if explain:
        yield ledger_table(ledger, machine)
    yield op_table("Prefill by operation", answer.prefill_ops, explain)
    yield op_table("Decode by operation, mean step", answer.decode_ops, explain)
    if explain:
        yield notes("Machine", _machine(machine))
    yield notes("Assumptions", answer.assumptions)


def _kind(answer: Estimate) -> str:
    """Return what the times are: a calibration's, or operations in series at the peaks."""
    if answer.calibration is None:
        return "uncalibrated bound"
    error = answer.calibration.held_out_mape
    said = f", kernels off by {error:.0%} on points not fitted" if error is not None else ""
    return f"calibrated: {answer.calibration.name}{said}"


def _sigma(answer: Estimate) -> list[tuple[str, str, str]]:
    """Return the row of one sigma around each time, where there is a calibration to give it."""
    if answer.interval is None:
        return []
    first, later = answer.interval.ttft_s, answer.interval.tpot_s
    return [("one sigma", _range(*first), _range(*later))]


def _range(low: float, high: float) -> str:
    return f"{format_time(low)} to {format_time(high)}"


CHANGES = {
    "hbm_bandwidth": "HBM bandwidth",
    "compute": "arithmetic",
    "link": "link bandwidth",
    "overhead": "launch, collective and host overhead",
    "work_items": "work items and exponentials",
    "kv_heads": "KV heads",
    "window": "sliding window",
    "kv_bytes_per_element": "bytes per cached element",
    "weight_bytes_per_element": "bytes per weight",
    "batch": "batch",
    "context": "context",
}


def sensitivity_table(slopes: Sensitivity) -> RenderableType:
    """Return by how many percent each time changes when one number rises by a percent."""
    rows = [
        (words, f"{slopes.ttft[name]:+.3f}", f"{slopes.tpot[name]:+.3f}")
        for name, words in CHANGES.items()
        if slopes.ttft[name] or slopes.tpot[name]
    ]
    return table("1 % more of it changes a time by so many %", ("", "TTFT", "TPOT"), rows)


def op_table(title: str, ops: Sequence[OpTime], explain: bool) -> RenderableType:
    """Return operations with their costs and times; the small ones only when explaining."""
    total = sum(op.seconds for op in ops)
    shown = [op for op in ops if explain or op.seconds >= 0.005 * total]
    rows = [
        (
            op.name,
            f"{op.count:g}",
            *(_costs(op) if explain else ()),
            format_time(op.seconds),
            f"{op.seconds / total:.1%}",
            op.bound if op.seconds else "-",
        )
        for op in shown
    ]
    costs = ("work", "HBM", "link", "compute", "HBM time", "link time") if explain else ()
    return table(title, ("operation", "times", *costs, "time", "share", "bound"), rows)


def _costs(op: OpTime) -> tuple[str, ...]:
    work, moved = format_decimal(op.flops, "FLOP"), format_decimal(op.hbm_bytes, "B")
    sent = format_decimal(op.net_bytes, "B") if op.net_bytes else "-"
    return work, moved, sent, *(format_time(part) for part in (op.compute_s, op.hbm_s, op.network_s))


def compare_view(
    rows: Sequence[Comparison], hw: str | None, tokens: int, seqs: int
) -> Iterator[RenderableType]:
    """Yield one row per model."""
    place = f" on {hw}" if hw else ""
    yield table(
        f"{seqs:,} x {tokens:,} cached tokens{place}",
        (
            "model",
            "params",
            "active",
            "B/token",
            "KV payload",
            "decode step (bound)",
            "bound by",
            "fits",
            "most sequences",
        ),
        [
            (
                r.model,
                format_count(r.params_total),
                format_count(r.params_active),
                f"{r.bytes_per_token:,}",
                format_bytes(r.payload_bytes),
                format_time(r.tpot_s) if r.tpot_s is not None else "-",
                BOUNDS[r.decode_bound] if r.decode_bound else "-",
                "-" if r.fits is None else "yes" if r.fits else "no",
                f"{r.max_seqs:,}" if r.max_seqs is not None else "-",
            )
            for r in rows
        ],
    )
    if not hw:
        yield notes("Note", ["name a machine with --hw for decode times and how many sequences fit"])


def _machine(machine: Hardware) -> list[str]:
    peaks = [f"{name} {format_decimal(value, 'FLOP/s')}" for name, value in machine.peak_flops_per_s.items()]
    said = [f"HBM {format_decimal(machine.hbm_bytes_per_s, 'B/s')}", f"dense peaks: {', '.join(peaks)}"]
    if machine.scale_up is not None:
        said.append(f"{machine.scale_up.name}: {format_decimal(machine.scale_up.bytes_per_s, 'B/s')} one way")
    return [*said, *machine.disagreements]
