"""What does speed for one user cost in throughput: tokens per second per user against per device."""

from __future__ import annotations

from collections.abc import Sequence
from math import log10
from typing import Literal, NamedTuple

from plotly.graph_objects import Figure, Scatter

from kvroof.ground.units import format_time
from kvroof.serving.latency import Calibration
from kvroof.view.speed import Evidence, evidence_of
from kvroof.view.theme import Axis, each_calibrated, frame, literal, style

DASHES: dict[Evidence, tuple[str, str]] = {
    "calibrated": ("solid", "dash"),
    "typical": ("longdash", "longdashdot"),
    "bounds": ("dot", "dashdot"),
}
"""Of one pool and of two, by what the times are where they differ in that."""
ALIKE = 0.99
"""Share of the best from which the first deployment is named for it."""


class Operating(NamedTuple):
    """One operating point: what a user sees, what a device gives, and how it is run."""

    tokens_per_s_per_user: float
    tokens_per_s_per_device: float
    ttft_s: float
    label: str


class Curve(NamedTuple):
    """The operating points of one deployment, in the order of their load; without a calibration bounds."""

    name: str
    mode: Literal["aggregated", "disaggregated"]
    points: tuple[Operating, ...]
    calibration: Calibration | None


def latency_frontier(curves: Sequence[Curve], asked: str) -> Figure:
    """Return throughput per device against speed per user, a line per deployment.

    Aggregated deployments have full lines and filled marks, disaggregated ones dashed lines and open marks.
    Where some are calibrated and others bounds, each kind has its own dashes and its own best: a bound is
    about twice as fast as what is measured.

    Args:
        curves: The deployments.
        asked: The requests, in words.
    """
    mixed = len({evidence_of(curve.calibration) for curve in curves}) > 1
    figure = frame(
        _answer(curves, mixed),
        Axis("speed for one user, tokens/s"),
        Axis("throughput, tokens/s per device", "log"),
        [
            asked,
            "the number beside a line is its heaviest load",
            "times of unlike evidence are not ranked together" if mixed else "",
            *each_calibrated([(curve.name, curve.calibration) for curve in curves]),
        ],
        alt="Throughput per device against speed per user for " + ", ".join(curve.name for curve in curves),
    )
    for number, curve in enumerate(curves):
        look, split = style(number), curve.mode == "disaggregated"
        kind: Evidence = evidence_of(curve.calibration) if mixed else "calibrated"
        figure.add_trace(
            Scatter(
                x=[p.tokens_per_s_per_user for p in curve.points],
                y=[p.tokens_per_s_per_device for p in curve.points],
                customdata=[[literal(p.label), format_time(p.ttft_s)] for p in curve.points],
                mode="lines+markers",
                name=literal(curve.name + f", {curve.mode}" * split + f" ({kind})" * mixed),
                line={"color": look.colour, "width": 2, "dash": DASHES[kind][split]},
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
        _heaviest(figure, curve, number)
    figure.update_xaxes(rangemode="tozero")
    figure.update_yaxes(dtick="D2", tickformat=",")
    return figure


def _answer(curves: Sequence[Curve], mixed: bool) -> str:
    if mixed:
        kinds = {kind: [c for c in curves if evidence_of(c.calibration) == kind] for kind in DASHES}
        return "; ".join(_best_of(kind, own) for kind, own in kinds.items() if own)
    (most, widest), (fast, quickest) = _best(curves)
    return (
        f"most throughput: {most:,.0f} tokens/s per device ({widest});"
        f" fastest for one user: {fast:,.0f} tokens/s ({quickest})"
    )


def _best_of(kind: Evidence, curves: Sequence[Curve]) -> str:
    (most, widest), (fast, quickest) = _best(curves)
    if widest == quickest:
        return f"{widest} ({kind}): {most:,.0f} tokens/s per device, {fast:,.0f} for one user"
    return f"{kind}: {most:,.0f} tokens/s per device ({widest}), {fast:,.0f} for one user ({quickest})"


def _best(curves: Sequence[Curve]) -> tuple[tuple[float, str], tuple[float, str]]:
    """Return the most throughput and whose it is, and the highest speed for one user and whose it is."""
    points = [(curve, point) for curve in curves for point in curve.points]
    most = max(point.tokens_per_s_per_device for _, point in points)
    fast = max(point.tokens_per_s_per_user for _, point in points)
    widest = next(c.name for c, point in points if point.tokens_per_s_per_device >= ALIKE * most)
    quickest = next(c.name for c, point in points if point.tokens_per_s_per_user >= ALIKE * fast)
    return (most, widest), (fast, quickest)


def _heaviest(figure: Figure, curve: Curve, number: int) -> None:
    """Write the heaviest load beside the last mark of a line, neighbours on different sides of theirs."""
    last, side = curve.points[-1], 1 if number % 4 < 2 else -1
    figure.add_annotation(
        x=last.tokens_per_s_per_user,
        y=log10(last.tokens_per_s_per_device),
        text=literal(last.label),
        showarrow=False,
        xanchor="left" if side > 0 else "right",
        xshift=9 * side,
        yshift=-11 if number % 2 else 9,
        font={"size": 12},
    )
