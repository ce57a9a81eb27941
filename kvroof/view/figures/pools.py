"""One pool or two: where splitting prefill from decode wins, by lengths or by rate and limit."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, isinf

from plotly.graph_objects import Figure, Heatmap

from kvroof.serving.pools.pool_choice import Choice
from kvroof.view.theme import BLUE, INK, VERMILLION, Axis, frame, tint

WORDS = {"aggregate": "one pool", "disaggregate": "split", "tie": "tie"}
LIMIT = 1.0
"""Log ratio of goodputs beyond which the colour does not deepen."""


def pool_map(
    choices: Sequence[Sequence[Choice | None]],
    x: tuple[str, Sequence[float]],
    y: tuple[str, Sequence[float]],
    asked: str,
    note: str,
) -> Figure:
    """Return which way wins over a grid, with the goodput of split pools over that of one pool.

    Blue and `split` where two pools serve more, vermillion and `one pool` where one does, white and `tie`
    where the difference is within the model's error.

    Args:
        choices: A row per value of `y` with a column per value of `x`; None where neither keeps the limits.
        x: Title with unit, and the values.
        y: Title with unit, and the values.
        asked: Model, machines and limits, in words.
        note: What the times are.
    """
    known = [choice for row in choices for choice in row if choice is not None]
    figure = frame(
        _answer(known),
        Axis(x[0], "category"),
        Axis(y[0], "category"),
        [
            asked,
            "numbers: goodput of split pools over one pool's, with the same devices and limits",
            "a tie is a difference within the model's error; 'neither' keeps the limits at no rate",
            note,
        ],
        alt=f"Map of {y[0]} against {x[0]}: where prefill and decode pools serve more than one pool",
    )
    figure.add_trace(
        Heatmap(
            x=[f"{value:,g}" for value in x[1]],
            y=[f"{value:,g}" for value in y[1]],
            z=[[_depth(choice) for choice in row] for row in choices],
            text=[[_cell(choice) for choice in row] for row in choices],
            texttemplate="%{text}",
            textfont={"color": INK, "size": 12},
            colorscale=[(0, tint(VERMILLION, 0.7)), (0.5, "white"), (1, tint(BLUE, 0.7))],
            zmin=-LIMIT,
            zmax=LIMIT,
            xgap=2,
            ygap=2,
            showscale=False,
            name="goodput, split over one pool",
            hovertemplate=x[0] + " %{x}<br>" + y[0] + " %{y}<br>%{text}<extra></extra>",
        )
    )
    figure.update_xaxes(showgrid=False)
    figure.update_yaxes(showgrid=False)
    return figure


def _answer(known: Sequence[Choice]) -> str:
    if not known:
        return "neither one pool nor two keep the limits anywhere on the map"
    counts = {word: sum(c.verdict == verdict for c in known) for verdict, word in WORDS.items()}
    return (
        f"of {len(known)} cases that can be served, split pools win {counts['split']}, one pool"
        f" {counts['one pool']}, {counts['tie']} are ties"
    )


def _depth(choice: Choice | None) -> float | None:
    """Return how deep a cell is coloured, a tie not at all."""
    if choice is None or choice.verdict == "tie":
        return 0.0 if choice else None
    return max(-LIMIT, min(LIMIT, choice.log_ratio))


def _cell(choice: Choice | None) -> str:
    if choice is None:
        return "neither"
    if isinf(choice.log_ratio):
        return f"only {WORDS[choice.verdict]}"
    return f"{WORDS[choice.verdict]}<br>{exp(choice.log_ratio):.2f}x"
