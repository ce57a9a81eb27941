"""Where a verb's record goes: JSON for programs, a table for people."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import RenderableType


PIPED_WIDTH = 120
"""Columns of a table that goes to a file or a pipe, where nobody said how many there are."""


def print_json(answer: Any) -> None:
    """Print a record, or records, as JSON."""
    click.echo(json.dumps(plain(answer), indent=1))


def print_view(parts: Iterable[RenderableType]) -> None:
    """Print what a view made of a record; verbs import their view only when they print one."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PIPED_WIDTH
    with console.capture() as captured:
        for part in parts:
            console.print(part, soft_wrap=isinstance(part, Text) and bool(part.no_wrap))
    lines = captured.get().split("\n")
    click.echo("\n".join(lines if console.is_terminal else map(str.rstrip, lines)), nl=False)


def plain(value: Any) -> Any:
    """Return records as mappings, with `from_` under its own name."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {f.name.rstrip("_"): plain(getattr(value, f.name)) for f in fields}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value
