"""A deployment's step times for the simulator: asked a few hundred times, interpolated a million times.

A step's time is taken apart into what a table can hold:

    decode(B, mean context) + beside(n, mean query_len, B) + reading(n, mean query_len, mean tokens before)

`beside` is what running the tokens of n prompts adds to a decode step of B, with nothing cached before them,
and `reading` is what the tokens that are cached before them add, whose mean is weighted so that the pairs of
a query and a cached key are right. Each is asked on a grid when it is first needed and is linear between.
Means are not the whole truth: where windows are shorter than some contexts and longer than others, or
chunks of one step differ much, a step is some per cent off; `tests/serving/simulation/test_step_table.py`
says how far.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from kvroof.ground.errors import BadInput
from kvroof.serving.simulation.step_batch import StepBatch
from kvroof.serving.step_times import StepTimes

STEP = 1.25
"""Ratio of neighbouring points of a grid."""


class StepTable:
    """Seconds of a `StepBatch`, from a table of `times` that grows as it is asked.

    Args:
        times: The deployment's step times.
        most_tokens: Tokens that a sequence has at most.
        most_query_tokens: Prompt tokens of a step at most.
        swap_block_s: Seconds that copying one block to or from the host adds to a step.
    """

    def __init__(
        self, times: StepTimes, *, most_tokens: int, most_query_tokens: int, swap_block_s: float = 0.0
    ) -> None:
        if most_tokens < 1 or most_query_tokens < 1:
            raise BadInput(f"{most_tokens} tokens, {most_query_tokens} in a step", where="step table")
        self._times, self._swap_s = times, swap_block_s
        self._contexts, self._queries = _grid(most_tokens), _grid(most_query_tokens)
        self._reference = most_tokens / 4
        self._decodes: dict[int, list[float]] = {}
        self._prompts: dict[tuple[int, int], list[float]] = {}
        self._cached: dict[int, list[list[float]]] = {}
        self._last = (-1, 0.0, 0.0, 0.0, 0.0)

    def __call__(self, batch: StepBatch) -> float:
        """Return the seconds of a step."""
        count, kv = batch.decodes, batch.decode_kv
        size, low, high, base, slope = self._last
        if count == size and low <= kv < high:
            seconds = base + slope * kv
        else:
            seconds = self._decode(count, kv) if count else 0.0
        if batch.prefills:
            prompts, tokens, pairs = len(batch.prefills), 0, 0
            for query_len, kv_len in batch.prefills:
                tokens += query_len
                pairs += query_len * (kv_len - query_len)
            seconds += self._beside(prompts, tokens / prompts, count)
            if pairs:
                seconds += self._reading(prompts, tokens / prompts, pairs / tokens)
        return seconds + self._swap_s * batch.swapped_blocks

    def _decode(self, count: int, kv: int) -> float:
        """Return a decode of `count` sequences, and keep the piece it lies on for the next steps."""
        known = self._decodes.get(count)
        if known is None:
            known = self._decodes[count] = _numbers(self._times.decode_s(count, _array(self._contexts)))
        grid = self._contexts
        place = _place(grid, kv / count)
        slope = (known[place + 1] - known[place]) / (grid[place + 1] - grid[place]) / count
        base = known[place] - slope * grid[place] * count
        self._last = (count, grid[place] * count, grid[place + 1] * count, base, slope)
        return base + slope * kv

    def _beside(self, prompts: int, tokens: float, count: int) -> float:
        """Return what prompts of `tokens` each with nothing cached add to a decode of `count`."""
        known = self._prompts.get((prompts, count))
        if known is None:
            each = _array(self._queries)
            if count:
                both = self._times.mixed_s(each, 0, prompts, count, self._reference)
                made = both - self._times.decode_s(count, self._reference)
            else:
                made = self._times.prefill_s(each, 0, prompts)
            known = self._prompts[prompts, count] = _numbers(made)
        return _between(self._queries, known, _place(self._queries, tokens), tokens)

    def _reading(self, prompts: int, tokens: float, before: float) -> float:
        """Return what reading the tokens before them adds to the chunks of `prompts`."""
        known = self._cached.get(prompts)
        if known is None:
            known = self._cached[prompts] = self._all_reading(prompts)
        row, column = _place(self._queries, tokens), _place(self._contexts, before)
        low, high = (_between(self._contexts, known[i], column, before) for i in (row, row + 1))
        left, right = self._queries[row], self._queries[row + 1]
        return low + (high - low) * (tokens - left) / (right - left)

    def _all_reading(self, prompts: int) -> list[list[float]]:
        import numpy as np

        queries, contexts = _array(self._queries), _array(self._contexts)
        tokens, before = (grid.ravel() for grid in np.meshgrid(queries, contexts, indexing="ij"))
        reading = np.asarray(self._times.prefill_s(tokens, before, prompts))
        grown = reading - self._times.prefill_s(tokens, 0, prompts)
        return [_numbers(row) for row in grown.reshape(len(queries), len(contexts))]


def _grid(most: int) -> list[float]:
    """Return points from 1 to `most` at least, each `STEP` times the one before, all of them whole."""
    points = [1.0, 2.0]
    while points[-1] < most:
        points.append(max(points[-1] + 1, float(round(points[-1] * STEP))))
    return points


def _place(grid: list[float], value: float) -> int:
    """Return the piece of `grid` that `value` lies on; beyond its ends, the first or the last."""
    return min(max(bisect_right(grid, value) - 1, 0), len(grid) - 2)


def _between(grid: list[float], values: list[float], place: int, value: float) -> float:
    low, high = values[place], values[place + 1]
    return low + (high - low) * (value - grid[place]) / (grid[place + 1] - grid[place])


def _array(points: list[float]) -> Any:
    import numpy as np

    return np.asarray(points)


def _numbers(values: Any) -> list[float]:
    return [float(value) for value in values]
