"""From a relaxed optimum to whole numbers: exact neighbours, and all of them where one asks."""

from __future__ import annotations

import math
from typing import Any

from kvroof.ground.record import record
from kvroof.search.candidates import Candidate
from kvroof.search.points import LEAST_CHUNK

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
    """
    best: Point | None = None
    middle = min(max(round(size), candidate.least), candidate.whole)
    for _ in range(MOVES):
        chunks = near_chunks(candidate, middle, chunk)
        found = best_of(candidate, _neighbours(candidate, middle), chunks)
        if best is not None and found.rank <= best.rank:
            break
        best, middle = found, found.size
        chunk = chunk if found.chunk is None else float(found.chunk)
    assert best is not None
    return best


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


def best_of(candidate: Candidate, sizes: Any, chunks: list[Any]) -> Point:
    """Return the best of all pairs of whole sizes and chunks."""
    import numpy as np

    if chunks == [None]:
        size, chunk = np.array(sizes, dtype=int), None
    else:
        size, chunk = (
            part.ravel() for part in np.meshgrid(np.array(sizes, int), np.array(chunks, int), indexing="ij")
        )
    found = candidate.functions(size, chunk)
    value, excess = found[0], found[1:-1].max(axis=0)
    kept = excess <= 0
    at = int(np.where(kept, value, -np.inf).argmax()) if kept.any() else int(excess.argmin())
    return Point(
        size=int(size[at]),
        chunk=None if chunk is None else int(chunk[at]),
        value=float(value[at]),
        excess=max(float(excess[at]), 0.0) if not kept[at] else min(float(excess[at]), 0.0),
    )


def exhaustive(candidate: Candidate) -> Point:
    """Return the best of every whole size and chunk of a candidate."""
    chunks: list[Any] = list(every_chunk(candidate)) if candidate.chunked else [None]
    rows = max(BLOCK // len(chunks), 1)
    starts = range(candidate.least, candidate.whole + 1, rows)
    blocks = (range(s, min(s + rows, candidate.whole + 1)) for s in starts)
    return max((best_of(candidate, block, chunks) for block in blocks), key=lambda point: point.rank)
