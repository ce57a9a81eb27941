"""Which operations does the machine's arithmetic bound, and which its bandwidth: the roofline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log10
from typing import NamedTuple

from plotly.graph_objects import Figure, Scatter

from kvroof.ground.units import format_decimal
from kvroof.roofline.efficiency import Efficiency
from kvroof.serving.latency import Estimate
from kvroof.serving.op_times import OpTime
from kvroof.spec.hardware import Hardware
from kvroof.view.speed import BOUNDS
from kvroof.view.theme import (
    DASHES,
    DETAIL,
    GREEN,
    GREY,
    INK,
    PURPLE,
    Axis,
    calibrated,
    frame,
    literal,
    style,
)

NEAR = 0.25
"""Decades within which operations share one label."""
NAMED_SHARE = 0.03
"""Share of a phase's time from which operations are named."""
MOST_NAMES = 4
ROOFS = (INK, PURPLE, GREEN)
MOST_INTENSITY = 1e5
FAR = 1e3
"""Intensity from which a name stands above the roofs, where there is room."""
DECADE_PX = (160.0, 140.0)
"""About how many pixels a decade of either axis takes: enough to keep labels apart."""
LABEL_PX, CHAR_PX = 26.0, 6.5
"""How far apart the lines of labels stay, and about how wide a character is."""


def operations_on_roofline(
    answer: Estimate, machine: Hardware, efficiency: Efficiency, families: Mapping[str, str]
) -> Figure:
    """Return the roofline of one device with every operation of prefill and decode placed on it.

    Solid roofs are the dense peaks, dashed ones what the calibrated kernels reach. A mark's area is its share
    of the phase's time.

    Args:
        answer: The times.
        machine: The device.
        efficiency: The calibration they were made with; the identity has no roof of its own.
        families: The families of kernels that ran, with the dtype that each multiplied in.
    """
    phases = (("prefill", answer.prefill_ops), ("decode", answer.decode_ops))
    absent = sorted({op.name for _, ops in phases for op in ops if op.seconds and not _stands(op)})
    placed = [op for _, ops in phases for op in ops if _stands(op)]
    ends = (min([op.flops / op.hbm_bytes for op in placed] + [1.0]) / 3, MOST_INTENSITY)
    figure = frame(
        f"{answer.model} on {machine.name}: {_bounds(answer)}",
        Axis("arithmetic intensity, FLOP per byte of HBM traffic", "log"),
        Axis("speed of one device, FLOP/s", "log"),
        [
            f"{answer.batch:,} requests of {answer.isl:,} prompt and {answer.osl:,} output tokens on"
            f" {answer.devices} device{'s' * (answer.devices > 1)}; decode is the mean step",
            "peaks are dense; the area of a mark is its share of the phase's time",
            calibrated(answer.calibration),
            f"not placed, for they do no arithmetic or move nothing: {', '.join(absent)}" if absent else "",
        ],
        alt=f"Roofline of {machine.name}, log-log: speed against arithmetic intensity, with the operations of"
        f" {answer.model} in prefill and decode",
    )
    for number, dtype in enumerate(dict.fromkeys(families.values())):
        _peak(figure, dtype, machine, ends, number)
    fitted = {efficiency.family(family) or "": dtype for family, dtype in families.items()}
    fitted.pop("", None)
    for number, (family, dtype) in enumerate(fitted.items()):
        kernel = efficiency.kernels[family]
        peak = machine.peak_flops_per_s[dtype] * kernel.compute
        line = {"color": GREY, "width": 2, "dash": DASHES[1 + number % (len(DASHES) - 1)]}
        _roof(figure, f"{family} reaches", peak, machine.hbm_bytes_per_s * kernel.hbm, ends, line)
    taken: list[_Box] = []
    for number, (phase, ops) in enumerate(phases):
        shown = sorted((op for op in ops if _stands(op)), key=lambda op: -op.seconds)
        total = sum(op.seconds for op in ops)
        _marks(figure, phase, shown, total, number)
        _names(figure, shown, total, style(number).colour, taken)
    speeds = [op.flops / op.seconds for op in placed] + [
        machine.peak_flops_per_s[d] for d in families.values()
    ]
    figure.update_xaxes(dtick=1, tickformat=",", range=[log10(ends[0]), log10(ends[1]) + 0.02])
    figure.update_yaxes(dtick=1, tickformat="~s", range=[log10(min(speeds) / 5), log10(max(speeds) * 4)])
    figure.update_layout(legend={"x": 0.01, "xanchor": "left", "y": 0.99, "yanchor": "top"})
    return figure


def _stands(op: OpTime) -> bool:
    return bool(op.flops and op.hbm_bytes and op.seconds)


def _bounds(answer: Estimate) -> str:
    first, later = BOUNDS[answer.bound.prefill], BOUNDS[answer.bound.decode]
    if first == later:
        return f"prefill and decode are both bound by {first}"
    return f"prefill is bound by {first}, decode by {later}"


