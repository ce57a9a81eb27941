"""Where does a device's memory go: the budget as a waterfall."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from plotly.graph_objects import Bar, Figure, Scatter

from kvroof.ground.units import GIB, format_bytes
from kvroof.memory.ledger import Ledger
from kvroof.view.theme import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, VERMILLION, Axis, frame, literal
from kvroof.view.words import fit_words, several


class _Step(NamedTuple):
    """A bar of the waterfall: from `base_bytes` up or down by `size_bytes`."""

    name: str
    base_bytes: int
    size_bytes: int
    colour: str
    hatch: str = ""


def memory_waterfall(ledger: Ledger, machine: str) -> Figure:
    """Return the ledger of one device from its capacity down to what is left, in GiB.

    Args:
        ledger: What must be held, against what may be used.
        machine: The device's name.
    """
    asked = f"{ledger.seqs:,} x {ledger.tokens:,} tokens of {ledger.model}"
    figure = frame(
        fit_words(ledger, asked, several(ledger.devices, machine)),
        Axis("what stands in the memory of one device", "category"),
        Axis("memory, GiB (2**30 bytes)"),
        ledger.assumptions,
        alt=f"Waterfall from a capacity of {format_bytes(ledger.capacity_bytes)} over weights and KV cache to"
        f" {format_bytes(ledger.headroom_bytes)} of headroom",
    )
    steps = _steps(ledger)
    for step in steps:
        figure.add_trace(
            Bar(
                x=[literal(step.name)],
                y=[step.size_bytes / GIB],
                base=[step.base_bytes / GIB],
                text=[format_bytes(abs(step.size_bytes))],
                textposition="outside",
                textfont={"size": 13, "color": INK},
                constraintext="none",
                cliponaxis=False,
                width=0.7,
                name=literal(step.name),
                marker={
                    "color": step.colour,
                    "line": {"color": INK, "width": 1},
                    "pattern": {
                        "shape": step.hatch,
                        "fillmode": "overlay",
                        "fgcolor": INK,
                        "size": 10,
                        "solidity": 0.12,
                    },
                },
                hovertemplate="%{x}: %{text}<extra></extra>",
            )
        )
    _connect(figure, steps)
    figure.add_hline(y=0, line={"color": INK, "width": 1})
    figure.update_xaxes(tickangle=0, showgrid=False, tickfont={"size": 13})
    figure.update_layout(showlegend=False, barmode="overlay")
    return figure


def _steps(ledger: Ledger) -> list[_Step]:
    """Return the bars: what is there, what each takes, and what is left (or is missing)."""
    taken = [
        ("kept free", ledger.capacity_bytes - ledger.budget_bytes, "white", "/"),
        ("weights", ledger.weights_bytes, BLUE, ""),
        ("KV cache", ledger.kv_bytes, ORANGE, "x"),
        *((term.name, term.term_bytes, PURPLE, ".") for term in ledger.terms),
    ]
    steps, level = [_Step("capacity", 0, ledger.capacity_bytes, GREY)], ledger.capacity_bytes
    for name, size, colour, hatch in taken:
        steps.append(_Step(name, level, -size, colour, hatch))
        level -= size
    left = ledger.headroom_bytes
    return [
        *steps,
        _Step("headroom" if left >= 0 else "short by", 0, left, GREEN if left >= 0 else VERMILLION),
    ]


def _connect(figure: Figure, steps: list[_Step]) -> None:
    """Draw the level between each bar and the next."""
    for step, after in pairwise(steps):
        level = (step.base_bytes + step.size_bytes) / GIB
        figure.add_trace(
            Scatter(
                x=[literal(step.name), literal(after.name)],
                y=[level, level],
                mode="lines",
                line={"color": GREY, "width": 1, "dash": "dot"},
                hoverinfo="skip",
                name="level",
            )
        )
