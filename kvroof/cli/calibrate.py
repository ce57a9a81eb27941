"""`kvroof calibrate`: measured kernels become a profile with its held-out error."""

from __future__ import annotations

import click

from kvroof.cli import options
from kvroof.cli.output import plain, print_json, print_view


@click.command("calibrate")
@click.option(
    "--from",
    "source",
    default="aiconfigurator",
    show_default=True,
    help="aiconfigurator (the installed package's tables) or a CSV of measured kernels.",
)
@click.option("--hw", required=True, help="The machine that was measured.")
@click.option(
    "--framework", default="vllm", show_default=True, help="Whose kernels: vllm, sglang or tensorrt-llm."
)
@click.option(
    "--count", default=32, show_default=True, help="Points to fit per kernel family; the rest judge."
)
@click.option("--out", help="The profile to write, a .toml file for --calibration.")
@options.json_output
def command(source: str, hw: str, framework: str, count: int, out: str | None, as_json: bool) -> None:
    """Fit what kernels reach of a machine's peaks, judge it on the points left out, and write a profile.

    \b
    kvroof calibrate --hw h200-sxm --framework vllm --out my.toml
    kvroof calibrate --from points.csv --hw h100-sxm --out my.toml
    """
    from kvroof.calibration.calibrate import calibrate

    answer = calibrate(source, hw, framework, count=count, out=out)
    if as_json:
        print_json(plain(answer) | {"efficiency": answer.efficiency.as_dict()})
    else:
        from kvroof.view.calibration import calibration_view

        print_view(calibration_view(answer))
