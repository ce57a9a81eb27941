"""What does speed for one user cost in throughput: tokens per second per user against per device."""

from __future__ import annotations

from collections.abc import Sequence
from math import log10
from typing import Literal, NamedTuple

from plotly.graph_objects import Figure, Scatter

from kvroof.ground.units import format_time
from kvroof.view.theme import Axis, frame, literal, style

ALIKE = 0.99
"""Share of the best from which the first deployment is named for it."""


class Operating(NamedTuple):
    """One operating point: what a user sees, what a device gives, and how it is run."""

    tokens_per_s_per_user: float
    tokens_per_s_per_device: float
    ttft_s: float
    label: str


class Curve(NamedTuple):
    """The operating points of one deployment, in the order of their load; `note` says what the times are."""

    name: str
    mode: Literal["aggregated", "disaggregated"]
    points: tuple[Operating, ...]
    note: str


def latency_frontier(curves: Sequence[Curve], asked: str) -> Figure:
    """Return throughput per device against speed per user, a line per deployment.

    Aggregated deployments have full lines and filled marks, disaggregated ones dashed lines and open marks.

    Args:
        curves: The deployments.
        asked: The requests, in words.
    """
    points = [(curve, point) for curve in curves for point in curve.points]
    figure = frame(
        _answer(points),
        Axis("speed for one user, tokens/s"),
        Axis("throughput, tokens/s per device", "log"),
        [
            asked,
            "the number beside a line is its heaviest load",
            *dict.fromkeys(curve.note for curve in curves),
        ],
        alt="Throughput per device against speed per user for " + ", ".join(curve.name for curve in curves),
    )
    for number, curve in enumerate(curves):
        look, split = style(number), curve.mode == "disaggregated"
        figure.add_trace(
            Scatter(
                x=[p.tokens_per_s_per_user for p in curve.points],
                y=[p.tokens_per_s_per_device for p in curve.points],
                customdata=[[literal(p.label), format_time(p.ttft_s)] for p in curve.points],
                mode="lines+markers",
                name=literal(f"{curve.name}, {curve.mode}" if split else curve.name),
                line={"color": look.colour, "width": 2, "dash": "dash" if split else "solid"},
                marker={
                    "symbol": look.marker + ("-open" if split else ""),
                    "size": 9,
                    "color": look.colour,
                    "line": {"width": 2 if split else 0, "color": look.colour},
                },
                hovertemplate="%{customdata[0]}: %{x:,.3g} tokens/s per user, %{y:,.4g} per device,"
                " TTFT %{customdata[1]}<extra>%{fullData.name}</extra>",
            )
        )
        _heaviest(figure, curve)
    figure.update_xaxes(rangemode="tozero")
    figure.update_yaxes(dtick="D2", tickformat=",")
    return figure


def _answer(points: Sequence[tuple[Curve, Operating]]) -> str:
    most = max(point.tokens_per_s_per_device for _, point in points)
    fast = max(point.tokens_per_s_per_user for _, point in points)
    widest = next(c.name for c, point in points if point.tokens_per_s_per_device >= ALIKE * most)
    quickest = next(c.name for c, point in points if point.tokens_per_s_per_user >= ALIKE * fast)
    return (
        f"most throughput: {most:,.0f} tokens/s per device ({widest});"
        f" fastest for one user: {fast:,.0f} tokens/s ({quickest})"
    )


def _heaviest(figure: Figure, curve: Curve) -> None:
    """Write the heaviest load beside the last mark of a line."""
    last = curve.points[-1]
    figure.add_annotation(
        x=last.tokens_per_s_per_user,
        y=log10(last.tokens_per_s_per_device),
        text=literal(last.label),
        showarrow=False,
        xanchor="left",
        xshift=9,
        yshift=9,
        font={"size": 12},
    )
