"""One pool or two for one case: the goodput of either, with the error of what lies between them."""

from __future__ import annotations

from math import exp

from plotly.graph_objects import Bar, Figure

from kvroof.serving.pools.best_pools import BestSplit, OnePool
from kvroof.serving.pools.pool_choice import Choice
from kvroof.view.theme import BLUE, INK, VERMILLION, Axis, frame, literal
from kvroof.view.words import WAYS

LOOKS = {"aggregate": (VERMILLION, "/"), "disaggregate": (BLUE, "")}
"""Colour and hatch of each way."""


def pool_case(choice: Choice, case: str, asked: str, note: str) -> Figure:
    """Return the requests per second that one pool and two pools serve within the limits, as two bars.

    The whisker on the bar of two pools is the error of their ratio: one pool's goodput, the dashed line,
    lies within it where the two tie.

    Args:
        choice: The best of either way.
        case: The lengths, in words.
        asked: Model, machines and limits, in words.
        note: What the times are.
    """
    goodputs = {"aggregate": _goodput(choice.aggregated), "disaggregate": _goodput(choice.disaggregated)}
    both = all(goodputs.values())
    figure = frame(
        _answer(choice, goodputs),
        Axis("requests/s that keep the limits"),
        Axis("way of serving", "category"),
        [
            asked,
            case,
            "whisker: the error of the ratio of the two (one sigma); dashed: one pool; a tie lies within it"
            if both
            else "",
            note,
        ],
        alt="Bars of the requests per second that one pool and two pools serve within the limits",
    )
    layouts = {"aggregate": _one(choice.aggregated), "disaggregate": _two(choice.disaggregated)}
    for way, (colour, hatch) in LOOKS.items():
        goodput = goodputs[way]
        spread = exp(choice.log_error) if both and way == "disaggregate" else 1.0
        figure.add_trace(
            Bar(
                orientation="h",
                x=[goodput],
                y=[WAYS[way]],
                text=[literal(f"{goodput:,.3g} requests/s: {layouts[way]}" if goodput else "at no rate")],
                textposition="inside" if goodput else "outside",
                insidetextanchor="start",
                textfont={"size": 13, "color": INK},
                constraintext="none",
                cliponaxis=False,
                width=0.5,
                name=WAYS[way],
                showlegend=False,
                marker={
                    "color": colour,
                    "opacity": 0.55,
                    "line": {"color": INK, "width": 1},
                    "pattern": {"shape": hatch, "fillmode": "overlay", "fgcolor": INK, "solidity": 0.05},
                },
                error_x={
                    "type": "data",
                    "array": [goodput * (spread - 1)],
                    "arrayminus": [goodput * (1 - 1 / spread)],
                    "color": INK,
                    "thickness": 1.5,
                    "visible": spread > 1,
                },
                hovertemplate="%{y}: %{x:,.3g} requests/s<extra></extra>",
            )
        )
    if both:
        figure.add_vline(x=goodputs["aggregate"], line={"color": INK, "width": 1.5, "dash": "dash"})
    figure.update_yaxes(showgrid=False, autorange="reversed")
    figure.update_xaxes(rangemode="tozero")
    figure.update_layout(height=400)
    return figure


def _goodput(best: OnePool | BestSplit | None) -> float:
    return 0.0 if best is None else best.goodput_rps


def _one(best: OnePool | None) -> str:
    return "" if best is None else f"{best.instances} x {best.server.name}, {best.policy.name}"


def _two(best: BestSplit | None) -> str:
    if best is None:
        return ""
    pools = best.pools
    return (
        f"{pools.prefill_instances} x {pools.prefill.name} for prefill,"
        f" {pools.decode_instances} x {pools.decode.name} for decode"
    )


def _answer(choice: Choice, goodputs: dict[str, float]) -> str:
    one, two = goodputs["aggregate"], goodputs["disaggregate"]
    if not one or not two:
        return (
            f"only {WAYS[choice.verdict]} keep{'s' * (not two)} the limits, up to {one + two:,.3g} requests/s"
        )
    said = f"two pools serve {abs(two / one - 1):.0%} {'more' if two > one else 'fewer'} requests than one"
    if choice.verdict == "tie":
        return f"a tie: {said}, which is within the model's error"
    return f"{said}, which is more than the model's error"
