"""`kvroof validate`: predictions against measured end-to-end points, with the error by what one asks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

import click

from kvroof.catalog.whole_file import write_whole
from kvroof.cli import options
from kvroof.cli.output import print_json, print_view
from kvroof.cli.points_options import filling
from kvroof.ground.errors import BadInput

T = TypeVar("T")


@click.command("validate")
@click.option(
    "--points",
    metavar="FILE",
    help="Measured points: CSV, JSON lines, a benchmark's JSON, or aiconfigurator-core's sample.",
)
@click.option(
    "--by",
    default="model,hw,framework",
    show_default=True,
    help="What to group by: model, hw, framework, mode, regime, source, layout, version, weights, lengths.",
)
@click.option("--plot", metavar="FILE", help="Write predicted against measured as an .html figure.")
@click.option(
    "--report",
    metavar="FILE",
    help="Write every class of evidence with its worst cases as .html or .md: counts, caches, logs, kernels,"
    " and the points.",
)
@click.option("--rows", is_flag=True, help="With --json: every point with what was predicted of it.")
@filling
@options.calibrated
@options.json_output
def command(
    points: str | None,
    by: str,
    plot: str | None,
    report: str | None,
    rows: bool,
    calibration: str,
    known: dict[str, str],
    as_json: bool,
) -> None:
    """Hold predictions against measured TTFT and TPOT: error, bias, and how often the interval holds.

    Without --points, against published points that are built in, and against the 5,221 of the installed
    package aiconfigurator-core (pip install 'kvroof[silicon]'). Nothing is fitted to them.

    \b
    kvroof validate
    kvroof validate --by framework,regime --plot errors.html
    kvroof validate --report accuracy.html
    kvroof validate --points runs.csv --calibration mine.toml
    """
    from kvroof.calibration.measured import gather
    from kvroof.calibration.validate import validate, without_rows

    if plot is not None and not plot.endswith(".html"):
        raise BadInput(f"{plot[:80]!r} is not a .html file", where="--plot", way_out="or use kvroof plot")
    if report is not None and not report.endswith((".html", ".md")):
        raise BadInput(f"{report[:80]!r} is neither .html nor .md", where="--report")
    found = gather(points, known)
    answer = validate(
        found.points,
        by=tuple(name.strip() for name in by.split(",") if name.strip()),
        calibration=calibration,
        sources=found.sources,
        left_out=found.left_out,
        notes=found.notes,
        progress=_progress,
    )
    if plot is not None:
        from kvroof.view.figures.measured import predicted_against_measured
        from kvroof.view.page import figure_page

        write_whole(plot, figure_page(predicted_against_measured(answer)), "--plot")
    if report is not None:
        from kvroof.calibration.evidence.gather import gather_evidence
        from kvroof.view.accuracy import accuracy_markdown, accuracy_page, accuracy_view

        classes = gather_evidence(answer)
        page = accuracy_page if report.endswith(".html") else accuracy_markdown
        write_whole(report, page(classes), "--report")
        if not as_json:
            print_view(accuracy_view(classes))
            return
    if as_json:
        print_json(answer if rows else without_rows(answer))
    else:
        from kvroof.view.validation import validation_view

        print_view(validation_view(answer))


def _progress(items: Iterable[T]) -> Iterator[T]:
    """Yield the items under a bar on a terminal's standard error; silently elsewhere."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    yield from track(
        list(items), "predicting", console=console, transient=True, disable=not console.is_terminal
    )
