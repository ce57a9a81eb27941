"""Calibration profiles: `hardware/calibrations/*.toml` or a user's own, read and checked in one go.

A profile is a few parameters per kernel family with their provenance and held-out error. The loader is the
checker; `write_profile` writes what it accepts.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from kvroof.catalog.bounded import read_text
from kvroof.catalog.names import closest, data_folder
from kvroof.catalog.toml import to_toml
from kvroof.catalog.whole_file import write_whole
from kvroof.ground.errors import BadInput, UnknownName

MAX_BYTES = 10**6
LEAST_AND_MOST = {
    "t0_s": (0.0, 1e-2), "hbm": (1e-3, 1.0), "compute": (1e-4, 1.0), "sharpness": (1.0, 20.0),
    "item_s": (0.0, 1e-3), "depth_s": (0.0, 1e-2), "score_s": (0.0, 1e-9), "llc_bytes": (0.0, 1e11),
    "llc_gain": (1.0, 100.0), "depth_power": (0.1, 2.0), "ring_s": (0.0, 1e-2), "start_s": (0.0, 1e-2),
    "per_rank": (0.0, 10.0), "net": (1e-3, 1.0), "crowding": (0.0, 5.0), "step_s": (0.0, 1.0),
    "seq_s": (0.0, 1e-2), "sigma": (0.0, 5.0), "held_out_mape": (0.0, 10.0), "held_out_median": (0.0, 10.0),
    "launch": (0.02, 50.0), "host_step": (0.02, 50.0), "host_seq": (0.02, 50.0), "wire": (0.02, 50.0),
    "group": (0.02, 50.0),
}  # fmt: skip
"""What each parameter may be; beyond it a unit has slipped."""


class _Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A table of the file; a key it does not know is an error."""


class KernelTable(_Strict, frozen=True, kw_only=True):
    """A kernel's parameters (see `roofline.efficiency.Kernel`), its error, and where they come from.

    Errors are shares of the measured time over `held_out` points longer than 20 us that were not fitted.
    `at_prior` are parameters the points could not tell; a family that was `stated` was not measured.
    """

    t0_s: float
    hbm: float
    compute: float = 1.0
    sharpness: float | None = None
    item_s: float = 0.0
    depth_s: float = 0.0
    depth_power: float = 1.0
    score_s: float = 0.0
    llc_bytes: float = 0.0
    llc_gain: float = 1.0
    sigma: float
    held_out_mape: float | None = None
    held_out_median: float | None = None
    bias: float | None = None
    points: int = 0
    held_out: int = 0
    kernel: str = ""
    version: str = ""
    at_prior: tuple[str, ...] = ()
    stated: str | None = None
    borrowed: str | None = None


class WireTable(_Strict, frozen=True, kw_only=True):
    """A collective's parameters (see `roofline.efficiency.Wire`) and their error."""

    ring_s: float
    per_rank: float
    net: float
    crowding: float = 0.0
    start_s: float | None = None
    sigma: float
    held_out_mape: float | None = None
    points: int = 0
    held_out: int = 0
    version: str = ""


class Host(_Strict, frozen=True, kw_only=True):
    """The host's time per step and per running sequence."""

    step_s: float
    seq_s: float
    source: str


class Served(_Strict, frozen=True, kw_only=True):
    """What a deployment's own end-to-end points moved: factors on parts of a step, and on all of it.

    `launch` is on the start of every kernel, `host_step` and `host_seq` on the host's times, `wire` on
    collectives, `group` on everything. `sigma` is of log residuals of TPOT; `at_prior` are factors that the
    points did not tell. Errors are mean absolute shares of TPOT: before, after, and with each point left out.
    """

    launch: float = 1.0
    host_step: float = 1.0
    host_seq: float = 1.0
    wire: float = 1.0
    group: float = 1.0
    sigma: float | None = None
    points: int
    at_prior: tuple[str, ...] = ()
    before_mape: float | None = None
    after_mape: float | None = None
    left_out_mape: float | None = None
    source: str


