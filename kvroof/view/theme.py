"""The look that all figures share: colours that colour-blind people tell apart, and never colour alone.

A figure's title states its answer, its caption the assumptions. Both are kept as they are in the figure's
`meta`, so that a page can set them as text of its own; here they are wrapped and drawn, so that a figure
that stands alone, in print or in a notebook, has them too.
"""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from plotly.graph_objects import Figure as Figure

from kvroof.ground.units import GIB, KIB, MIB, TIB
from kvroof.roofline.efficiency import GENERIC
from kvroof.serving.latency import Calibration

BLUE, VERMILLION, GREEN, ORANGE = "#0072B2", "#D55E00", "#009E73", "#E69F00"
PURPLE, SKY, BLACK = "#CC79A7", "#56B4E9", "#000000"
COLOURS = (BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY, BLACK)
"""Okabe and Ito's palette less its yellow, which white paper swallows.

Source: Okabe and Ito 2008, Color Universal Design.
"""
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "5px,2px,2px,2px")
MARKERS = ("circle", "square", "diamond", "triangle-up", "x", "cross", "star")
HATCHES = ("", "/", "x", "\\", ".", "-", "+")
GREY, INK, RULE = "#767676", "#222222", "#D9D9D9"

WIDTH_PX, HEIGHT_PX = 1000, 600
TITLE_CHARS, CAPTION_CHARS = 88, 150
TITLE_LINE_PX, CAPTION_LINE_PX = 24, 16
CAPTION = "caption"
"""Name of the annotation that draws the caption."""
DETAIL = "detail"
"""Name of annotations that a page on a narrow screen leaves out; the numbers below it have them."""


class Style(NamedTuple):
    """What tells one series from the others: each of the four by itself."""

    colour: str
    dash: str
    marker: str
    hatch: str


class Axis(NamedTuple):
    """An axis: its title with the unit, and whether it is logarithmic."""

    title: str
    kind: Literal["linear", "log", "category"] = "linear"


def style(number: int) -> Style:
    """Return the style of the series with that number; they repeat after seven."""
    place = number % len(COLOURS)
    return Style(COLOURS[place], DASHES[place], MARKERS[place], HATCHES[place])


def tint(colour: str, strength: float = 0.45) -> str:
    """Return a colour mixed with white, on which text can be read."""
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(255 - (255 - part) * strength):02X}" for part in parts)


def look_of(axis: Any) -> dict[str, Any]:
    """Return what an axis looks like, less its place, for the other axes of the same figure."""
    return {key: value for key, value in axis.to_plotly_json().items() if key not in ("anchor", "domain")}


def literal(text: str) -> str:
    """Return text that a figure shows as it is: plotly reads tags and entities in what it is given."""
    return html.escape(text, quote=False)


def calibrated(calibration: Calibration | None) -> str:
    """Return the sentence of a caption that says what the times are."""
    if calibration is None:
        return "no calibration: times are bounds, not predictions"
    error = calibration.held_out_mape
    off = "" if error is None else f", kernels off by {error:.0%} on points not fitted"
    if calibration.name == GENERIC:
        return f"times of a typical machine, not of this one{off}"
    return f"calibrated with {calibration.name}{off}"


def each_calibrated(held: Sequence[tuple[str, Calibration | None]]) -> list[str]:
    """Return the clauses of a caption that say what the times of each are, once where all are alike."""
    said: dict[str, list[str]] = {}
    for name, calibration in held:
        said.setdefault(calibrated(calibration), []).append(name)
    if len(said) == 1:
        return list(said)
    return [f"{', '.join(dict.fromkeys(names))}: {clause}" for clause, names in said.items()]


def frame(title: str, x: Axis, y: Axis, caption: Sequence[str], *, alt: str = "") -> Figure:
    """Return a figure without traces.

    Args:
        title: The answer, in plain text.
        x: The horizontal axis.
        y: The vertical axis.
        caption: Clauses: what is assumed, and with which calibration.
        alt: What the figure shows, for those who do not see it; the title where it is left out.
    """
    title, said = _sentence(title), _sentence("; ".join(clause for clause in caption if clause)) + "."
    figure = Figure()
    figure.update_layout(
        meta={"title": title, "caption": said, "alt": alt or title},
        template="none",
        width=None,
        height=HEIGHT_PX,
        font={"family": "Helvetica, Arial, 'Liberation Sans', sans-serif", "size": 14, "color": INK},
        colorway=list(COLOURS),
        paper_bgcolor="white",
        plot_bgcolor="white",
        hoverlabel={"bgcolor": "white", "font": {"color": INK}},
        legend={"bgcolor": "rgba(255,255,255,0.85)", "tracegroupgap": 4},
    )
    figure.update_xaxes(**_axis(x))
    figure.update_yaxes(**_axis(y))
    _draw_words(figure, title, said)
    return figure


