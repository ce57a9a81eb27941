"""What a verb that takes seconds shows meanwhile: on a terminal's standard error, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")


def _console() -> Console:
    from rich.console import Console

    return Console(stderr=True)


def steps(items: Iterable[T], what: str = "solving") -> Iterator[T]:
    """Yield the items under a bar that says how many are done."""
    from rich.progress import track

    console = _console()
    yield from track(list(items), what, console=console, transient=True, disable=not console.is_terminal)


def working(what: str) -> AbstractContextManager[Any]:
    """Return a context in which a line says what is being worked out."""
    console = _console()
    return console.status(what) if console.is_terminal else nullcontext()


@contextmanager
def measuring() -> Iterator[Callable[[str, int, int], None]]:
    """Give what draws a bar from what is measured, how many are done, and of how many."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = _console()
    with Progress(
        TextColumn("measuring"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)
