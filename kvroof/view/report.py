"""One self-contained HTML file: a model on some machines, with everything its answer rests on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from kvroof.catalog.profile import Profile, Quantity, shown
from kvroof.ground.units import format_bytes, format_time
from kvroof.memory.describe import ModelCard
from kvroof.memory.kv import KVReport
from kvroof.memory.ledger import Ledger
from kvroof.roofline.efficiency import Efficiency
from kvroof.serving.latency import Estimate
from kvroof.spec.hardware import Hardware
from kvroof.view.catalog import model_tables
from kvroof.view.figures.capacity import EqualTime, capacity_frontier
from kvroof.view.figures.footprint import footprint
from kvroof.view.figures.frontier import Curve, latency_frontier
from kvroof.view.figures.memory import memory_waterfall
from kvroof.view.figures.roofline import operations_on_roofline
from kvroof.view.memory import ledger_table
from kvroof.view.page import Panel, panel, render
from kvroof.view.speed import (
    BOUNDS,
    Evidence,
    cost_table,
    evidence_of,
    op_table,
    phases,
    rates_table,
    speed_table,
)
from kvroof.view.tables import Table

EVIDENCE: dict[Evidence, str] = {
    "calibrated": "calibrated",
    "typical": "those of a typical machine",
    "bounds": "bounds",
}


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
            "model_tables": model_tables(report.card),
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
        tables=[
            ledger_table(answer.memory, machine),
            _on(machine, speed_table(answer)),
            _on(machine, rates_table(answer)),
        ],
        figures=[
            panel(memory_waterfall(answer.memory, machine.name), f"{key}-memory"),
            panel(operations_on_roofline(answer, machine, held.efficiency, held.families), f"{key}-roofline"),
            panel(frontier, f"{key}-capacity"),
        ],
        operations=[
            _on(machine, held)
            for title, ops in phases(answer).items()
            for held in (op_table(title, ops, explain=True), cost_table(title, ops))
        ],
    )


def _on(machine: Hardware, held: Table) -> Table:
    """Return a table with its machine in the title: a page has those of several."""
    return held._replace(title=f"{machine.name}: {held.title}")


def _verdict(answer: Estimate) -> str:
    spare = format_bytes(abs(answer.memory.headroom_bytes))
    place = f"{_devices(answer)} of {answer.hardware}"
    if not answer.fits:
        return f"it does not fit on {place}: {spare} short. Its times suppose that it did."
    return (
        f"it fits on {place}, {spare} to spare. Its times are {EVIDENCE[evidence_of(answer.calibration)]}:"
        f" TTFT {format_time(answer.ttft_s)},"
        f" bound by {BOUNDS[answer.bound.prefill]}; TPOT {format_time(answer.tpot_s)}, bound by"
        f" {BOUNDS[answer.bound.decode]}; {answer.tokens_per_s_per_device:,.0f} output tokens/s per device."
    )


def _summary(candidates: Sequence[Candidate]) -> Table:
    rows = [
        (
            c.machine.name,
            EVIDENCE[evidence_of(c.answer.calibration)],
            "yes" if c.answer.fits else "no",
            format_time(c.answer.ttft_s),
            format_time(c.answer.tpot_s),
            f"{c.answer.tokens_per_s_per_device:,.0f}",
            f"{c.answer.memory.max_tokens:,}",
            f"{c.answer.memory.max_seqs:,}",
        )
        for c in candidates
    ]
    speed = ("TTFT", "TPOT", "tokens/s per device")
    columns = ("machine", "times are", "fits", *speed, "longest context", "most sequences")
    return Table("Side by side", columns, rows, left=2)


def _uncertainty(candidates: Sequence[Candidate]) -> Table:
    return Table(
        "How far the times may be off",
        ("machine", "calibration", "kernels off by", "TTFT, 2 in 3", "TPOT, 2 in 3", "TTFT >=", "TPOT >="),
        [_uncertain(c.answer) for c in candidates],
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
    return Table(f"Where the numbers of {held.machine.name} come from", columns, rows, 5)


def _more(key: str, held: Quantity) -> str:
    said = [held.note or ""]
    said += [f"not {shown(key, other.value)}, which is {other.reason}" for other in held.confused_with]
    said += [f"{claim.source} says {shown(key, claim.value)}" for claim in held.disputed]
    return "; ".join(line.rstrip(".") for line in said if line)
