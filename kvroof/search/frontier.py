"""Frontiers: points of which none is better in one thing without being worse in another.

By sweep every candidate is evaluated at many whole points and the best are kept. By gradient one limit is
moved along the axis, and the relaxed problems of all candidates under all limits are solved together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias

from kvroof.ground.errors import BadInput, KvroofError
from kvroof.ground.record import record, static
from kvroof.roofline.plan import Plan
from kvroof.search.candidates import Candidate, surfaces
from kvroof.search.integers import Point, every_chunk
from kvroof.search.optimizer import MARGIN, solve
from kvroof.search.outcome import OperatingPoint, operating_point
from kvroof.search.points import served
from kvroof.search.question import FrontierKind, Question, check_question
from kvroof.search.relax import LIMITS
from kvroof.serving.pools.goodput import Limits
from kvroof.spec.parallel import shared_axes

Way: TypeAlias = Literal["sweep", "gradient"]

SIZES = 40
"""Sizes of each candidate in a sweep, even in the logarithm."""
MOST_CHUNKS = 5
STEPS = 24
"""Limits along the axis by gradient, and lengths of a capacity."""
AXES = {
    "interactivity": ("tokens/s per user", "tokens/s per device"),
    "ttft": ("TTFT in s", "tokens/s per device"),
    "context": ("tokens of context", "sequences per device"),
}


@record
class FrontierPoint:
    """A point of a frontier: its place on both axes and the deployment behind it.

    `point` is None where two pools serve it together; `words` says of which layouts.
    """

    x: float
    y: float
    hw: str = static()
    words: str = static()
    point: OperatingPoint | None = None


@record
class Frontier:
    """A frontier, its points by rising x. More of y is better, and of x more, or less for a TTFT."""

    kind: FrontierKind = static()
    serving: str = static(default="aggregated")
    x_axis: str = static()
    y_axis: str = static()
    points: tuple[FrontierPoint, ...]
    evaluations: int


def frontier(
    plans: Iterable[Plan], question: Question, kind: FrontierKind = "interactivity", by: Way = "sweep"
) -> Frontier:
    """Return the frontier of one pool: throughput against interactivity or TTFT, or capacity against context.

    Args:
        plans: The discrete choices.
        question: Requests, and limits that are kept beside.
        kind: What is held against what.
        by: `sweep` over whole points, or `gradient` along relaxed ones that are not rounded.

    Raises:
        BadInput: An unknown kind or way, or no plan that holds a request.
    """
    if kind not in AXES or by not in ("sweep", "gradient"):
        raise BadInput(
            f"{kind!r} by {by!r} is no frontier", where="frontier", way_out=f"it has {', '.join(AXES)}"
        )
    if kind == "context":
        return capacities(plans, question)
    question = replace(check_question(question), maximize="throughput", objective="throughput")
    found, evaluations = (_swept if by == "sweep" else _descended)(plans, question, kind)
    return _frontier(kind, found, evaluations, least_x=kind == "ttft")


def _frontier(
    kind: FrontierKind,
    found: Sequence[FrontierPoint],
    evaluations: int,
    least_x: bool = False,
    serving: str = "aggregated",
) -> Frontier:
    x_axis, y_axis = AXES[kind]
    return Frontier(
        kind=kind,
        serving=serving,
        x_axis=x_axis,
        y_axis=y_axis,
        points=undominated(found, least_x),
        evaluations=evaluations,
    )


def undominated(points: Sequence[FrontierPoint], least_x: bool = False) -> tuple[FrontierPoint, ...]:
    """Return the points of which no other has as much of both and more of one, by rising x."""
    kept: list[FrontierPoint] = []
    for point in sorted(points, key=lambda p: (p.x if least_x else -p.x, -p.y)):
        if not kept or point.y > kept[-1].y:
            kept.append(point)
    return tuple(sorted(kept, key=lambda p: p.x))


def _words(plan: Plan) -> str:
    return " ".join(f"{axis}{ranks}" for axis, ranks in shared_axes(plan.layout).items()) or "tp1"


def _place(kind: FrontierKind, ttft_s: float, tpot_s: float) -> float:
    return ttft_s if kind == "ttft" else 1 / tpot_s


def _swept(plans: Iterable[Plan], question: Question, kind: FrontierKind) -> tuple[list[FrontierPoint], int]:
    """Return whole points of all candidates that keep the question's own limits."""
    import numpy as np

    found: list[FrontierPoint] = []
    behind: dict[FrontierPoint, tuple[Candidate, Point]] = {}
    evaluations = 0
    for candidate in _candidates(plans, question):
        sizes = np.unique(np.round(np.geomspace(candidate.least, candidate.whole, SIZES)).astype(int))
        size, chunk = (part.ravel() for part in np.meshgrid(sizes, _chunks(candidate), indexing="ij"))
        chunks = chunk if candidate.chunked else None
        try:
            every = candidate.points(size, chunks)
        except KvroofError:
            continue
        evaluations += candidate.evaluations
        logs = candidate.logs(every, size, chunks)
        kept = logs[1:-1].max(axis=0) <= 0
        for i in _best_rows(kind, every, logs[0], kept):
            place = FrontierPoint(
                x=_place(kind, float(every.ttft_s[i]), float(every.tpot_s[i])),
                y=math.exp(float(logs[0, i])),
                hw=candidate.plan.hardware.name,
                words=_words(candidate.plan),
            )
            behind[place] = candidate, _point(size[i], chunk[i], candidate.chunked)
            found.append(place)
    best = undominated(found, least_x=kind == "ttft")
    return [replace(place, point=operating_point(*behind[place])) for place in best], evaluations


