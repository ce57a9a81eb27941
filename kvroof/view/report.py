"""One self-contained HTML file: a model on some machines, with everything its answer rests on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from kvroof.catalog.profile import Profile, Quantity, shown
from kvroof.ground.units import format_bytes, format_count, format_decimal, format_time
from kvroof.memory.describe import ModelCard
from kvroof.memory.kv import KVReport
from kvroof.memory.ledger import Ledger
from kvroof.roofline.efficiency import Efficiency
from kvroof.serving.latency import Estimate
from kvroof.serving.op_times import OpTime
from kvroof.spec.hardware import Hardware
from kvroof.view.figures.capacity import EqualTime, capacity_frontier
from kvroof.view.figures.footprint import footprint
from kvroof.view.figures.frontier import Curve, latency_frontier
from kvroof.view.figures.memory import memory_waterfall
from kvroof.view.figures.roofline import operations_on_roofline
from kvroof.view.page import Panel, Table, panel, render
from kvroof.view.speed import BOUNDS
from kvroof.view.theme import calibrated


class Candidate(NamedTuple):
    """A machine that the model was asked of, with the answers."""

    machine: Hardware
    profile: Profile
    answer: Estimate
    efficiency: Efficiency
    families: Mapping[str, str]
    ledgers: Sequence[Ledger]
    lines: Sequence[EqualTime]
    curve: Curve | None


class Command(NamedTuple):
    """What a command answers, and the command."""

    what: str
    words: str


class Report(NamedTuple):
    """All that a report shows."""

    card: ModelCard
    origin: Mapping[str, str]
    growth: Sequence[KVReport]
    candidates: Sequence[Candidate]
    commands: Sequence[Command]


class _Section(NamedTuple):
    """One machine's part of the page."""

    key: str
    name: str
    fits: bool
    verdict: str
    tables: list[Table]
    figures: list[Panel]
    operations: list[Table]


def report_page(report: Report) -> str:
    """Return the report as one HTML page that asks the network for nothing."""
    candidates, first = report.candidates, report.candidates[0].answer
    curves = [c.curve for c in candidates if c.curve is not None]
    requests = f"{first.batch:,} requests at once, {first.isl:,} prompt and {first.osl:,} output tokens each"
    overall = [panel(footprint([report.growth]), "footprint")]
    if curves:
        loop = f"{first.model}, {first.isl:,} prompt and {first.osl:,} output tokens, in a closed loop"
        overall.insert(0, panel(latency_frontier(curves, loop), "frontier"))
    names = ", ".join(c.machine.name for c in candidates)
    return render(
        "report.html",
        {
            "title": f"{report.card.name} on {names}",
            "asked": f"{requests}; on {_devices(first)} of each machine.",
            "machines": [_section(c, f"machine-{n}") for n, c in enumerate(candidates, start=1)],
            "summary": _summary(candidates),
            "overall": overall,
            "model_tables": _model_tables(report.card),
            "model_sources": [f"{key.replace('_', ' ')}: {value}" for key, value in report.origin.items()],
            "uncertainty": _uncertainty(candidates),
            "notes": list(_notes(report)),
            "sources": [_sources(c) for c in candidates],
            "disagreements": [
                (f"Open disagreements about {c.machine.name}", c.machine.disagreements) for c in candidates
            ],
            "commands": report.commands,
        },
    )


def _devices(answer: Estimate) -> str:
    return f"{answer.devices} device{'s' * (answer.devices > 1)}"


def _section(held: Candidate, key: str) -> _Section:
    answer, machine = held.answer, held.machine
    frontier = capacity_frontier(held.ledgers, held.lines, machine.name, answer.calibration)
    return _Section(
        key=key,
        name=machine.name,
        fits=answer.fits,
        verdict=_verdict(answer),
        tables=[_ledger(answer.memory, machine), _times(answer), _reach(answer)],
        figures=[
            panel(memory_waterfall(answer.memory, machine.name), f"{key}-memory"),
            panel(operations_on_roofline(answer, machine, held.efficiency, held.families), f"{key}-roofline"),
            panel(frontier, f"{key}-capacity"),
        ],
        operations=[
            _operations(f"Prefill by operation on {machine.name}", answer.prefill_ops),
            _operations(f"Decode by operation on {machine.name}, mean step", answer.decode_ops),
        ],
    )


