"""Figures and tables as one HTML file that needs no network: everything it shows is in it.

Text goes through a template that escapes it, so that a model may be called anything. A figure's title and
caption become text of the page, and its numbers a table, which is what a screen reader gets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.graph_objects import Figure
from plotly.offline import get_plotlyjs

from kvroof import __version__
from kvroof.view.tables import Table
from kvroof.view.theme import bare, words

MOST_ROWS = 400
"""Numbers of a figure beyond which they are not written out as a table."""
_FOLDER = "templates"


class Panel(NamedTuple):
    """A figure as a page takes it."""

    key: str
    title: str
    caption: str
    alt: str
    json: Markup
    data: Table | None


def panel(figure: Figure, key: str) -> Panel:
    """Return a figure for a page, `key` being its anchor there."""
    said = words(figure)
    return Panel(
        key=key,
        title=said.title,
        caption=said.caption,
        alt=said.alt,
        json=_json(bare(figure)),
        data=_numbers(figure),
    )


def figure_page(figure: Figure, command: str = "") -> str:
    """Return a page with one figure, and the command that makes it again."""
    return render("figure.html", {"panel": panel(figure, "figure"), "command": command})


def render(template: str, values: Mapping[str, Any]) -> str:
    """Return the page that a template makes of some values, all of them escaped."""
    environment = Environment(
        loader=PackageLoader("kvroof.view", _FOLDER),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    return environment.get_template(template).render(
        **values,
        version=__version__,
        css=_file(environment, "page.css"),
        script=_file(environment, "figures.js"),
        plotly=Markup(get_plotlyjs()),
    )


def _file(environment: Environment, name: str) -> Markup:
    assert environment.loader is not None
    return Markup(environment.loader.get_source(environment, name)[0])


def _json(figure: Figure) -> Markup:
    """Return a figure as JSON that can stand inside a script element: no `<` ends it."""
    return Markup(figure.to_json().replace("<", "\\u003c").replace("\u2028", "").replace("\u2029", ""))


def _numbers(figure: Figure) -> Table | None:
    """Return the numbers that a figure shows, None where they are too many to read."""
    drawn = [trace for trace in figure.data if trace.hoverinfo != "skip"]
    axes = [_axes(figure, trace) for trace in drawn]
    several = len(set(axes)) > 1
    rows = [
        (f"{name}: {y} by {x}" if several else name, *cells)
        for trace, (x, y) in zip(drawn, axes, strict=True)
        for name, *cells in _rows(trace)
    ]
    if not rows or len(rows) > MOST_ROWS:
        return None
    columns = ("series", *(("across", "up") if several else axes[0]), "words")
    return Table(title=f"Numbers: {words(figure).title}", columns=columns, rows=rows, left=2)


def _axes(figure: Figure, trace: Any) -> tuple[str, str]:
    """Return the titles of the axes that a trace is drawn on."""
    names = (f"xaxis{(trace.xaxis or 'x')[1:]}", f"yaxis{(trace.yaxis or 'y')[1:]}")
    x, y = (_plain(figure.layout[name].title.text) for name in names)
    return x, y


def _rows(trace: Any) -> Iterator[tuple[str, ...]]:
    """Yield what each mark of a trace stands for: series, place, value and words."""
    name = _plain(trace.name or "")
    if trace.type == "heatmap":
        for y, row in zip(trace.y, trace.text, strict=True):
            yield from (
                (name, _shown(x), _shown(y), _plain(t)) for x, t in zip(trace.x, row, strict=True) if t
            )
        return
    said: Sequence[Any] = trace.text if isinstance(trace.text, (list, tuple)) else [""] * len(trace.x)
    if trace.type == "bar" and trace.base is not None:
        said = [f"{text} from {_shown(base)}".strip() for text, base in zip(said, trace.base, strict=True)]
    for x, y, text in zip(trace.x, trace.y, said, strict=True):
        yield name, _shown(x), _shown(y), _plain(str(text))


def _plain(text: str) -> str:
    return Markup(text.replace("<br>", " ")).unescape()


def _shown(value: Any) -> str:
    return _plain(value) if isinstance(value, str) else f"{value:,.6g}"