def _sentence(text: str) -> str:
    """Return text that begins with a capital, unless it begins with a name that is no word."""
    first = text.partition(" ")[0].rstrip(":,")
    return text[:1].upper() + text[1:] if first.isalpha() and first.islower() else text


def _axis(axis: Axis) -> dict[str, Any]:
    return {
        "title": {"text": axis.title, "standoff": 10},
        "type": axis.kind,
        "automargin": True,
        "showgrid": True,
        "gridcolor": RULE,
        "showline": True,
        "linecolor": INK,
        "ticks": "outside",
        "tickcolor": INK,
        "zeroline": False,
        "exponentformat": "SI",
    }


def _even_lines(text: str, most: int) -> list[str]:
    """Return text in as few lines of at most `most` characters as hold it, about equally long.

    A number stays beside its unit.
    """
    text = re.sub(r"(?<=\d) (?=(?:[mµ]?s|[KMGT]i?B|%)(?:\W|$))", "\N{NO-BREAK SPACE}", text)
    fewest = len(textwrap.wrap(text, most))
    for width in range(-(-len(text) // max(fewest, 1)), most):
        if len(lines := textwrap.wrap(text, width)) == fewest:
            return lines
    return textwrap.wrap(text, most)


def _draw_words(figure: Figure, title: str, caption: str) -> None:
    """Set the title above the plot and the caption below it, wrapped, with the room that they take."""
    heads, lines = _even_lines(title, TITLE_CHARS), textwrap.wrap(caption, CAPTION_CHARS)
    below = 66 + CAPTION_LINE_PX * len(lines)
    figure.update_layout(
        title={
            "text": "<br>".join(f"<b>{literal(head)}</b>" for head in heads),
            "font": {"size": 17},
            "x": 0,
            "xref": "paper",
            "xanchor": "left",
            "y": 1,
            "yref": "container",
            "yanchor": "top",
            "pad": {"t": 16 + TITLE_LINE_PX * (len(heads) - 1) // 2},
        },
        margin={"l": 80, "r": 30, "t": 30 + TITLE_LINE_PX * len(heads), "b": below},
    )
    figure.add_annotation(
        name=CAPTION,
        text="<br>".join(literal(line) for line in lines),
        showarrow=False,
        align="left",
        x=0,
        xref="paper",
        xanchor="left",
        y=0,
        yref="paper",
        yanchor="top",
        yshift=-58,
        font={"size": 12, "color": "#555555"},
    )


class Words(NamedTuple):
    """What a figure says beside its picture."""

    title: str
    caption: str
    alt: str


def words(figure: Figure) -> Words:
    """Return a figure's title, caption and description as plain text."""
    meta = figure.layout.meta
    return Words(meta["title"], meta["caption"], meta["alt"])


def bare(figure: Figure) -> Figure:
    """Return a copy without the title and the caption, for a page that sets them as text."""
    made = Figure(figure)
    made.layout.title = None
    made.layout.annotations = [a for a in made.layout.annotations if a.name != CAPTION]
    made.layout.margin = {"l": 70, "r": 20, "t": 24, "b": 60}
    made.layout.meta = None
    return made


def powers_of_two(figure: Figure, axis: Literal["x", "y"], low: float, high: float, step: int = 4) -> None:
    """Put the ticks of a logarithmic axis of tokens or bytes on powers of `step`, written out."""
    ticks, value = [], 1
    while value <= high * step:
        if value * step >= low:
            ticks.append(value)
        value *= step
    shown = [binary(t) if axis == "y" else f"{t:,}" for t in ticks]
    figure.update_layout({f"{axis}axis": {"tickvals": ticks, "ticktext": shown, "minor": {"ticks": ""}}})


def binary(size: float) -> str:
    """Return a size of a tick, e.g. `16 MiB`."""
    for unit, scale in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size >= scale:
            return f"{size / scale:,.0f} {unit}"
    return f"{size:,.0f} B"
