"""How much KV cache and state does one sequence take, by architecture and context: the footprint."""

from __future__ import annotations

from collections.abc import Sequence

from plotly.graph_objects import Figure, Scatter

from kvroof.ground.units import format_bytes
from kvroof.memory.kv import KVReport
from kvroof.view.theme import Axis, frame, literal, powers_of_two, style


def footprint(curves: Sequence[Sequence[KVReport]]) -> Figure:
    """Return payload bytes against cached tokens, both logarithmic, a line per model.

    A tick on a line is where a window is full: from there on its layers take no more. A fixed state is the
    level that a line starts from.

    Args:
        curves: For each model its reports at rising lengths, the same number of sequences in all.
    """
    ordered = sorted(curves, key=lambda reports: -reports[-1].payload_bytes)
    most, least = ordered[0][-1], ordered[-1][-1]
    figure = frame(
        f"{_sequences(most)} of {most.tokens:,} tokens: {_answer(most, least)}",
        Axis("cached tokens of a sequence", "log"),
        Axis("KV cache and state, bytes", "log"),
        [
            "payload in one copy, before replication over ranks; sizes are binary, 1 GiB = 2**30 bytes",
            f"cache in {', '.join(dict.fromkeys(r[0].kv_dtype for r in ordered))}",
            _kinds(ordered),
        ],
        alt="Bytes of KV cache and state against cached tokens, log-log, one line for each of "
        + ", ".join(r[0].model for r in ordered),
    )
    for number, reports in enumerate(ordered):
        _line(figure, reports, number)
    sizes = [r.payload_bytes for reports in curves for r in reports if r.payload_bytes]
    tokens = [r.tokens for reports in curves for r in reports]
    powers_of_two(figure, "x", min(tokens), max(tokens))
    powers_of_two(figure, "y", min(sizes), max(sizes), step=16)
    figure.update_layout(legend={"title": {"text": "largest first"}})
    return figure


def _sequences(report: KVReport) -> str:
    return "one sequence" if report.seqs == 1 else f"{report.seqs:,} sequences"


def _answer(most: KVReport, least: KVReport) -> str:
    largest = f"{most.model} takes {format_bytes(most.payload_bytes)}"
    if most is least:
        return largest
    return f"{largest}, {least.model} {format_bytes(least.payload_bytes)}"


def _kinds(curves: Sequence[Sequence[KVReport]]) -> str:
    windows = {w for reports in curves for w in _windows(reports[0])}
    states = [r[0].model for r in curves if r[0].fixed_bytes_per_seq]
    said = []
    if windows:
        said.append("a tick marks where a window is full")
    if states:
        said.append(f"{', '.join(states)} hold{'s' * (len(states) == 1)} a fixed state too")
    return "; ".join(said)


def _windows(report: KVReport) -> list[int]:
    return sorted({k.window for k in report.kinds if k.window is not None})


def _line(figure: Figure, reports: Sequence[KVReport], number: int) -> None:
    first, look = reports[0], style(number)
    shown = [r for r in reports if r.payload_bytes]
    figure.add_trace(
        Scatter(
            x=[r.tokens for r in shown],
            y=[r.payload_bytes for r in shown],
            customdata=[format_bytes(r.payload_bytes) for r in shown],
            mode="lines",
            name=literal(first.model),
            legendgroup=first.model,
            line={"color": look.colour, "dash": look.dash, "width": 2.5},
            hovertemplate="%{x:,} tokens: %{customdata}<extra>%{fullData.name}</extra>",
        )
    )
    full = [r for r in shown if r.tokens in _windows(first)]
    if full:
        figure.add_trace(
            Scatter(
                x=[r.tokens for r in full],
                y=[r.payload_bytes for r in full],
                mode="markers",
                name=literal(f"{first.model}, window full"),
                legendgroup=first.model,
                showlegend=False,
                marker={"symbol": "line-ns-open", "size": 18, "color": look.colour, "line": {"width": 3}},
                hovertemplate="window of %{x:,} tokens full<extra>%{fullData.name}</extra>",
            )
        )
