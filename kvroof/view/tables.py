"""The look that all tables share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvroof.ground.units import format_bytes

WHOLE_WORD = 24
"""Characters up to which a name is not broken where a table is wider than its place."""


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> Group:
    """Return a table whose first `left` columns are words and the others are numbers, set right.

    Cells are shown as they are: a name is never read as markup.
    """
    made, lines = Table(box=box.SIMPLE_HEAD, pad_edge=False), [tuple(row) for row in rows]
    for index, name in enumerate(columns):
        word = max((len(line[index]) for line in lines), default=0) if index < left else 0
        made.add_column(
            Text(name),
            justify="left" if index < left else "right",
            overflow="fold",
            min_width=min(word, WHOLE_WORD) or None,
        )
    for row in lines:
        made.add_row(*(Text(cell) for cell in row))
    return Group(Text(title, style="bold"), made)


def verdict(good: bool, text: str) -> Text:
    """Return the sentence that answers, with a mark that is read without colour too."""
    return Text(f"{'YES' if good else 'NO'}  {text}", style="bold green" if good else "bold red")


def notes(title: str, lines: Iterable[str]) -> Padding:
    """Return sentences under a heading."""
    text = Text(f"{title}\n", style="bold")
    text.append("\n".join(f"  - {line}" for line in lines), style="not bold dim")
    return Padding(text, (0, 0, 1, 0))


def size(value: float) -> str:
    """Return a size with its exact bytes, where it is large enough for both to matter."""
    return f"{format_bytes(value)} ({value:,.0f} B)" if abs(value) >= 1024 else format_bytes(value)
