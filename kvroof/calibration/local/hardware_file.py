"""A hardware profile as a file: the TOML that the catalog's loader reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvroof.catalog.profile import Profile
from kvroof.catalog.whole_file import write_whole

HEADER = (
    "# Written by kvroof calibrate. Base units: bytes, bytes/s, FLOP/s. Peaks are dense, links one way.",
    "# Every value says how it was found; see `kvroof show` for the file as a table.",
)


def hardware_toml(profile: Profile) -> str:
    """Return a profile as TOML, a table for each value with its source."""
    return "\n".join((*HEADER, "", *_lines("", profile.as_dict()))) + "\n"


def write_hardware(profile: Profile, path: Path) -> None:
    """Write a hardware profile.

    Raises:
        BadInput: The file cannot be written.
    """
    write_whole(path, hardware_toml(profile))


def _lines(name: str, table: dict[str, Any]) -> Iterator[str]:
    """Yield a table's own values, then its tables."""
    plain = {key: value for key, value in table.items() if not isinstance(value, dict)}
    if name and plain:
        yield f"\n[{name}]"
    for key, value in plain.items():
        yield f"{key} = {_value(value)}"
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _lines(f"{name}.{key}" if name else key, value)


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.4e}"
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)
