"""Where the catalog's files lie, and what a mistyped name was meant to be."""

from __future__ import annotations

import difflib
import itertools
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

_PACKAGE = Path(__file__).resolve().parent.parent
_LONGEST_TYPED = 200
MOST_NEARBY = 1000
"""Entries of a folder that are looked at."""


def data_folder(kind: Literal["hardware", "models"]) -> Path:
    """Return the folder of catalog files: inside the package in a wheel, beside it in a checkout."""
    inside = _PACKAGE / "_data" / kind
    return inside if inside.is_dir() else _PACKAGE.parent / kind


def nearby(name: str, ending: str, within: str | None = None) -> list[str]:
    """Return the files beside the place that `name` would have, and the folders that hold a file `within`.

    Args:
        name: What was typed for a file.
        ending: What files end in.
        within: What makes a folder one to name; none are, if left out.
    """
    folder = os.path.dirname(name)
    found = []
    try:
        with os.scandir(folder or ".") as entries:
            for entry in itertools.islice(entries, MOST_NEARBY):
                if entry.name.endswith(ending):
                    found.append(os.path.join(folder, entry.name))
                elif within is not None and os.path.isfile(os.path.join(entry.path, within)):
                    found.append(os.path.join(folder, entry.name, ""))
    except (OSError, ValueError):
        return []
    return sorted(found)


def closest(name: str, known: Iterable[str], count: int = 3) -> str:
    """Return `did you mean a, b or c?` with the known names most like `name`; empty if none is near.

    Names that begin with it come first, in the order in which they are known.
    """
    typed = name.strip().lower()[:_LONGEST_TYPED]
    spelled = {candidate.lower(): candidate for candidate in known}
    starting = [key for key in spelled if typed and key.startswith(typed)]
    alike = difflib.get_close_matches(typed, spelled, n=count)
    near = [spelled[key] for key in dict.fromkeys([*starting, *alike])][:count]
    if not near:
        return ""
    *others, last = near
    return f"did you mean {', '.join(others)} or {last}?" if others else f"did you mean {last}?"
