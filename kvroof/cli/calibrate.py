"""`kvroof calibrate`: the local device, measured kernels, or a deployment's own points become a profile."""

from __future__ import annotations

import click

from kvroof.cli import options
from kvroof.cli.output import plain, print_json, print_view
from kvroof.cli.points_options import filling
from kvroof.cli.progress import measuring
from kvroof.ground.errors import BadInput

ELSEWHERE = ("source", "count")
"""Options of measured tables: with one of them, or a machine's name, this device is not what is meant."""


@click.command("calibrate")
@click.option("--quick", is_flag=True, help="Measure this device in under a minute instead of a few.")
@click.option("--shortest", is_flag=True, help="Take shortest repeats, not medians: on a busy machine.")
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
@options.shown("--count", 32, "Points to fit per kernel family; the rest judge.")
@click.option("--out", help="The profile to write, a .toml file for --calibration.")
@click.option(
    "--hardware-out",
    metavar="FILE",
    help="The hardware profile of this device to write; beside --out if the catalog lacks it.",
)
@filling
@options.calibrated
@options.json_output
def command(
    quick: bool,
    shortest: bool,
    source: str,
    points: str | None,
    count: int,
    out: str | None,
    hardware_out: str | None,
    calibration: str,
    known: dict[str, str],
    as_json: bool,
) -> None:
    """Measure this device, fit what kernels reach of its peaks, judge that, and write a profile.

    Alone, it times matrix products, the engine's paged attention, copies, collectives and the host on the
    device that JAX sees here, and writes two files: the machine (for HW) and its calibration.

    With --hw, kernels are read from measured tables. With --points, a few measured TTFT and TPOT move what
    they can identify of a machine's profile; the file has a column for each of model, hw, framework, tp, pp,
    dp, ep, isl, osl, concurrency, weights_dtype, kv_dtype, ttft_ms, tpot_ms; what it lacks is taken from the
    options of those names.

    \b
    kvroof calibrate --quick --out mine.toml
    kvroof calibrate --out mine.toml --hardware-out cpu.toml
    kvroof calibrate --hw h200-sxm --framework vllm --out my.toml
    kvroof calibrate --from points.csv --hw h100-sxm --out my.toml
    kvroof calibrate --points runs.csv --out mine.toml
    kvroof calibrate --points result.json --hw h100-sxm --framework vllm --tp 4 --out mine.toml
    """
    here = points is None and not known and all(options.left_out(name) for name in ELSEWHERE)
    for option, given in (
        ("--quick", quick),
        ("--shortest", shortest),
        ("--hardware-out", hardware_out is not None),
    ):
        if given and not here:
            raise BadInput(
                "is of the device that is measured here", where=option, way_out="leave it or the rest out"
            )
    if points is not None:
        _move(points, known, calibration, out, as_json)
        return
    stray = [key for key in known if key not in ("hw", "framework")]
    if stray or not options.left_out("calibration"):
        raise BadInput(
            "is for points of a deployment",
            where=f"--{(stray or ['calibration'])[0].replace('_', '-')}",
            way_out="give --points FILE with it",
        )
    if here:
        _measure(quick, shortest, out, hardware_out, as_json)
        return
    if "hw" not in known:
        raise BadInput("names the machine that was measured", where="--hw", way_out="give --hw NAME")
    from kvroof.calibration.calibrate import calibrate

    answer = calibrate(source, known["hw"], known.get("framework", "vllm"), count=count, out=out)
    if as_json:
        print_json(plain(answer) | {"efficiency": answer.efficiency.as_dict()})
    else:
        from kvroof.view.calibration import calibration_view

        print_view(calibration_view(answer))


def _measure(quick: bool, shortest: bool, out: str | None, hardware_out: str | None, as_json: bool) -> None:
    """Calibrate the local device under a bar."""
    from kvroof.calibration.local.calibrate import calibrate_local

    with measuring() as progress:
        answer = calibrate_local(
            quick=quick, shortest=shortest, out=out, hardware_out=hardware_out, progress=progress
        )
    if as_json:
        profile = answer.profile.as_dict() if answer.profile is not None else None
        print_json(plain(answer) | {"efficiency": answer.efficiency.as_dict(), "profile": profile})
    else:
        from kvroof.view.calibration import local_view

        print_view(local_view(answer))


def _move(points: str, known: dict[str, str], calibration: str, out: str | None, as_json: bool) -> None:
    """Move a profile by a deployment's own points."""
    from kvroof.calibration.calibrate import calibrate_points

    if not options.left_out("source"):
        raise BadInput("reads kernels, and --points served tokens", where="--from", way_out="give one")
    moved = calibrate_points(points, known=known, calibration=calibration, out=out)
    if as_json:
        print_json(plain(moved) | {"efficiency": moved.efficiency.as_dict()})
    else:
        from kvroof.view.validation import recalibration_view

        print_view(recalibration_view(moved))
