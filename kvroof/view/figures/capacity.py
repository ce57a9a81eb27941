"""How many sequences of which length: what the memory admits, and what a time per token admits."""

from __future__ import annotations

from collections.abc import Sequence
from math import log10
from typing import NamedTuple

from plotly.graph_objects import Figure, Scatter

from kvroof.ground.units import format_bytes, format_time
from kvroof.memory.ledger import Ledger
from kvroof.serving.latency import Calibration
from kvroof.view.theme import BLUE, Axis, calibrated, frame, powers_of_two, style
from kvroof.view.words import several


class EqualTime(NamedTuple):
    """The most sequences of each length whose decode step takes at most `tpot_s`."""

    tpot_s: float
    tokens: tuple[int, ...]
    seqs: tuple[int, ...]


def capacity_frontier(
    ledgers: Sequence[Ledger],
    lines: Sequence[EqualTime],
    machine: str,
    calibration: Calibration | None,
) -> Figure:
    """Return the most sequences against their length, both logarithmic, with lines of equal TPOT.

    Args:
        ledgers: What the memory admits at rising lengths.
        lines: What times per token admit, the shortest time first.
        machine: The device's name.
        calibration: What the times were made with.
    """
    first, last = ledgers[0], ledgers[-1]
    admitted = [ledger for ledger in ledgers if ledger.max_seqs]
    times = ", ".join(format_time(line.tpot_s) for line in lines)
    figure = frame(
        _answer(first, admitted, machine),
        Axis("cached tokens of each sequence", "log"),
        Axis("sequences at once", "log"),
        [
            f"budget of {format_bytes(first.budget_bytes)} on each of {first.devices}"
            f" device{'s' * (first.devices > 1)}, {format_bytes(first.weights_bytes)} of it weights",
            "below a line a decode step takes less than its TPOT; prefill is left out" if lines else "",
            calibrated(calibration) if lines else "",
        ],
        alt=f"Most sequences against context length, log-log, for {first.model} on {machine}"
        + (f", with lines of equal time per token at {times}" if lines else ""),
    )
    figure.add_trace(
        Scatter(
            x=[ledger.tokens for ledger in admitted],
            y=[ledger.max_seqs for ledger in admitted],
            mode="lines",
            line={"color": BLUE, "width": 3.5},
            fill="tozeroy",
            fillcolor="rgba(0,114,178,0.13)",
            name="memory is full",
            hovertemplate="%{x:,} tokens: %{y:,} sequences<extra>memory is full</extra>",
        )
    )
    for number, line in enumerate(lines, start=1):
        look, name = style(number), f"TPOT {format_time(line.tpot_s)}"
        figure.add_trace(
            Scatter(
                x=line.tokens,
                y=line.seqs,
                mode="lines",
                line={"color": look.colour, "width": 2, "dash": look.dash},
                name=name,
                hovertemplate="%{x:,} tokens: %{y:,} sequences<extra>" + name + "</extra>",
            )
        )
    most = max([ledger.max_seqs for ledger in admitted] + [n for line in lines for n in line.seqs] + [10])
    powers_of_two(figure, "x", first.tokens, last.tokens)
    figure.update_xaxes(range=[log10(first.tokens), log10(last.tokens)])
    figure.update_yaxes(range=[-0.05, log10(most) + 0.1], dtick=1, tickformat=",")
    return figure


def _answer(first: Ledger, admitted: Sequence[Ledger], machine: str) -> str:
    place = several(first.devices, machine)
    if not admitted:
        return f"not one sequence of {first.tokens:,} tokens of {first.model} fits on {place}"
    short, long = admitted[0], admitted[-1]
    return (
        f"{first.model} on {place}: {short.max_seqs:,} sequences of {short.tokens:,} tokens fit, or"
        f" {long.max_seqs:,} of {long.tokens:,}"
    )