def _best_rows(kind: FrontierKind, every: Any, values: Any, kept: Any) -> list[int]:
    """Return the rows of one candidate that none of its others dominates."""
    x = every.ttft_s if kind == "ttft" else every.tpot_s
    rows: list[int] = []
    for i in sorted((int(i) for i in kept.nonzero()[0]), key=lambda i: (x[i], -values[i])):
        if not rows or values[i] > values[rows[-1]]:
            rows.append(i)
    return rows


def _point(size: Any, chunk: Any, chunked: bool) -> Point:
    return Point(size=int(size), chunk=int(chunk) if chunked else None, value=0.0, excess=0.0)


def _candidates(plans: Iterable[Plan], question: Question) -> Iterable[Candidate]:
    """Yield every candidate that holds a request, its prompts whole and in chunks."""
    some = False
    for plan in plans:
        candidate = Candidate(plan, question)
        if not candidate.possible:
            continue
        some = True
        if question.chunk in ("auto", "whole"):
            yield candidate
        if question.chunk != "whole":
            yield candidate.in_chunks()
    if not some:
        raise BadInput("no deployment holds a request", where="frontier", way_out="allow more devices")


def _chunks(candidate: Candidate) -> list[int]:
    if not candidate.chunked:
        return [0]
    every = every_chunk(candidate)
    return sorted(
        {every[min(round(len(every) ** (i / (MOST_CHUNKS - 1))), len(every)) - 1] for i in range(MOST_CHUNKS)}
    )


def _descended(
    plans: Iterable[Plan], question: Question, kind: FrontierKind
) -> tuple[list[FrontierPoint], int]:
    """Return relaxed optima under limits along the axis: every candidate under every limit at once."""
    import numpy as np

    name = "ttft" if kind == "ttft" else "tpot"
    loose = replace(question, limits=_with(question.limits, name, 1.0))
    candidates = list(_candidates(plans, loose))
    boxes = [candidate.box() for candidate in candidates]
    made = list(zip(candidates, boxes, surfaces(candidates, boxes), strict=True))
    good = [(c, box, table) for c, box, table in made if not isinstance(table, KvroofError)]
    tables = np.stack([table for *_, table in good])
    row = 1 + LIMITS.index(name)
    inside = tables[:, row, 1:-1, 1:-1]
    limits = np.linspace(inside.min(), inside.max(), STEPS)
    own = getattr(question.limits, f"{name}_s")
    limits = limits if own is None else np.minimum(limits, math.log(own))
    every = np.repeat(tables, STEPS, axis=0)
    every[:, row] -= np.tile(limits, len(good))[:, None, None]
    axes = np.repeat([c.open_axes(box) for c, box, _ in good], STEPS, axis=0)
    solved = solve(every, axes)
    found = []
    for i, (candidate, *_) in enumerate(good):
        for j, limit in enumerate(limits):
            at = i * STEPS + j
            if solved.slack[at].max() <= MARGIN:
                time = math.exp(limit + min(float(solved.slack[at, row - 1]), 0.0))
                found.append(
                    FrontierPoint(
                        x=_place(kind, time, time),
                        y=math.exp(float(solved.value[at])),
                        hw=candidate.plan.hardware.name,
                        words=_words(candidate.plan),
                    )
                )
    return found, sum(c.evaluations for c, *_ in good)


