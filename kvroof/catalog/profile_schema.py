"""Parsed TOML against the tables of a profile: everything that does not fit them, in one go."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from kvroof.catalog.names import closest
from kvroof.catalog.profile import LinkTable, OtherFigure, Peak, Peaks, Profile, Rate

Fault: TypeAlias = tuple[str, str, str]
"""The key, the reason and the way out."""
MOST_FAULTS = 40
EXAMPLE = "`kvroof show h100-sxm --toml` prints a complete profile"
MEASURED = 'say where the number comes from, e.g. source = "my own measurement"'


def conform(data: dict[str, Any], donor: Callable[[], dict[str, Any]]) -> tuple[Profile | None, list[Fault]]:
    """Return the profile in parsed TOML and what does not fit; None where that hides the rest.

    The reader stops at the first misfit. Each is set right with what `donor` gives, a profile that fits,
    has in its place, or left out, and the rest is read again.
    """
    faults: list[Fault] = []
    while True:
        try:
            return msgspec.convert(data, Profile), faults
        except (msgspec.ValidationError, OverflowError, RecursionError) as error:
            faults.append(_fault(str(error)))
        key, *_ = faults[-1]
        try:
            data = copy.deepcopy(data)
        except RecursionError:
            return None, faults
        if len(faults) == MOST_FAULTS or not _mend(data, key, donor()):
            return None, faults


def _fault(message: str) -> Fault:
    """Return msgspec's complaint as ours, with the key taken out of its path and a way out."""
    reason, _, key = message.partition(" - at `$")
    key = key.strip(".`")
    field = re.search(r"(missing required|contains unknown) field `(.*)`", reason)
    if field is None:
        if "Expected `object" in reason:
            return key, "is not a table", _table(key)
        whole = "Expected `int" in reason
        return key, reason, "write a whole number, e.g. 80_000_000_000" if whole else EXAMPLE
    key = f"{key}.{field[2]}".lstrip(".")
    if field[1] == "contains unknown":
        tables = (Profile, Peaks, LinkTable, Peak, Rate, OtherFigure)
        known = {name for table in tables for name in table.__struct_fields__}
        return key, "unknown key", closest(field[2], sorted(known)) or "leave it out, or check its spelling"
    return key, "missing", MEASURED if field[2] == "source" else f"add {field[2]}; {EXAMPLE}"


def _table(key: str) -> str:
    """Return how the table of a value is written."""
    link = key.startswith(("scale_", "host"))
    declared = 'density = "dense", ' if key.startswith("peak_") else 'direction = "one-way", ' * link
    return f'write it like {{ value = 3.35e12, {declared}source = "my own measurement" }}'


def _mend(data: Any, key: str, donor: Any) -> bool:
    """Put what the donor has into the place of a key, or leave the key out; return whether that helps.

    What the donor lacks, such as a peak, is taken from its neighbour. An item of a list takes the list along.
    """
    place, listed, _ = key.partition("[")
    *path, last = place.split(".")
    for name in path:
        data = data.get(name) if isinstance(data, dict) else None
        donor = donor.get(name) or donor.get("bf16") or donor.get("bytes_per_s") or {}
    if not isinstance(data, dict):
        return False
    if not listed and last in donor:
        data[last] = donor[last]
        return True
    return data.pop(last, None) is not None
