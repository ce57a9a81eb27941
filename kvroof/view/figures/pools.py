"""One pool or two: where splitting prefill from decode wins, by lengths or by rate and limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import product
from math import exp, isinf

from plotly.graph_objects import Figure, Heatmap

from kvroof.serving.pools.pool_choice import Choice, Verdict
from kvroof.view.figures.pool_case import pool_case
from kvroof.view.theme import BLUE, INK, VERMILLION, Axis, frame, tint
from kvroof.view.words import WAYS

TIE = "#E9E9E9"
"""Colour of a difference within the model's error."""
FAINTEST = 0.25
"""Strength of the colour of the smallest win, so that no win looks like a tie."""
LIMIT = 1.0
"""Log ratio of goodputs beyond which the colour does not deepen."""


def pool_map(
    choices: Sequence[Sequence[Choice | None]],
    x: tuple[str, Sequence[float]],
    y: tuple[str, Sequence[float]],
    asked: str,
    note: str,
) -> Figure:
    """Return which way wins over a grid, with the goodput of two pools over that of one pool.

    Blue and `two pools` where they serve more, vermillion and `one pool` where it does, grey and `tie` where
    the difference is within the model's error. A grid of one cell is drawn as the two goodputs instead.

    Args:
        choices: A row per value of `y` with a column per value of `x`; None where neither keeps the limits.
        x: Title with unit, and the values.
        y: Title with unit, and the values.
        asked: Model, machines and limits, in words.
        note: What the times are.
    """
    if len(choices) == len(choices[0]) == 1 and choices[0][0] is not None:
        case = ", ".join(f"{values[0]:,g} {title.replace(', ', ' ')}" for title, values in (x, y))
        return pool_case(choices[0][0], case, asked, note)
    known = [choice for row in choices for choice in row if choice is not None]
    figure = frame(
        _answer(known),
        Axis(x[0], "category"),
        Axis(y[0], "category"),
        [
            asked,
            "numbers: goodput of two pools over one pool's, with the same devices and limits",
            "a tie is a difference within the model's error",
            "'neither': no way keeps the limits at any rate"
            if len(known) < len(choices) * len(choices[0])
            else "",
            note,
        ],
        alt=f"Map of {y[0]} against {x[0]}: where two pools serve more than one, prefill and decode apart",
    )
    figure.add_trace(
        Heatmap(
            x=[f"{value:,g}" for value in x[1]],
            y=[f"{value:,g}" for value in y[1]],
            z=[[_depth(choice) for choice in row] for row in choices],
            text=[[_cell(choice) for choice in row] for row in choices],
            texttemplate="%{text}",
            textfont={"color": INK, "size": 14},
            colorscale=[
                (0, tint(VERMILLION, 0.75)),
                (0.499, tint(VERMILLION, FAINTEST)),
                (0.499, TIE),
                (0.501, TIE),
                (0.501, tint(BLUE, FAINTEST)),
                (1, tint(BLUE, 0.75)),
            ],
            zmin=-LIMIT,
            zmax=LIMIT,
            showscale=False,
            name="goodput, two pools over one",
            hovertemplate=x[0] + " %{x}<br>" + y[0] + " %{y}<br>%{text}<extra></extra>",
        )
    )
    for row, column in product(range(len(y[1])), range(len(x[1]))):
        corners = {"x0": column - 0.5, "x1": column + 0.5, "y0": row - 0.5, "y1": row + 0.5}
        figure.add_shape(type="rect", line={"color": INK, "width": 1}, **corners)
    figure.update_xaxes(showgrid=False, range=[-0.5, len(x[1]) - 0.5])
    figure.update_yaxes(showgrid=False, range=[-0.5, len(y[1]) - 0.5])
    return figure


def _answer(known: Sequence[Choice]) -> str:
    if not known:
        return "neither one pool nor two keep the limits anywhere on the map"
    said: dict[Verdict, str] = {
        "aggregate": "one pool wins {}",
        "disaggregate": "two pools win {}",
        "tie": "{} tie",
    }
    counts = Counter(choice.verdict for choice in known)
    won = ", ".join(text.format(counts[way]) for way, text in said.items() if counts[way])
    return f"of {len(known)} case{'s' * (len(known) > 1)} that can be served, {won}"


def _depth(choice: Choice | None) -> float | None:
    """Return how deep a cell is coloured, a tie not at all."""
    if choice is None or choice.verdict == "tie":
        return 0.0 if choice else None
    return max(-LIMIT, min(LIMIT, choice.log_ratio))


def _cell(choice: Choice | None) -> str:
    if choice is None:
        return "neither"
    if isinf(choice.log_ratio):
        return f"only {WAYS[choice.verdict]}"
    return f"{WAYS[choice.verdict]}<br>{exp(choice.log_ratio):.2f}x"
