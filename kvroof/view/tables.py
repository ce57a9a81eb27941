"""Tables as records: drawn on a console here, and on a page by `templates/parts.html`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from rich import box
from rich.console import Console, ConsoleOptions, Group, JustifyMethod, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Column
from rich.table import Table as Drawn
from rich.text import Text

from kvroof.ground.units import format_bytes

WHOLE_WORD = 24
"""Characters up to which a name is not broken where a table is wider than its place."""
GAP, TIGHT, EDGES = 3, 2, 2
"""Characters between two columns where there is room and where there is not, and at both ends of a row."""


class Table(NamedTuple):
    """A table: its first `left` columns are words, the others numbers, set right.

    Cells are shown as they are: a name is never read as markup.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the title and the table, no wider than the console where that can be."""
        between = len(self.columns) - 1
        widths = [self._widest(index) for index in range(len(self.columns))]
        tight = sum(widths) + GAP * between + EDGES > options.max_width
        if tight:
            widths = self._narrowed(options.max_width - TIGHT * between - EDGES)
        made = Drawn(
            box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=tight, show_header=any(self.columns)
        )
        for index, (name, width) in enumerate(zip(self.columns, widths, strict=True)):
            side: JustifyMethod = "left" if index < self.left else "right"
            made.add_column(Text(name), justify=side, overflow="fold", width=width)
        for row in self.rows:
            made.add_row(*(Text(cell) for cell in row))
        yield Text(self.title, style="bold")
        yield made

    def _cells(self, index: int) -> list[str]:
        return [row[index] for row in self.rows]

    def _widest(self, index: int) -> int:
        return max(map(len, [*self.columns[index].split("\n"), *self._cells(index)]))

    def _narrowed(self, room: int) -> list[int]:
        """Return widths that add up to `room`: headings are broken first, then words, numbers last of all."""
        least = []
        for index, name in enumerate(self.columns):
            cells, heading = self._cells(index), _longest_word([name])
            words = index < self.left
            body = min(_longest_word(cells), WHOLE_WORD) if words else max(map(len, cells), default=0)
            least.append(max(heading, body))
        if sum(least) > room:
            least = [_longest_word([n, *self._cells(i)]) for i, n in enumerate(self.columns)]
        widths, spare = list(least), room - sum(least)
        while spare > 0:
            wanting = [i for i, width in enumerate(widths) if width < self._widest(i)]
            if not wanting:
                break
            poorest = min(wanting, key=lambda i: widths[i])
            widths[poorest] += 1
            spare -= 1
        return widths


def _longest_word(texts: Sequence[str]) -> int:
    return max((len(word) for text in texts for word in text.split()), default=1)


def verdict(good: bool, text: str) -> Text:
    """Return the sentence that answers, with a mark that is read without colour too."""
    return Text(f"{'YES' if good else 'NO'}  {text}", style="bold green" if good else "bold red")


def notes(title: str, lines: Iterable[str]) -> Padding:
    """Return sentences under a heading."""
    listed = Drawn.grid(Column(width=3), Column(overflow="fold"), padding=(0, 1, 0, 0))
    for line in lines:
        listed.add_row("  -", Text(line), style="dim")
    return Padding(Group(Text(title, style="bold"), listed), (0, 0, 1, 0))


def copied(title: str, lines: Iterable[str]) -> Iterator[RenderableType]:
    """Yield lines under a heading, each whole on one line however long, to be copied."""
    yield Text(title, style="bold")
    for line in lines:
        yield Text(line, no_wrap=True)
    yield Text("")


def size(value: float) -> str:
    """Return a size with its exact bytes, where it is large enough for both to matter."""
    return f"{format_bytes(value)} ({value:,.0f} B)" if abs(value) >= 1024 else format_bytes(value)
