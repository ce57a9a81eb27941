"""What `validate` and `calibrate --points` answer, as tables."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType

from kvroof.calibration.calibrate import Recalibrated
from kvroof.calibration.validate import Errors, Validation
from kvroof.view.tables import Table, notes, verdict

PARTS = {
    "launch": "start of every kernel",
    "host_step": "host, per step",
    "host_seq": "host, per sequence",
    "wire": "collectives",
    "group": "everything",
}
MOST_REASONS = 12


def validation_view(answer: Validation) -> Iterator[RenderableType]:
    """Yield the overall error, the errors by group, what was left out and why, and what to know."""
    tpot, ttft = answer.overall.tpot, answer.overall.ttft
    said = ", ".join(
        f"{name} off by {e.mape:.1%} (median {e.median:.1%})"
        for name, e in (("TPOT", tpot), ("TTFT", ttft))
        if e is not None
    )
    yield verdict(True, f"{answer.predicted:,} of {answer.points:,} measured points predicted: {said}")
    yield _errors("TPOT", answer, {id(g): g.tpot for g in (*answer.groups, answer.overall)})
    yield _errors("TTFT", answer, {id(g): g.ttft for g in (*answer.groups, answer.overall)})
    if answer.left_out:
        reasons = list(answer.left_out.items())
        rows = [(reason, f"{count:,}") for reason, count in reasons[:MOST_REASONS]]
        if rest := sum(count for _, count in reasons[MOST_REASONS:]):
            rows.append((f"{len(reasons) - MOST_REASONS} other reasons", f"{rest:,}"))
        yield Table("Left out", ("why", "points"), rows)
    lines = (
        "errors are shares of the measured time; nothing is fitted to these points",
        *(f"points: {source}" for source in answer.sources),
        *answer.notes,
    )
    yield notes("Assumptions", lines)


def recalibration_view(answer: Recalibrated) -> Iterator[RenderableType]:
    """Yield the error before and after, what moved, and what the points did not tell."""
    yield verdict(
        True,
        f"{answer.device}: {answer.points} points moved {answer.efficiency.name}; TPOT off by"
        f" {_share(answer.before['tpot'])} before, {_share(answer.after['tpot'])} after"
        + _left_out(answer.held_out_mape["tpot"]),
    )
    yield Table(
        "What the points told",
        ("part", "factor", "told", "prior", "posterior"),
        [
            (
                PARTS[m.name],
                f"x {m.factor:.2f}",
                "yes" if m.told else "no, at its prior",
                f"+-{m.prior:.0%}",
                f"+-{m.posterior:.0%}",
            )
            for m in answer.moved
        ],
    )
    yield Table(
        "Errors",
        ("", "before", "after", "each point left out"),
        [
            (name.upper(), *(_share(e[name]) for e in (answer.before, answer.after, answer.held_out_mape)))
            for name in ("tpot", "ttft")
        ],
    )
    lines = (
        f"models: {', '.join(answer.models)}",
        "errors are mean absolute shares of the measured time, of a closed loop with its requests always in",
        "use it where the points come from: the same machine, engine and options",
        f"written to {answer.path}; kvroof estimate MODEL HW --calibration {answer.path}"
        if answer.path
        else "nothing written: give --out FILE.toml",
    )
    yield notes("Assumptions", lines)


def _errors(time: str, answer: Validation, of: dict[int, Errors | None]) -> RenderableType:
    """Return the errors of one time by group, and over all points."""
    names = tuple(answer.groups[0].by) if answer.groups else ()
    rows = [(*g.by.values(), *_cells(of[id(g)])) for g in answer.groups]
    rows.append((*("all",) * bool(names), *[""] * (len(names) - 1), *_cells(of[id(answer.overall)])))
    columns = (*names, "mean", "median", "bias", "in 1 sigma", "points")
    return Table(f"{time}: error as a share of the measured time", columns, rows, left=len(names))


def _cells(errors: Errors | None) -> tuple[str, ...]:
    if errors is None:
        return ("-",) * 5
    return (
        f"{errors.mape:.1%}",
        f"{errors.median:.1%}",
        f"{errors.bias:+.1%}",
        f"{errors.within:.0%}",
        f"{errors.points:,}",
    )


def _share(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.1%}"


def _left_out(value: float | None) -> str:
    return "" if value is None else f", {value:.1%} with each point left out"
