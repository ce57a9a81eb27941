"""Where nothing keeps the limits, or fits: by how much they are exceeded, and what alone would mend it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

from kvroof.ground.errors import KvroofError
from kvroof.ground.units import GIB
from kvroof.roofline.collectives import tiers
from kvroof.roofline.plan import Plan
from kvroof.search.candidates import Candidate
from kvroof.search.choices import Room
from kvroof.search.integers import Point, every_chunk
from kvroof.search.outcome import WayOut
from kvroof.search.question import Question
from kvroof.search.relax import LIMITS
from kvroof.serving.pools.goodput import Limits
from kvroof.spec.parallel import check_layout
from kvroof.spec.params import parse_formats
from kvroof.spec.precision import parse_kv_format

TRIED = 8
"""Sizes and chunks of a candidate that are looked at, small ones first."""
MORE_RANKS = (2, 4, 8, 16)
"""Times the tensor-parallel ranks that are tried."""
DIGITS = 3


def nearest(candidate: Candidate, point: Point) -> dict[str, float]:
    """Return by what share of itself each limit is exceeded at a point."""
    chunks = None if point.chunk is None else [point.chunk]
    slack = candidate.functions([point.size], chunks)[1:, 0]
    return {
        name: math.expm1(float(excess))
        for name, excess in zip(LIMITS, slack, strict=True)
        if excess > 0 and name != "size"
    }


def ways_out(
    candidates: Sequence[Candidate], question: Question, candidate: Candidate, point: Point
) -> Iterator[WayOut]:
    """Yield looser limits that alone make some candidate feasible, else all together; each was evaluated."""
    alone = False
    for name in ("ttft", "tpot"):
        limit = getattr(question.limits, f"{name}_s")
        if limit is None:
            continue
        free = replace(question, limits=_without(question.limits, name))
        needed = min((_least(c, free, name) for c in candidates), default=math.inf)
        if math.isfinite(needed):
            alone = True
            rounded = _rounded_up(needed)
            yield WayOut(change=name, from_=limit, to=rounded, option=f"--{name} {rounded * 1e3:g}ms")
    if not alone:
        yield _both(question, candidate, point)
    yield from _least_of_each(candidate.plan, lambda plan: _keeps(plan, question))


def over_room(candidate: Candidate) -> float:
    """Return by what share of the budget the weights and the smallest demand exceed it."""
    return candidate.room.over(*candidate.smallest)


def more_room(candidate: Candidate) -> Iterator[WayOut]:
    """Yield what alone gives a deployment room for its smallest demand; every one was tried.

    Where nothing does, the memory that each of its devices would have to have.
    """
    question = candidate.question

    def holds(plan: Plan) -> bool:
        room = Room(plan, None, question.utilization, question.reserve_bytes)
        return room.over(*candidate.smallest) <= 0

    ways = list(_least_of_each(candidate.plan, holds))
    yield from ways
    if not ways:
        has = candidate.plan.hardware.capacity_bytes
        needs = math.ceil(has * (1 + over_room(candidate)))
        said = f"a machine with {math.ceil(needs / GIB):,} GiB per device (it has {has / GIB:,.0f})"
        yield WayOut(change="memory_bytes", from_=has, to=needs, option=said)


def _least_of_each(plan: Plan, mends: Callable[[Plan], bool]) -> Iterator[WayOut]:
    """Yield the smallest change of each kind that mends it."""
    done: set[str] = set()
    for way, other in _variations(plan):
        if way.change not in done and mends(other):
            done.add(way.change)
            yield way


def _variations(plan: Plan) -> Iterator[tuple[WayOut, Plan]]:
    """Yield plans on more devices, as few as are valid first, and with narrower weights or cache."""
    tp, devices = plan.layout.tp, plan.layout.devices
    for factor in MORE_RANKS:
        layout = replace(plan.layout, tp=tp * factor)
        try:
            check_layout(plan.model, layout)
            tiers(plan.hardware, layout.devices)
        except KvroofError:
            continue
        option = f"--max-devices {layout.devices}"
        way = WayOut(change="max_devices", from_=devices, to=layout.devices, option=option)
        yield way, replace(plan, layout=layout)
    stored = (plan.formats or plan.model.formats).name
    for dtype in ("fp8", "int4"):
        formats = parse_formats(dtype, plan.model)
        way = WayOut(change="weights_dtype", from_=stored, to=dtype, option=f"--weights-dtype {dtype}")
        if stored != dtype:
            yield way, replace(plan, formats=formats)
    if plan.kv_format.name != "fp8":
        way = WayOut(change="kv_dtype", from_=plan.kv_format.name, to="fp8", option="--kv-dtype fp8")
        yield way, replace(plan, kv_format=parse_kv_format("fp8", plan.model))


def _keeps(plan: Plan, question: Question) -> bool:
    """Return whether a plan keeps every limit at one of a few points."""
    try:
        first = Candidate(plan, question)
        both = (first, first.in_chunks()) if question.chunk == "auto" else (first,)
        return first.possible and any(_some_kept(candidate) for candidate in both)
    except KvroofError:
        return False


def _some_kept(candidate: Candidate) -> bool:
    size, chunk = _few(candidate)
    return bool((candidate.functions(size, chunk)[1:-1].max(axis=0) <= 0).any())


def _few(candidate: Candidate) -> tuple[Any, Any]:
    """Return the sizes and chunks of a few points of a candidate, from the smallest size up."""
    import numpy as np

    least, most = candidate.least, candidate.whole
    sizes = sorted({round(least * (most / least) ** (i / TRIED)) for i in range(TRIED + 1)})
    chunks: Any = _some(every_chunk(candidate)) if candidate.chunked else [None]
    pairs = [(size, chunk) for size in sizes for chunk in chunks]
    cut = np.array([chunk for _, chunk in pairs], int) if candidate.chunked else None
    return np.array([size for size, _ in pairs], int), cut


def _both(question: Question, candidate: Candidate, point: Point) -> WayOut:
    """Return the limits that the nearest point keeps."""
    found = candidate.points([point.size], None if point.chunk is None else [point.chunk])
    limits = {"ttft": question.limits.ttft_s, "tpot": question.limits.tpot_s}
    times = {"ttft": float(found.ttft_s[0]), "tpot": float(found.tpot_s[0])}
    needed = {
        name: max(_rounded_up(times[name]), limit) for name, limit in limits.items() if limit is not None
    }
    option = " ".join(f"--{name} {limit * 1e3:g}ms" for name, limit in needed.items())
    return WayOut(change="limits", from_=limits, to=needed, option=option)


def _without(limits: Limits, name: str) -> Limits:
    return Limits(
        ttft_s=None if name == "ttft" else limits.ttft_s,
        tpot_s=None if name == "tpot" else limits.tpot_s,
        percentile=limits.percentile,
    )


def _least(candidate: Candidate, question: Question, name: str) -> float:
    """Return the least time of a kind at which a candidate keeps everything else, among a few points."""
    import numpy as np

    other = copy(candidate)
    other.question = question
    size, chunk = _few(other)
    found = candidate.points(size, chunk)
    kept = other.logs(found, size, chunk)[1:-1].max(axis=0) <= 0
    times = getattr(found, f"{name}_s")
    return float(np.where(kept, times, np.inf).min())


def _some(chunks: list[int]) -> list[int]:
    return chunks if len(chunks) <= TRIED else [chunks[len(chunks) * i // TRIED] for i in range(TRIED)]


def _rounded_up(value: float) -> float:
    """Return a time rounded up to three digits."""
    unit = 10.0 ** (math.floor(math.log10(value)) - DIGITS + 1)
    return float(f"{math.ceil(value / unit * (1 - 1e-12)) * unit:.12g}")
