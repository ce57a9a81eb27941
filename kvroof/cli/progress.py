"""What a verb that takes seconds shows meanwhile: on a terminal's standard error, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

T = TypeVar("T")


def steps(items: Iterable[T], what: str = "solving") -> Iterator[T]:
    """Yield the items under a bar that says how many are done."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    yield from track(list(items), what, console=console, transient=True, disable=not console.is_terminal)


def working(what: str) -> AbstractContextManager[Any]:
    """Return a context in which a line says what is being worked out."""
    from rich.console import Console

    console = Console(stderr=True)
    return console.status(what) if console.is_terminal else nullcontext()
