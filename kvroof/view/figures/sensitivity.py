"""What would make it faster: how much a time moves with each thing it depends on."""

from __future__ import annotations

from collections.abc import Mapping

from plotly.graph_objects import Bar, Figure

from kvroof.search.sensitivity import Sensitivity
from kvroof.view.theme import INK, Axis, frame, literal, style
from kvroof.view.words import CHANGES

SMALL = 0.005
"""Elasticities below it in both times are left out."""


def sensitivity_bars(answer: Sensitivity, asked: str, note: str) -> Figure:
    """Return the elasticities of TPOT and TTFT as bars, the strongest at the top.

    Args:
        answer: The percent that each time changes by for one percent more of each thing.
        asked: Model, machine and requests, in words.
        note: What the times are.
    """
    elasticities = {"TPOT": answer.tpot, "TTFT": answer.ttft}
    strongest = {
        name: max(abs(by[name]) for by in elasticities.values() if name in by)
        for name in dict.fromkeys(name for by in elasticities.values() for name in by)
    }
    names = sorted((n for n, most in strongest.items() if most >= SMALL), key=lambda n: strongest[n])
    figure = frame(
        _answer(elasticities),
        Axis("change of the time, % per 1 % more"),
        Axis("what is changed by 1 %", "category"),
        [asked, "bars to the left: more of it makes it faster; effects below 0.005 % are left out", note],
        alt="Elasticities of " + " and ".join(elasticities) + " as horizontal bars",
    )
    for number, (time, by) in enumerate(elasticities.items()):
        look = style(number)
        figure.add_trace(
            Bar(
                orientation="h",
                y=[literal(CHANGES[name]) for name in names],
                x=[by.get(name, 0.0) for name in names],
                text=[_written(by.get(name, 0.0)) for name in names],
                textposition="outside",
                textfont={"size": 12},
                cliponaxis=False,
                name=time,
                marker={
                    "color": look.colour,
                    "line": {"color": INK, "width": 1},
                    "pattern": {"shape": look.hatch, "fillmode": "overlay", "fgcolor": INK, "solidity": 0.15},
                },
                hovertemplate="%{y}: %{x:+.3f} % per 1 %<extra>" + time + "</extra>",
            )
        )
    figure.add_vline(x=0, line={"color": INK, "width": 1})
    figure.update_yaxes(showgrid=False)
    figure.update_layout(
        height=max(figure.layout.height, 200 + 34 * len(names)), legend={"traceorder": "reversed"}
    )
    return figure


def _written(elasticity: float) -> str:
    return f"{elasticity:+.2f}" if abs(elasticity) >= SMALL else ""


def _answer(elasticities: Mapping[str, Mapping[str, float]]) -> str:
    said = []
    for time, by in elasticities.items():
        name = max(by, key=lambda key: abs(by[key]))
        said.append(f"1 % more {CHANGES[name]} changes {time} by {by[name]:+.2f} %")
    return "; ".join(said)
