"""`kvroof validate`: predictions against measured end-to-end points, with the error by what one asks."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from kvroof.catalog.whole_file import write_whole
from kvroof.cli import options
from kvroof.cli.output import print_json, print_view
from kvroof.cli.points_options import filling
from kvroof.cli.progress import steps
from kvroof.cli.quantities import written


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
@click.option(
    "--plot",
    type=written(".html"),
    metavar="FILE",
    help="Write predicted against measured as an .html figure; the verb `plot measured` has more forms.",
)
@click.option(
    "--report",
    type=written(".html", ".md"),
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
    plot: Path | None,
    report: Path | None,
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

    found = gather(points, known)
    answer = validate(
        found.points,
        by=tuple(name.strip() for name in by.split(",") if name.strip()),
        calibration=calibration,
        sources=found.sources,
        left_out=found.left_out,
        notes=found.notes,
        progress=partial(steps, what="predicting"),
    )
    if plot is not None:
        from kvroof.view.figures.measured import predicted_against_measured
        from kvroof.view.page import figure_page

        write_whole(plot, figure_page(predicted_against_measured(answer)), "--plot")
    if report is not None:
        from kvroof.calibration.evidence.gather import gather_evidence
        from kvroof.view.accuracy import accuracy_markdown, accuracy_page, accuracy_view

        classes = gather_evidence(answer)
        page = accuracy_page if report.suffix.lower() == ".html" else accuracy_markdown
        write_whole(report, page(classes), "--report")
        if not as_json:
            print_view(accuracy_view(classes))
            return
    if as_json:
        print_json(answer if rows else without_rows(answer))
    else:
        from kvroof.view.validation import validation_view

        print_view(validation_view(answer))
