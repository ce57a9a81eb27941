"""How right kvroof is: every class of evidence with its count, its error and its worst cases."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType

from kvroof import __version__
from kvroof.calibration.evidence.evidence import Case, Evidence
from kvroof.view.figures.evidence import errors_by_class
from kvroof.view.page import panel, render
from kvroof.view.tables import Table, notes, verdict

NEAR = 0.02
COLUMNS = ("evidence", "cases", "refused", "equal", f"within {NEAR:.0%}", "median error", "mean error")
WORST = ("worst cases", "why, where known", "known", "predicted", "error")
MOST_REASONS = 12


def accuracy_view(classes: Sequence[Evidence]) -> Iterator[RenderableType]:
    """Yield one table of all classes, and the worst case of each."""
    cases = sum(len(one.cases) for one in classes)
    yield verdict(True, f"{cases:,} cases that others counted, logged or measured")
    yield _overall(classes)
    worst = [(one.kind, one.worst[0]) for one in classes if one.worst]
    rows = [(kind, case.name, case.known, case.predicted, f"{case.error:+.1%}") for kind, case in worst]
    yield Table("The worst of each", ("evidence", WORST[0], *WORST[2:]), rows, left=2)
    yield notes("Against what", (f"{one.kind}: {one.against}" for one in classes))


def accuracy_markdown(classes: Sequence[Evidence]) -> str:
    """Return the page as Markdown: one table of all classes, then each with its worst cases."""
    lines = [
        "# How right kvroof is",
        "",
        f"Made by kvroof {__version__} with `kvroof validate --report`.",
        "",
    ]
    lines += _markdown(COLUMNS, [_row(one) for one in classes])
    for one in classes:
        lines += ["", f"## {_heading(one)}", "", f"Against {one.against}.", ""]
        lines += [f"- {note}" for note in one.notes]
        if one.worst:
            lines += ["", *_markdown(WORST, [_worst(case) for case in one.worst])]
        if one.refused:
            lines += ["", *_markdown(("refused", "why"), _refused(one))]
    return "\n".join(lines) + "\n"


def accuracy_page(classes: Sequence[Evidence]) -> str:
    """Return the page as HTML that needs no network."""
    return render(
        "accuracy.html",
        {
            "panel": panel(errors_by_class(classes), "errors"),
            "overall": _overall(classes),
            "classes": [
                {
                    "key": f"class-{index}",
                    "kind": _heading(one),
                    "against": one.against,
                    "notes": one.notes,
                    "worst": Table(f"Worst cases: {one.kind}", WORST, [_worst(c) for c in one.worst], left=2),
                    "refused": Table(f"Refused: {one.kind}", ("which", "why"), _refused(one), left=2),
                }
                for index, one in enumerate(classes)
            ],
        },
    )


def _overall(classes: Sequence[Evidence]) -> Table:
    return Table("All classes of evidence", COLUMNS, [_row(one) for one in classes])


def _heading(one: Evidence) -> str:
    return one.kind[0].upper() + one.kind[1:]


def _row(one: Evidence) -> tuple[str, ...]:
    return (
        one.kind,
        f"{len(one.cases):,}",
        f"{len(one.refused):,}",
        f"{one.equal:,}",
        f"{one.within(NEAR):,}",
        f"{one.median:.1%}",
        f"{one.mean:.1%}",
    )


def _worst(case: Case) -> tuple[str, ...]:
    return case.name, case.why, case.known, case.predicted, f"{case.error:+.1%}"


def _refused(one: Evidence) -> list[tuple[str, str]]:
    """Return the reasons, the commonest first, each with how many it holds back or the one that it does."""
    names: dict[str, list[str]] = {}
    for case in one.refused:
        names.setdefault(case.why, []).append(case.name)
    ranked = sorted(names.items(), key=lambda item: -len(item[1]))
    shown = [(", ".join(n[:3]) + f" and {len(n) - 3} more" * (len(n) > 3), why) for why, n in ranked]
    rest = len(shown) - MOST_REASONS
    return shown[:MOST_REASONS] + [(f"{rest} more", "other reasons")] * (rest > 0)


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
