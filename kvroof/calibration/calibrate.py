"""Calibrate a machine from measured kernels, and answer what came of it."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from kvroof.calibration.aiconfigurator import PACKAGE, installed
from kvroof.calibration.build import LENDERS, build
from kvroof.calibration.fit import POINTS
from kvroof.calibration.profile import Calibration, write_profile
from kvroof.calibration.sources import OwnPoints
from kvroof.catalog.profiles import load_hardware
from kvroof.ground.errors import BadInput
from kvroof.ground.record import record, static

FEWEST, MOST = 4, 2000


@record
class Calibrated:
    """A profile that was made, where it lies, and its held-out errors as shares.

    `held_out_mape` is by family, None where no point was left to judge by; `points` are those fitted.
    `device` is what was measured: the machine and framework of the tables.
    """

    hardware: str = static()
    device: str = static()
    efficiency: Calibration = static()
    held_out_mape: dict[str, float | None]
    overall_mape: float | None
    points: int
    path: str | None = static(default=None)


def calibrate(
    source: str, hardware: str, framework: str = "vllm", *, count: int = POINTS, out: str | None = None
) -> Calibrated:
    """Return the calibration of a machine fitted to measured kernels, and write its profile.

    Args:
        source: `aiconfigurator` (the installed package's tables) or a CSV of measured kernels.
        hardware: A catalog name or a path to a hardware profile.
        framework: Whose kernels: vllm, sglang or tensorrt-llm.
        count: Points to fit per family; the rest judge.
        out: The file to write; none is written without it.

    Raises:
        BadInput: A source, name or number that cannot be used.
        Unsupported: The package is not installed.
    """
    if not FEWEST <= count <= MOST:
        raise BadInput(
            f"{count} is outside {FEWEST} to {MOST}", where="--count", way_out=f"{POINTS} is enough"
        )
    if out is not None and not out.endswith(".toml"):
        raise BadInput(
            f"{out[:80]!r} is not a .toml file", where="--out", way_out="give a path that ends in .toml"
        )
    machine = load_hardware(hardware)
    if source == "aiconfigurator":
        tables = installed()
        others = tuple(name for name in LENDERS if name != framework)
        profile = build(tables, machine, framework, count=count, collectives=tables, others=others)
        device = f"{machine.name} under {framework}, {PACKAGE} {tables.version}"
    elif source.endswith(".csv"):
        profile = build(OwnPoints(path=Path(source)), machine, framework, count=count)
        device = f"{machine.name} under {framework}, {source}"
    else:
        raise BadInput(
            f"{source[:80]!r} is not a source", where="--from", way_out="give aiconfigurator or a .csv file"
        )
    if out is not None:
        write_profile(profile, Path(out))
    measured = {name: table for name, table in profile.kernels.items() if table.points}
    errors = {name: table.held_out_mape for name, table in measured.items()}
    known = [error for error in errors.values() if error is not None]
    wires = profile.wires
    return Calibrated(
        hardware=machine.name,
        device=device,
        efficiency=profile,
        held_out_mape=errors | {name: wire.held_out_mape for name, wire in wires.items()},
        overall_mape=median(known) if known else None,
        points=sum(t.points for t in measured.values()) + sum(w.points for w in wires.values()),
        path=out,
    )