def _with(limits: Limits, name: str, seconds: float) -> Limits:
    return Limits(
        ttft_s=seconds if name == "ttft" else limits.ttft_s,
        tpot_s=seconds if name == "tpot" else limits.tpot_s,
        percentile=limits.percentile,
    )


def capacities(plans: Iterable[Plan], question: Question) -> Frontier:
    """Return how many sequences per device fit by their length, up to the longest that fits alone."""
    found = []
    for plan in plans:
        candidate = Candidate(
            plan, replace(question, maximize="context", batch=plan.layout.dp, chunk="whole")
        )
        if not candidate.possible:
            continue
        longest = candidate.whole + math.ceil(question.osl.mean)
        for step in range(STEPS):
            length = max(round(longest ** ((step + 1) / STEPS)), 1)
            seqs = candidate.room.most_seqs(length)
            found.append(
                FrontierPoint(
                    x=float(length), y=seqs / plan.layout.devices, hw=plan.hardware.name, words=_words(plan)
                )
            )
    return _frontier("context", found, 0)


def two_pools(plans: Iterable[Plan], question: Question) -> Frontier:
    """Return throughput against interactivity of a pool that prefills and one that decodes.

    The pools are large, so that they match at any ratio: a request takes `T_prefill x devices` of the one
    and `osl x T_decode x devices / n` of the other. The KV moves while the prompt runs; queues are left out.
    A prefill layout has to keep the TTFT limit by its own time.
    """
    import numpy as np

    question = check_question(question)
    fits = [c for plan in plans if (c := Candidate(plan, replace(question, chunk="whole"))).possible]
    first: list[tuple[float, Plan]] = []
    later: list[tuple[Plan, Any, Any]] = []
    evaluations = 0
    for candidate in fits:
        plan = candidate.plan
        sizes = np.unique(np.round(np.geomspace(1, candidate.whole, SIZES)).astype(int))
        try:
            every = served(plan, question, sizes)
        except KvroofError:
            continue
        evaluations += len(sizes)
        prefill_s, share = float(every.prefill_s[0]), plan.layout.devices / plan.layout.dp
        if question.limits.ttft_s is None or prefill_s <= question.limits.ttft_s:
            first.append((prefill_s * share, plan))
        later.append((plan, sizes, every.decode_s))
    if not first or not later:
        raise BadInput("no layout keeps the TTFT limit by its prefill", where="--ttft", way_out="loosen it")
    taken, prefiller = min(first, key=lambda one: one[0])
    steps = question.traffic.decode_tokens
    found = [
        FrontierPoint(
            x=1 / float(step),
            y=question.osl.mean
            / (taken + steps * float(step) * plan.layout.devices / (int(n) * plan.layout.dp)),
            hw=plan.hardware.name,
            words=f"prefill {prefiller.hardware.name} {_words(prefiller)}, decode {_words(plan)}",
        )
        for plan, sizes, decode_s in later
        for n, step in zip(sizes, decode_s, strict=True)
        if question.limits.tpot_s is None or step <= question.limits.tpot_s
    ]
    return _frontier("interactivity", found, evaluations, serving="disaggregated")
