"""One pool or two at which rate: how many requests either way serves as a limit is loosened."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, isinf, log10

from plotly.graph_objects import Figure, Scatter

from kvroof.ground.units import format_time
from kvroof.serving.pools.pool_choice import Choice
from kvroof.view.theme import BLUE, DETAIL, VERMILLION, Axis, frame
from kvroof.view.words import WAYS

LOOKS = {"aggregate": (VERMILLION, "solid", "square"), "disaggregate": (BLUE, "dash", "circle")}
"""Colour, dash and mark of each way."""
WIDE = 1.02
"""Factor to either side of a single limit over which its error is shaded."""


def rate_map(
    choices: Sequence[Choice | None], limit: str, limits_s: Sequence[float], asked: str, note: str
) -> Figure:
    """Return the rates that one pool and two pools serve, against the limit they have to keep.

    Below a line its way keeps the limit. The band around the line of two pools is the error of the ratio of
    the two: where one pool's line runs within it, they tie. Above each limit stands the verdict, with the
    goodput of two pools over one pool's.

    Args:
        choices: One per limit; None where neither way keeps it at any rate.
        limit: `TTFT` or `TPOT`.
        limits_s: The limits in seconds, rising.
        asked: Model, machines, lengths and the other limit, in words.
        note: What the times are.
    """
    known = [(s, choice) for s, choice in zip(limits_s, choices, strict=True) if choice is not None]
    figure = frame(
        _answer(known, limit),
        Axis(f"{limit} limit, ms", "log"),
        Axis("requests/s that keep it"),
        [
            asked,
            "a way keeps the limit below its line",
            "shaded: the error of the ratio (one sigma) around two pools; one pool ties with them in it",
            note,
        ],
        alt=f"Rates that one pool and two pools serve within a {limit} limit, against that limit",
    )
    shown_ms = [s * 1e3 for s in limits_s]
    _band(figure, limits_s, choices)
    for way, rates in _rates(choices).items():
        colour, dash, mark = LOOKS[way]
        figure.add_trace(
            Scatter(
                x=shown_ms,
                y=rates,
                mode="lines+markers",
                name=WAYS[way],
                line={"color": colour, "width": 2.5, "dash": dash},
                marker={"symbol": mark, "size": 9, "color": colour},
                hovertemplate="%{x:,.4g} ms: %{y:,.3g} requests/s<extra>%{fullData.name}</extra>",
            )
        )
    for seconds, choice in known:
        figure.add_annotation(
            name=DETAIL,
            x=log10(seconds * 1e3),
            y=max(_rate(choice, "aggregate"), _rate(choice, "disaggregate") * exp(choice.log_error)),
            text=_verdict(choice),
            showarrow=False,
            yshift=22,
            font={"size": 12},
            bgcolor="rgba(255,255,255,0.8)",
        )
    figure.update_xaxes(tickvals=shown_ms, ticktext=[f"{ms:,.4g}" for ms in shown_ms])
    figure.update_yaxes(rangemode="tozero")
    return figure


def _band(figure: Figure, limits_s: Sequence[float], choices: Sequence[Choice | None]) -> None:
    """Shade the rates of two pools within the error, where both ways keep the limit."""
    spread = [
        (s * 1e3, _rate(c, "disaggregate"), exp(c.log_error))
        for s, c in zip(limits_s, choices, strict=True)
        if c is not None and c.aggregated is not None and c.disaggregated is not None
    ]
    if not spread:
        return
    if len(spread) == 1:
        ((ms, rate, factor),) = spread
        spread = [(ms / WIDE, rate, factor), (ms * WIDE, rate, factor)]
    figure.add_trace(
        Scatter(
            x=[ms for ms, _, _ in spread] + [ms for ms, _, _ in reversed(spread)],
            y=[rate * factor for _, rate, factor in spread]
            + [rate / factor for _, rate, factor in reversed(spread)],
            mode="lines",
            fill="toself",
            fillcolor="rgba(0,114,178,0.15)",
            line={"width": 0, "color": BLUE},
            name="two pools, one sigma",
            hoverinfo="skip",
        )
    )


def _rates(choices: Sequence[Choice | None]) -> dict[str, list[float]]:
    """Return the highest rates of each way at each limit, 0 where it keeps it at none."""
    return {way: [0.0 if c is None else _rate(c, way) for c in choices] for way in LOOKS}


def _rate(choice: Choice, way: str) -> float:
    best = choice.aggregated if way == "aggregate" else choice.disaggregated
    return 0.0 if best is None else best.goodput_rps


def _verdict(choice: Choice) -> str:
    if isinf(choice.log_ratio):
        return f"only {WAYS[choice.verdict]}"
    return f"{WAYS[choice.verdict]}, {exp(choice.log_ratio):.2f}x"


def _answer(known: Sequence[tuple[float, Choice]], limit: str) -> str:
    if not known:
        return f"neither one pool nor two keep any of these {limit} limits"
    groups: dict[str, list[str]] = {}
    for seconds, choice in known:
        groups.setdefault(choice.verdict, []).append(format_time(seconds))
    said = {"aggregate": "one pool serves more", "disaggregate": "two pools serve more", "tie": "a tie"}
    return f"{limit} limit: " + "; ".join(f"{said[v]} at {', '.join(at)}" for v, at in groups.items())
