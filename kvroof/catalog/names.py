"""Where the catalog's files lie, and what a mistyped name was meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

_PACKAGE = Path(__file__).resolve().parent.parent
_LONGEST_TYPED = 200


def data_folder(kind: Literal["hardware", "models"]) -> Path:
    """Return the folder of catalog files: inside the package in a wheel, beside it in a checkout."""
    inside = _PACKAGE / "_data" / kind
    return inside if inside.is_dir() else _PACKAGE.parent / kind


def closest(name: str, known: Iterable[str], count: int = 3) -> str:
    """Return `did you mean a, b or c?` with the known names most like `name`; empty if none is near."""
    typed = name.strip().lower()[:_LONGEST_TYPED]
    spelled = {candidate.lower(): candidate for candidate in known}
    starting = sorted(key for key in spelled if typed and key.startswith(typed))
    alike = difflib.get_close_matches(typed, spelled, n=count)
    near = [spelled[key] for key in dict.fromkeys([*starting, *alike])][:count]
    if not near:
        return ""
    *others, last = near
    return f"did you mean {', '.join(others)} or {last}?" if others else f"did you mean {last}?"
