"""`kvroof calibrate`: measured kernels, or a deployment's own points, become a profile with its error."""

from __future__ import annotations

import click

from kvroof.cli import options
from kvroof.cli.output import plain, print_json, print_view
from kvroof.cli.points_options import filling
from kvroof.ground.errors import BadInput


@click.command("calibrate")
@click.option(
    "--from",
    "source",
    default="aiconfigurator",
    show_default=True,
    help="aiconfigurator (the installed package's tables) or a CSV of measured kernels.",
)
@click.option(
    "--points",
    metavar="FILE",
    help="Measured TTFT and TPOT of your own deployment: CSV, JSON lines, or a benchmark's JSON.",
)
@click.option(
    "--count", default=32, show_default=True, help="Points to fit per kernel family; the rest judge."
)
@click.option("--out", help="The profile to write, a .toml file for --calibration.")
@filling
@options.calibrated
@options.json_output
def command(
    source: str,
    points: str | None,
    count: int,
    out: str | None,
    calibration: str,
    known: dict[str, str],
    as_json: bool,
) -> None:
    """Fit what kernels reach of a machine's peaks, judge it on the points left out, and write a profile.

    With --points, a few measured TTFT and TPOT move what they can identify of the machine's profile. The
    file has a column for each of model, hw, framework, tp, pp, dp, ep, isl, osl, concurrency, weights_dtype,
    kv_dtype, ttft_ms, tpot_ms; what it lacks is taken from the options of those names.

    \b
    kvroof calibrate --hw h200-sxm --framework vllm --out my.toml
    kvroof calibrate --from points.csv --hw h100-sxm --out my.toml
    kvroof calibrate --points runs.csv --out mine.toml
    kvroof calibrate --points result.json --hw h100-sxm --framework vllm --tp 4 --out mine.toml
    """
    from kvroof.calibration.calibrate import calibrate, calibrate_points

    if points is not None:
        if not options.left_out("source"):
            raise BadInput("reads kernels, and --points served tokens", where="--from", way_out="give one")
        moved = calibrate_points(points, known=known, calibration=calibration, out=out)
        if as_json:
            print_json(plain(moved) | {"efficiency": moved.efficiency.as_dict()})
        else:
            from kvroof.view.validation import recalibration_view

            print_view(recalibration_view(moved))
        return
    stray = [key for key in known if key not in ("hw", "framework")]
    if stray or not options.left_out("calibration"):
        raise BadInput(
            "is for points of a deployment",
            where=f"--{(stray or ['calibration'])[0].replace('_', '-')}",
            way_out="give --points FILE with it",
        )
    if "hw" not in known:
        raise BadInput("names the machine that was measured", where="--hw", way_out="give --hw NAME")
    answer = calibrate(source, known["hw"], known.get("framework", "vllm"), count=count, out=out)
    if as_json:
        print_json(plain(answer) | {"efficiency": answer.efficiency.as_dict()})
    else:
        from kvroof.view.calibration import calibration_view

        print_view(calibration_view(answer))