class Calibration(_Strict, frozen=True, kw_only=True):
    """One machine under one framework."""

    name: str
    hardware: str
    framework: str
    source: str
    made_with: str
    notes: tuple[str, ...] = ()
    host: Host
    kernels: dict[str, KernelTable]
    wires: dict[str, WireTable] = {}
    served: Served | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the profile as plain dicts, lists, strings and numbers, absent keys left out."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


def calibration_folder() -> Path:
    """Return the folder of shipped profiles."""
    return data_folder("hardware") / "calibrations"


def calibration_names() -> list[str]:
    """Return the names of the shipped profiles, sorted."""
    return sorted(path.stem for path in calibration_folder().glob("*.toml"))


def read_profile(name_or_path: str) -> Calibration:
    """Return the checked profile with that shipped name, or in that `.toml` file.

    Raises:
        UnknownName: Neither shipped nor a file; the closest names are the way out.
        BadInput: The file cannot be read, or a value in it cannot be used.
    """
    path = Path(name_or_path)
    if not name_or_path.endswith(".toml") and os.sep not in name_or_path:
        path = calibration_folder() / f"{name_or_path.lower()}.toml"
        if name_or_path.lower() not in calibration_names():
            near = closest(name_or_path, calibration_names())
            raise UnknownName(
                "is not a calibration",
                where=name_or_path[:80],
                way_out=near or "use auto, none or a .toml file",
            )
    try:
        data = tomllib.loads(read_text(path, MAX_BYTES, "a calibration profile"))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise BadInput(
            f"cannot be read: {error}", where=str(path), way_out="give a calibration profile"
        ) from None
    return check_calibration(data, str(path))


def check_calibration(data: dict[str, Any], where: str) -> Calibration:
    """Return the profile in parsed TOML, every value of it checked; errors call it `where`.

    Raises:
        BadInput: An unknown, missing, mistyped or implausible value.
    """
    try:
        profile = msgspec.convert(data, Calibration)
    except (msgspec.ValidationError, OverflowError, RecursionError) as error:
        raise BadInput(str(error), where=where, way_out="see hardware/calibrations for examples") from None
    for key, reason in _faults(profile):
        raise BadInput(reason, where=where, key=key, way_out="seconds, bytes and shares of the peak, plain")
    return profile


def write_profile(profile: Calibration, path: Path) -> None:
    """Write a profile as TOML with its comments.

    Raises:
        BadInput: The file cannot be written.
    """
    write_whole(path, profile_toml(profile))


def profile_toml(profile: Calibration) -> str:
    """Return a profile as TOML: plain tables of numbers, words and lists of words."""
    comment = (
        f"{profile.hardware or 'Any machine'} under {profile.framework}: what kernels reach of the peaks.",
        "",
        "Seconds, bytes, and shares of the hardware profile's peaks. t0_s is paid per launch; the rest is",
        "the soft maximum of what keeps a kernel busy (kvroof/roofline/efficiency.py). Errors are shares",
        "of the measured time, over points not fitted that took over 20 us; sigma is of log residuals.",
    )
    return to_toml(profile.as_dict(), comment, digits=4)


def _faults(profile: Calibration) -> Iterator[tuple[str, str]]:
    groups: list[tuple[str, _Strict]] = [("host", profile.host)]
    groups += [("served", profile.served)] if profile.served else []
    groups += [(f"kernels.{name}", table) for name, table in profile.kernels.items()]
    groups += [(f"wires.{name}", table) for name, table in profile.wires.items()]
    for group, table in groups:
        for name in table.__struct_fields__:
            value = getattr(table, name)
            least, most = LEAST_AND_MOST.get(name, (float("-inf"), float("inf")))
            if isinstance(value, float) and not least <= value <= most:
                yield f"{group}.{name}", f"{value:g} is outside {least:g} to {most:g}"
    if not profile.kernels:
        yield "kernels", "has no kernel family"
    for name in profile.kernels:
        if not name.replace(".", "").replace("_", "").isalnum():
            yield "kernels", f"{name!r} is not a family"
