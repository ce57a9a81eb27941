"""Calibrate a machine from measured kernels, and answer what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import median

import msgspec

from kvroof.calibration.aiconfigurator import PACKAGE, installed
from kvroof.calibration.build import LENDERS, Fitting, build
from kvroof.calibration.deployments import Deployments
from kvroof.calibration.fit import POINTS
from kvroof.calibration.load import efficiency_of, find_profile
from kvroof.calibration.measured import choose
from kvroof.calibration.own_points import Moved, adjust
from kvroof.calibration.profile import Calibration, write_profile
from kvroof.calibration.served import read_points
from kvroof.calibration.sources import OwnPoints
from kvroof.catalog.profiles import load_hardware
from kvroof.catalog.whole_file import writable
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
    if out is not None:
        writable(out, (".toml",), "--out")
    machine = load_hardware(hardware)
    if source == "aiconfigurator":
        tables = installed()
        others = tuple(name for name in LENDERS if name != framework)
        profile = build(
            tables, machine, framework, fitting=Fitting(count=count), collectives=tables, others=others
        )
        device = f"{machine.name} under {framework}, {PACKAGE} {tables.version}"
    elif source.endswith(".csv"):
        profile = build(OwnPoints(path=Path(source)), machine, framework, fitting=Fitting(count=count))
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


@record
class Recalibrated:
    """A profile moved by a deployment's own points, where it lies, and its errors as shares.

    `before`, `after` and `held_out_mape` are mean absolute errors of `ttft` and `tpot`; the last of each
    point when only the others were given, None with fewer than three. `models` are those of the points.
    """

    hardware: str = static()
    device: str = static()
    efficiency: Calibration = static()
    held_out_mape: dict[str, float | None]
    points: int
    path: str | None = static(default=None)
    models: tuple[str, ...] = static()
    moved: tuple[Moved, ...]
    before: dict[str, float | None]
    after: dict[str, float | None]


def calibrate_points(
    path: str,
    *,
    known: Mapping[str, str] | None = None,
    calibration: str = "auto",
    out: str | None = None,
) -> Recalibrated:
    """Return the profile of a deployment moved by a few of its measured TTFT and TPOT points.

    Args:
        path: A points file; see `calibration.served`.
        known: Values by column name. A file's `model`, `hw` and `framework` are kept where they agree with
            these, and every column that the file lacks is filled from them.
        calibration: The profile to move: `auto` takes the machine's own, or its nearest relative's.
        out: The file to write; none is written without it.

    Raises:
        BadInput: A file, name or point that cannot be used, or several machines or frameworks.
    """
    if out is not None:
        writable(out, (".toml",), "--out")
    asked = dict(known or {})
    chosen = choose(read_points(Path(path), asked).points, asked, path)
    first = chosen[0]
    base = find_profile(calibration, first.hardware, first.framework or None)
    if base is None:
        raise BadInput(
            f"{first.hardware} has no profile to move",
            where="--points",
            way_out="name one with --calibration",
        )
    base = msgspec.structs.replace(base, served=None)
    used_on = None if base.hardware in ("", first.hardware) else first.hardware
    found = adjust(chosen, Deployments(efficiency=efficiency_of(base, used_on)), Path(path).name)
    profile = msgspec.structs.replace(base, name=f"{base.name}+points", served=found.served)
    if out is not None:
        write_profile(profile, Path(out))
    return Recalibrated(
        hardware=first.hardware,
        device=f"{first.hardware} under {first.framework or 'any engine'}, {path}",
        efficiency=profile,
        held_out_mape=found.left_out,
        points=len(chosen),
        path=out,
        models=tuple(sorted({p.model for p in chosen})),
        moved=found.moved,
        before=found.before,
        after=found.after,
    )