def _peak(figure: Figure, dtype: str, machine: Hardware, ends: tuple[float, float], number: int) -> None:
    """Draw the roof of a dtype's peak, and a tick at its ridge."""
    peak = machine.peak_flops_per_s[dtype]
    ridge = peak / machine.hbm_bytes_per_s
    name = f"{dtype}: {format_decimal(peak, 'FLOP/s')}, ridge at {ridge:,.0f} FLOP/B"
    line = {"color": ROOFS[number % len(ROOFS)], "width": 2 + number, "dash": "solid"}
    _roof(figure, name, peak, machine.hbm_bytes_per_s, ends, line)
    figure.add_trace(
        Scatter(
            x=[ridge],
            y=[peak],
            mode="markers",
            marker={"symbol": "line-ns-open", "size": 16, "color": line["color"], "line": {"width": 2}},
            name=f"ridge of {dtype}",
            showlegend=False,
            hovertemplate="ridge at %{x:,.0f} FLOP/B<extra></extra>",
        )
    )


def _roof(
    figure: Figure,
    name: str,
    peak: float,
    bytes_per_s: float,
    ends: tuple[float, float],
    line: Mapping[str, object],
) -> None:
    figure.add_trace(
        Scatter(
            x=[ends[0], peak / bytes_per_s, ends[1]],
            y=[ends[0] * bytes_per_s, peak, peak],
            mode="lines",
            name=literal(name),
            line=line,
            hovertemplate="%{x:.3g} FLOP/B<br>%{y:.3s}FLOP/s<extra>%{fullData.name}</extra>",
        )
    )


def _marks(figure: Figure, phase: str, ops: Sequence[OpTime], total: float, number: int) -> None:
    look = style(number)
    figure.add_trace(
        Scatter(
            x=[op.flops / op.hbm_bytes for op in ops],
            y=[op.flops / op.seconds for op in ops],
            mode="markers",
            name=phase,
            text=[literal(op.name) for op in ops],
            customdata=[[op.seconds / total, op.bound, op.seconds * 1e3] for op in ops],
            marker={
                "symbol": look.marker,
                "color": look.colour,
                "size": [6 + 40 * (op.seconds / total) ** 0.5 for op in ops],
                "opacity": 0.6,
                "line": {"color": INK, "width": 1},
            },
            hovertemplate=(
                "%{text}<br>%{x:.3g} FLOP/B, %{y:.3s}FLOP/s<br>%{customdata[2]:.3g} ms, %{customdata[0]:.1%}"
                + f" of {phase}<br>bound: %{{customdata[1]}}<extra></extra>"
            ),
        )
    )


def _names(figure: Figure, ops: Sequence[OpTime], total: float, colour: str, taken: list[_Box]) -> None:
    """Name the operations that take time, those that stand together in one label at the longest of them.

    The lowest mark is named first; a label moves away from its mark until it covers none of those before it,
    which are `taken`.
    """
    groups: list[list[OpTime]] = []
    for op in ops:
        near = next((group for group in groups if _together(group[0], op)), None)
        if near is None:
            groups.append([op])
        else:
            near.append(op)
    for group in sorted(groups, key=lambda group: group[0].flops / group[0].seconds):
        if sum(op.seconds for op in group) < NAMED_SHARE * total:
            continue
        first, named = group[0], group if len(group) <= MOST_NAMES else group[: MOST_NAMES - 1]
        names = ", ".join(op.name for op in named)
        if len(named) < len(group):
            names += f" and {len(group) - len(named)} more"
        intensity, speed = first.flops / first.hbm_bytes, first.flops / first.seconds
        far, width = intensity > FAR, CHAR_PX * len(names)
        aside, below, step = (0.0, -48.0, -LABEL_PX) if far else (30.0, 26.0, LABEL_PX)
        left = log10(intensity) * DECADE_PX[0] + aside - (width / 2 if far else 0)
        top = below - log10(speed) * DECADE_PX[1]
        while any(box.covers(left, top, width) for box in taken):
            top, below = top + step, below + step
        taken.append(_Box(left, top, width))
        figure.add_annotation(
            name=DETAIL,
            x=log10(intensity),
            y=log10(speed),
            text=literal(names),
            font={"size": 12},
            xanchor="center" if far else "left",
            yanchor="bottom" if far else "top",
            ax=aside,
            ay=below,
            arrowhead=0,
            arrowwidth=1,
            arrowcolor=colour,
            bgcolor="rgba(255,255,255,0.8)",
        )


class _Box(NamedTuple):
    """Where a label of one line stands, in pixels from where both axes are 1."""

    left: float
    top: float
    width: float

    def covers(self, left: float, top: float, width: float) -> bool:
        """Return whether a label there would touch this one."""
        apart = left > self.left + self.width or self.left > left + width
        return not apart and abs(top - self.top) < LABEL_PX


def _together(one: OpTime, other: OpTime) -> bool:
    apart = (
        log10(one.flops / one.hbm_bytes) - log10(other.flops / other.hbm_bytes),
        log10(one.flops / one.seconds) - log10(other.flops / other.seconds),
    )
    return max(map(abs, apart)) < NEAR
