"""How long is the wait for a first token as the load grows: TTFT against the rate of requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log, log10

from plotly.graph_objects import Figure, Scatter

from kvroof.ground.units import format_time
from kvroof.serving.latency import Calibration
from kvroof.serving.steady.batching import SteadyState
from kvroof.serving.steady.queueing import NoSteadyState
from kvroof.view.theme import INK, Axis, calibrated, frame, literal, style


def ttft_against_load(
    curves: Mapping[str, Sequence[SteadyState]],
    limits: Mapping[str, NoSteadyState],
    asked: str,
    ttft_s: float | None,
    calibration: Calibration | None,
) -> Figure:
    """Return median and p90 TTFT against requests per second, a colour per deployment.

    A line ends where there is no steady state any more.

    Args:
        curves: Steady states by deployment, at rising rates.
        limits: Why each deployment has none beyond its last rate.
        asked: The requests, in words.
        ttft_s: The TTFT that is asked of 90 % of the requests.
        calibration: What the times were made with.
    """
    figure = frame(
        _answer(curves, ttft_s),
        Axis("load, requests/s"),
        Axis("time to first token, s", "log"),
        [
            asked,
            "Poisson arrivals, mean-field closed forms",
            *(f"{name} ends where {limit.what} is full" for name, limit in limits.items()),
            calibrated(calibration),
        ],
        alt="Median and p90 TTFT, logarithmic, against requests per second for " + ", ".join(curves),
    )
    for number, (name, states) in enumerate(curves.items()):
        look = style(number)
        for percentile, dash in (("p90", "solid"), ("p50", "dot")):
            figure.add_trace(
                Scatter(
                    x=[s.requests_per_s for s in states],
                    y=[getattr(s.ttft_s, percentile) for s in states],
                    mode="lines+markers",
                    name=literal(f"{name}, {percentile}"),
                    line={"color": look.colour, "width": 2.5 if percentile == "p90" else 2, "dash": dash},
                    marker={"symbol": look.marker + ("" if percentile == "p90" else "-open"), "size": 7},
                    hovertemplate="%{x:.3g} requests/s: %{y:.3s}s<extra>%{fullData.name}</extra>",
                )
            )
    if ttft_s is not None:
        figure.add_hline(y=ttft_s, line={"color": INK, "width": 1.5, "dash": "dash"})
        figure.add_annotation(
            x=0,
            xref="paper",
            y=log10(ttft_s),
            text=f"asked: {format_time(ttft_s)}",
            showarrow=False,
            xanchor="left",
            yanchor="bottom",
            xshift=6,
            font={"size": 12},
        )
    figure.update_xaxes(rangemode="tozero")
    figure.update_yaxes(dtick="D2", tickformat="~g")
    return figure


def _answer(curves: Mapping[str, Sequence[SteadyState]], ttft_s: float | None) -> str:
    said = []
    for name, states in curves.items():
        most = _most_rate(states, ttft_s)
        said.append(f"{name} at no rate shown" if most is None else f"{name} up to {most:.3g} requests/s")
    head = "a steady state" if ttft_s is None else f"p90 TTFT within {format_time(ttft_s)}"
    return f"{head}: {', '.join(said)}"


def _most_rate(states: Sequence[SteadyState], ttft_s: float | None) -> float | None:
    """Return the rate at which the p90 line crosses the limit as it is drawn, None where it starts above."""
    if ttft_s is None:
        return states[-1].requests_per_s if states else None
    most = None
    for number, state in enumerate(states):
        if state.ttft_s.p90 > ttft_s:
            if number:
                before = states[number - 1]
                low, high = log(before.ttft_s.p90), log(state.ttft_s.p90)
                share = (log(ttft_s) - low) / (high - low)
                most = before.requests_per_s + share * (state.requests_per_s - before.requests_per_s)
            break
        most = state.requests_per_s
    return most
