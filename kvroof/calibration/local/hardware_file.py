"""A hardware profile as a file: the TOML that the catalog's loader reads."""

from __future__ import annotations

from pathlib import Path

from kvroof.catalog.profile import Profile
from kvroof.catalog.toml import to_toml
from kvroof.catalog.whole_file import write_whole

HEADER = (
    "Written by kvroof calibrate. Base units: bytes, bytes/s, FLOP/s. Peaks are dense, links one way.",
    "Every value says how it was found; see `kvroof show` for the file as a table.",
)


def hardware_toml(profile: Profile) -> str:
    """Return a profile as TOML, a table for each value with its source."""
    return to_toml(profile.as_dict(), HEADER, digits=5)


def write_hardware(profile: Profile, path: Path) -> None:
    """Write a hardware profile.

    Raises:
        BadInput: The file cannot be written.
    """
    write_whole(path, hardware_toml(profile))
