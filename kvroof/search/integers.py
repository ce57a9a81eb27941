"""From a relaxed optimum to whole numbers: exact neighbours, and all of them where one asks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from kvroof.ground.errors import KvroofError
from kvroof.ground.record import record
from kvroof.search.candidates import Candidate, together
from kvroof.search.points import LEAST_CHUNK, Served

MOVES = 24
"""Moves towards something better at most."""
EVEN_CUTS = 6
"""Chunks that cut prompts into equal parts that are tried beside the nearest ones."""
BLOCK = 16_384
"""Points that are evaluated at once when all are."""


@record
class Point:
    """A point in whole numbers: size, chunk (None runs prompts whole), log objective, and excess over limits.

    `excess` is the largest log of a quantity over its limit; the point keeps them where it is 0 or less.
    """

    size: int
    chunk: int | None
    value: float
    excess: float

    @property
    def feasible(self) -> bool:
        """Whether every limit is kept."""
        return self.excess <= 0

    @property
    def rank(self) -> tuple[bool, float]:
        """What the better point has more of: limits kept, then the objective; else the lesser excess."""
        return (True, self.value) if self.feasible else (False, -self.excess)


def polish(candidate: Candidate, size: float, chunk: float) -> Point:
    """Return the best exact point that neighbours lead to from a relaxed optimum.

    Neighbours are 1, 2, 4, 8, ... sizes away, each with several chunks: where nothing keeps the limits the
    far ones lead back, and at a limit the near ones lead up to it.

    Raises:
        BadInput: A compute dtype that the machine lacks.
        Unsupported: A peak or a link that is not known.
    """
    (found,) = polished([candidate], [(size, chunk)])
    if isinstance(found, KvroofError):
        raise found
    return found


def polished(
    candidates: Sequence[Candidate], optima: Sequence[tuple[float, float]]
) -> list[Point | KvroofError]:
    """Return what `polish` does for each of many candidates, which take every move together."""
    middles = [
        min(max(round(size), c.least), c.whole) for c, (size, _) in zip(candidates, optima, strict=True)
    ]
    chunks, moving = [chunk for _, chunk in optima], list(range(len(candidates)))
    best: dict[int, Point | KvroofError] = {}
    for _ in range(MOVES):
        places = [
            pairs(_neighbours(c, middle), near_chunks(c, middle, chunk))
            for c, middle, chunk in ((candidates[i], middles[i], chunks[i]) for i in moving)
        ]
        served = together([candidates[i] for i in moving], places)
        still = []
        for i, place, found in zip(moving, places, served, strict=True):
            if isinstance(found, KvroofError):
                best[i] = found
                continue
            point, known = best_of(candidates[i], place, found), best.get(i)
            if isinstance(known, Point) and point.rank <= known.rank:
                continue
            best[i], middles[i] = point, point.size
            chunks[i] = chunks[i] if point.chunk is None else float(point.chunk)
            still.append(i)
        moving = still
        if not moving:
            break
    return [best[i] for i in range(len(candidates))]


def _neighbours(candidate: Candidate, middle: int) -> list[int]:
    """Return a size and those that are powers of two away from it, within the candidate's."""
    low, high = candidate.least, candidate.whole
    away = [2**k for k in range((high - low).bit_length())]
    return sorted({min(max(s, low), high) for a in away for s in (middle - a, middle + a)} | {middle})


def near_chunks(candidate: Candidate, size: int, chunk: float) -> list[Any]:
    """Return chunks to try: multiples of the tile around a chunk, and those that cut prompts evenly."""
    if not candidate.chunked:
        return [None]
    if isinstance(candidate.question.chunk, int):
        return [candidate.question.chunk]
    tile, most = LEAST_CHUNK, every_chunk(candidate)[-1]
    prompt = float(size) if candidate.question.wants_context else candidate.question.isl.mean
    run = prompt - candidate.question.cached
    middle, parts = math.floor(chunk / tile), max(round(run / chunk), 1)
    tried = [(middle + step) * tile for step in (-1, 0, 1, 2)]
    cuts = range(max(parts // 2, 1), 2 * parts + 1)
    near = sorted(cuts, key=lambda k: abs(k - parts))[:EVEN_CUTS]
    tried += [math.ceil(run / k / tile) * tile for k in near]
    return sorted({min(max(c, tile), most) for c in tried})


def every_chunk(candidate: Candidate) -> list[int]:
    """Return all chunks: multiples of the tile, up to the longest prompt or what a step takes."""
    if isinstance(candidate.question.chunk, int):
        return [candidate.question.chunk]
    last = math.ceil(candidate.longest_chunk / LEAST_CHUNK)
    return [LEAST_CHUNK * k for k in range(1, last + 1)]


def pairs(sizes: Sequence[int], chunks: Sequence[Any]) -> tuple[Any, Any]:
    """Return every size with every chunk as two arrays; None where prompts run whole."""
    import numpy as np

    if list(chunks) == [None]:
        return np.array(sizes, dtype=int), None
    size, chunk = np.meshgrid(np.array(sizes, int), np.array(chunks, int), indexing="ij")
    return size.ravel(), chunk.ravel()


def best_of(candidate: Candidate, place: tuple[Any, Any], served: Served) -> Point:
    """Return the best of some whole points, from what they serve."""
    import numpy as np

    size, chunk = place
    found = candidate.logs(served, size, chunk)
    value, excess = found[0], found[1:-1].max(axis=0)
    kept = excess <= 0
    at = int(np.where(kept, value, -np.inf).argmax()) if kept.any() else int(excess.argmin())
    return Point(
        size=int(size[at]),
        chunk=None if chunk is None else int(chunk[at]),
        value=float(value[at]),
        excess=max(float(excess[at]), 0.0) if not kept[at] else min(float(excess[at]), 0.0),
    )


def whole_points(candidate: Candidate) -> int:
    """Return how many whole sizes and chunks a candidate has."""
    chunks = len(every_chunk(candidate)) if candidate.chunked else 1
    return int(candidate.whole - candidate.least + 1) * chunks


def exhaustive(candidate: Candidate) -> Point:
    """Return the best of every whole size and chunk of a candidate."""
    chunks: list[Any] = list(every_chunk(candidate)) if candidate.chunked else [None]
    rows = max(BLOCK // len(chunks), 1)
    starts = range(candidate.least, candidate.whole + 1, rows)
    places = (pairs(range(s, min(s + rows, candidate.whole + 1)), chunks) for s in starts)
    found = (best_of(candidate, place, candidate.points(*place)) for place in places)
    return max(found, key=lambda point: point.rank)