def _verdict(answer: Estimate) -> str:
    spare = format_bytes(abs(answer.memory.headroom_bytes))
    place = f"{_devices(answer)} of {answer.hardware}"
    if not answer.fits:
        return f"it does not fit on {place}: {spare} short. Its times suppose that it did."
    return (
        f"it fits on {place}, {spare} to spare. TTFT {format_time(answer.ttft_s)},"
        f" bound by {BOUNDS[answer.bound.prefill]}; TPOT {format_time(answer.tpot_s)}, bound by"
        f" {BOUNDS[answer.bound.decode]}; {answer.tokens_per_s_per_device:,.0f} output tokens/s per device."
    )


def _summary(candidates: Sequence[Candidate]) -> Table:
    rows = [
        (
            c.machine.name,
            "yes" if c.answer.fits else "no",
            format_time(c.answer.ttft_s),
            format_time(c.answer.tpot_s),
            f"{c.answer.tokens_per_s_per_device:,.0f}",
            f"{c.answer.memory.max_tokens:,}",
            f"{c.answer.memory.max_seqs:,}",
        )
        for c in candidates
    ]
    columns = ("machine", "fits", "TTFT", "TPOT", "tokens/s per device", "longest context", "most sequences")
    return Table("Side by side", columns, tuple(rows))


def _ledger(ledger: Ledger, machine: Hardware) -> Table:
    source = "nominal" if machine.visible_memory_bytes is None else "visible to software"
    lines = [
        (f"capacity ({source})", ledger.capacity_bytes),
        ("budget", ledger.budget_bytes),
        ("less weights", ledger.weights_bytes),
        (f"less KV cache of {ledger.seqs:,} x {ledger.tokens:,} tokens", ledger.kv_bytes),
        *((f"less {term.name}", term.term_bytes) for term in ledger.terms),
        *(() if ledger.terms else (("less reserve", ledger.reserve_bytes),)),
        ("headroom", ledger.headroom_bytes),
    ]
    rows = tuple((name, format_bytes(size), f"{size:,}") for name, size in lines)
    return Table(f"Memory of one {machine.name}", ("line", "size", "bytes"), rows)


def _times(answer: Estimate) -> Table:
    rows = [
        ("time", f"TTFT {format_time(answer.ttft_s)}", f"TPOT {format_time(answer.tpot_s)}"),
        ("bound by", BOUNDS[answer.bound.prefill], BOUNDS[answer.bound.decode]),
        ("MFU", f"{answer.mfu.prefill:.1%}", f"{answer.mfu.decode:.1%}"),
        ("MBU", f"{answer.mbu.prefill:.1%}", f"{answer.mbu.decode:.1%}"),
    ]
    return Table(
        f"Times on {answer.hardware}, {calibrated(answer.calibration)}",
        ("measure", "prefill", "decode"),
        tuple(rows),
    )


def _reach(answer: Estimate) -> Table:
    ledger = answer.memory
    rows = (
        ("speed for one user", f"{1 / answer.tpot_s:,.1f} tokens/s"),
        ("whole batch, end to end", f"{answer.tokens_per_s:,.0f} output tokens/s"),
        ("end to end", format_time(answer.e2e_s)),
        (f"longest context at {ledger.seqs:,} at once", f"{ledger.max_tokens:,} tokens"),
        (f"most sequences of {ledger.tokens:,} tokens", f"{ledger.max_seqs:,}"),
        ("KV cache in all", f"{ledger.kv_capacity_tokens:,} tokens"),
    )
    return Table(f"How far {answer.hardware} goes", ("measure", "value"), rows)


