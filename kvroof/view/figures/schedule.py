"""Who ran when: the Gantt chart of a schedule, a row per request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, TypeAlias

from plotly.graph_objects import Bar, Figure

from kvroof.ground.units import format_time
from kvroof.serving.simulation.metrics import Served
from kvroof.serving.simulation.schedule_trace import Span
from kvroof.view.theme import BLUE, GREY, INK, ORANGE, PURPLE, Axis, frame, literal

Doing: TypeAlias = Literal["waits", "prefill", "decode", "KV transfer"]

LOOKS: dict[Doing, tuple[str, str]] = {
    "waits": ("#EEEEEE", ""),
    "prefill": (ORANGE, "/"),
    "decode": (BLUE, ""),
    "KV transfer": (PURPLE, "x"),
}
"""Colour and hatching of what a request does."""
MOST_REQUESTS = 60
ROW_PX = 16


class _Part(NamedTuple):
    """A stretch of one request's time in one place."""

    request: int
    doing: Doing
    start_s: float
    end_s: float
    where: str


def gantt(spans: Sequence[Span], served: Sequence[Served], asked: str, note: str) -> Figure:
    """Return the schedule with time to the right and a row per request, the first at the top.

    Args:
        spans: The steps, in the order in which they started.
        served: The requests, for when they arrived.
        asked: What is served where, in words.
        note: What the step times are.
    """
    shown = sorted(served, key=lambda s: s.arrival_s)[:MOST_REQUESTS]
    rows = {s.request: row for row, s in enumerate(shown)}
    parts = [part for part in _parts(spans, shown) if part.request in rows]
    unit, scale = ("ms", 1e3) if max(p.end_s for p in parts) < 1 else ("s", 1.0)
    figure = frame(
        _answer(shown),
        Axis(f"time, {unit}"),
        Axis("request, in the order of arrival", "category"),
        [
            asked,
            f"the first {len(shown)} of {len(served)} requests" if len(served) > len(shown) else "",
            note,
        ],
        alt=f"Gantt chart of {len(shown)} requests: when each waits, is prefilled and decodes",
    )
    for doing, (colour, hatch) in LOOKS.items():
        own = [part for part in parts if part.doing == doing]
        if not own:
            continue
        figure.add_trace(
            Bar(
                orientation="h",
                y=[str(part.request) for part in own],
                base=[part.start_s * scale for part in own],
                x=[(part.end_s - part.start_s) * scale for part in own],
                customdata=[[format_time(part.end_s - part.start_s), literal(part.where)] for part in own],
                width=0.8 if doing != "waits" else 0.3,
                name=doing,
                marker={
                    "color": colour,
                    "line": {"color": GREY if doing == "waits" else INK, "width": 0.5},
                    "pattern": {
                        "shape": hatch,
                        "fillmode": "overlay",
                        "fgcolor": INK,
                        "size": 6,
                        "solidity": 0.2,
                    },
                },
                hovertemplate=f"request %{{y}}: {doing} for %{{customdata[0]}}, %{{customdata[1]}}"
                "<extra></extra>",
            )
        )
    order = [str(s.request) for s in shown]
    figure.update_yaxes(categoryorder="array", categoryarray=order, autorange="reversed", showgrid=False)
    figure.update_layout(
        barmode="overlay",
        legend={"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "xanchor": "left"},
        margin={"t": figure.layout.margin.t + 26},
        height=max(figure.layout.height, 200 + ROW_PX * len(shown)),
    )
    return figure


def _answer(served: Sequence[Served]) -> str:
    slowest = max(served, key=lambda s: s.ttft_s)
    waited = f"request {slowest.request} waits longest for its first token, {format_time(slowest.ttft_s)}"
    stopped = sum(s.preemptions for s in served)
    return waited + (f"; {stopped} times a request lost its place" if stopped else "")


def _parts(spans: Sequence[Span], served: Sequence[Served]) -> Iterator[_Part]:
    """Yield what each request does: its wait, and its steps with those that follow at once joined."""
    for one in served:
        if one.admitted_s > one.arrival_s:
            yield _Part(one.request, "waits", one.arrival_s, one.admitted_s, "in the queue")
    last: dict[int, _Part] = {}
    for span in spans:
        where = f"{span.pool} {span.instance}"
        for member in span.members:
            doing: Doing = "decode" if member.query_len == 1 else "prefill"
            if span.kind == "transfer":
                doing = "KV transfer"
            before = last.get(member.request)
            part = _Part(member.request, doing, span.start_s, span.end_s, where)
            if before is not None and before[1] == doing and before[4] == where and before[3] == span.start_s:
                part = part._replace(start_s=before.start_s)
            elif before is not None:
                yield before
            last[member.request] = part
    yield from last.values()