def _operations(title: str, ops: Sequence[OpTime]) -> Table:
    total = sum(op.seconds for op in ops)
    rows = [
        (
            op.name,
            f"{op.count:g}",
            format_decimal(op.flops, "FLOP"),
            format_decimal(op.hbm_bytes, "B"),
            format_decimal(op.net_bytes, "B") if op.net_bytes else "-",
            format_time(op.seconds),
            f"{op.seconds / total:.1%}",
            BOUNDS[op.bound] if op.seconds else "-",
        )
        for op in ops
    ]
    return Table(
        title, ("operation", "times", "work", "HBM", "link", "time", "share", "bound by"), tuple(rows)
    )


def _model_tables(card: ModelCard) -> list[Table]:
    facts = (
        ("parameters", f"{format_count(card.params_total)} ({card.params_total:,})"),
        ("active per token", f"{format_count(card.params_active)} ({card.params_active:,})"),
        ("weights", f"{format_bytes(card.weights_bytes)} in {card.weights_format}"),
        ("KV cache", f"{card.bytes_per_token:,} B per token in {card.kv_dtype}"),
        (
            "longest position",
            f"{card.max_position_embeddings:,}" if card.max_position_embeddings else "not stated",
        ),
    )
    layers = tuple((c.attention, c.feed_forward, f"{c.layers:,}") for c in card.layers)
    kinds = tuple((k.kind, k.arithmetic) for k in card.kinds)
    return [
        Table(f"{card.name} ({card.model_type})", ("fact", "value"), facts),
        Table("Layers", ("attention", "feed-forward", "layers"), layers, 2),
        Table("How the cache is counted", ("kind", "arithmetic"), kinds, 2),
    ]


def _uncertainty(candidates: Sequence[Candidate]) -> Table:
    return Table(
        "How far the times may be off",
        ("machine", "calibration", "kernels off by", "TTFT, 1 sigma", "TPOT, 1 sigma", "TTFT >=", "TPOT >="),
        tuple(_uncertain(c.answer) for c in candidates),
        2,
    )


def _uncertain(answer: Estimate) -> tuple[str, ...]:
    least = (format_time(answer.lower_bound_s.prefill), format_time(answer.lower_bound_s.decode))
    if answer.calibration is None or answer.interval is None:
        return (answer.hardware, "none: a bound", "-", "-", "-", *least)
    error = answer.calibration.held_out_mape
    spans = (
        f"{format_time(low)} to {format_time(high)}"
        for low, high in (answer.interval.ttft_s, answer.interval.tpot_s)
    )
    return (
        answer.hardware,
        answer.calibration.name,
        "-" if error is None else f"{error:.0%}",
        *spans,
        *least,
    )


def _notes(report: Report) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield what is taken for granted, said once where all machines share it."""
    said = [c.answer.assumptions for c in report.candidates]
    shared = [line for line in said[0] if all(line in lines for lines in said)]
    yield "Taken for granted", shared
    for c, lines in zip(report.candidates, said, strict=True):
        yield f"Taken for granted on {c.machine.name}", [line for line in lines if line not in shared]
        yield (
            f"What the calibration of {c.machine.name} rests on",
            [*c.efficiency.sources, *c.efficiency.notes],
        )


def _sources(held: Candidate) -> Table:
    rows = [
        (key, shown(key, q.value), q.source, q.also or "", _more(key, q))
        for key, q in held.profile.quantities()
    ]
    columns = ("number", "value", "source", "second source", "beware")
    return Table(f"Where the numbers of {held.machine.name} come from", columns, tuple(rows), 5)


def _more(key: str, held: Quantity) -> str:
    said = [held.note or ""]
    said += [f"not {shown(key, other.value)}, which is {other.reason}" for other in held.confused_with]
    said += [f"{claim.source} says {shown(key, claim.value)}" for claim in held.disputed]
    return "; ".join(line.rstrip(".") for line in said if line)
