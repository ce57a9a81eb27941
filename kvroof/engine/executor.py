"""The device side of an engine: a decoder, its cache, and the few jitted calls that touch them.

Shapes are padded to powers of two, so that few are ever compiled. A shape is compiled by an empty step
before it is timed, and what that takes is kept apart from the clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import jax
import numpy as np

from kvroof.engine.cache import (
    Cache,
    CachePlan,
    Tables,
    copy_blocks,
    formats,
    new_cache,
    read_blocks,
    write_blocks,
)
from kvroof.engine.decoder import Step, new_decoder, run_step
from kvroof.ground.record import record, static
from kvroof.spec.architecture import Architecture

Listed = tuple[Sequence[int], ...]
"""Blocks by group."""
_FEWEST_MOVED = 8


@record
class Settings:
    """How large an engine is, and what it computes and stores in.

    Args:
        block_size: Tokens in a block.
        num_blocks: Blocks for tokens.
        host_blocks: Blocks in host memory, for swapping.
        snapshots: Prefixes whose windows and states are kept for reuse; needed only by models that have
            such layers.
        snapshot_tokens: Prompts are cut at its multiples for those; a multiple of the block.
        dtype: What the decoder computes in.
        kv_dtype: What keys and values are stored in; as `dtype` where None.
        fewest_seqs: Rows of the smallest step; larger ones have powers of two times as many.
        fewest_queries: The same for the tokens of a prompt's row. Decode has one.
        fewest_blocks: The same for the entries of a block table.
    """

    block_size: int = 16
    num_blocks: int = 64
    host_blocks: int = 0
    snapshots: int = 0
    snapshot_tokens: int | None = None
    dtype: str = static(default="float32")
    kv_dtype: str | None = static(default=None)
    fewest_seqs: int = 1
    fewest_queries: int = 16
    fewest_blocks: int = 8


class Row(NamedTuple):
    """One sequence of a step: the tokens to run, the tokens cached after them, its blocks by group."""

    tokens: Sequence[int]
    kv_len: int
    tables: Listed


class Ran(NamedTuple):
    """What a step sampled for each row, by what margin, its padded shape, and the seconds it took."""

    tokens: tuple[int, ...]
    margins: tuple[float, ...]
    shape: tuple[int, int]
    seconds: float


def padded(number: int, fewest: int) -> int:
    """Return the smallest power of two times `fewest` that is at least `number`."""
    size = fewest
    while size < number:
        size *= 2
    return size


class Executor:
    """A decoder of `model` with random weights and a cache with `num_blocks` blocks in each group.

    Raises:
        Unsupported: A part of the model that the engine does not run.
    """

    def __init__(
        self,
        model: Architecture,
        plan: CachePlan,
        settings: Settings,
        num_blocks: Sequence[int],
        seed: int,
    ) -> None:
        self.plan, self.settings, self.num_blocks = plan, settings, tuple(num_blocks)
        kv_dtype = settings.kv_dtype or settings.dtype
        self.weights = new_decoder(model, self.plan, settings.dtype, seed)
        self.cache: Cache = new_cache(self.plan, self.num_blocks, settings.dtype, kv_dtype)
        self.kv_format, self.state_format = formats(settings.dtype, kv_dtype)
        self.compile_s = 0.0
        self._compiled: set[tuple[object, ...]] = set()
        self._began = time.perf_counter()

    def now(self) -> float:
        """Return the seconds since the engine was made, compiling left out."""
        return time.perf_counter() - self._began - self.compile_s

    def run(self, rows: Sequence[Row], query_len: int) -> Ran:
        """Return what `rows` of at most `query_len` tokens sample; their keys and values enter the cache."""
        step: Step = self._step(rows, query_len)
        num_seqs, width = step.tokens.shape
        shape = (num_seqs, width, step.tables[0].shape[1])
        self._first(shape, lambda: self._call(_empty(step)))
        tokens, margins, seconds = self._call(step)
        count = len(rows)
        return Ran(
            tokens=tuple(map(int, tokens[:count])),
            margins=tuple(map(float, margins[:count])),
            shape=(num_seqs, width),
            seconds=seconds,
        )

    def copy(self, sources: Listed, targets: Listed) -> None:
        """Copy blocks within each group."""
        if not any(targets):
            return
        found, wanted = _lists(sources), _lists(targets)
        self._first(("copy", *_sizes(wanted)), lambda: self._copy(found, _none(wanted)))
        self._copy(found, wanted)

    def _copy(self, sources: Tables, targets: Tables) -> None:
        self.cache = copy_blocks(self.plan, self.cache, sources, targets)

    def read(self, blocks: Listed) -> Cache:
        """Return the contents of `blocks` of each group, in host memory."""
        wanted = _lists(blocks)
        self._first(("read", *_sizes(wanted)), lambda: read_blocks(self.plan, self.cache, wanted))
        found = read_blocks(self.plan, self.cache, wanted)
        return self._each(found, blocks, lambda array, axis, count: array.take(np.arange(count), axis))

    def write(self, blocks: Listed, contents: Cache) -> None:
        """Write `contents`, which `read` returned, to `blocks` of each group."""

        def widened(array: np.ndarray, axis: int, count: int) -> np.ndarray:
            widths = [(0, 0)] * array.ndim
            widths[axis] = (0, padded(count, _FEWEST_MOVED) - count)
            return np.pad(array, widths)

        rows, wanted = self._each(contents, blocks, widened), _lists(blocks)
        self._first(("write", *_sizes(wanted)), lambda: self._write(_none(wanted), rows))
        self._write(wanted, rows)

    def _write(self, blocks: Tables, rows: Cache) -> None:
        self.cache = write_blocks(self.plan, self.cache, blocks, rows)

    def _first(self, what: tuple[object, ...], act: Callable[[], object]) -> None:
        """Do `act`, which changes nothing, where `what` is new, and keep its time apart: it compiles."""
        if what in self._compiled:
            return
        began = time.perf_counter()
        act()
        self.compile_s += time.perf_counter() - began
        self._compiled.add(what)

    def _each(
        self, contents: Cache, blocks: Listed, act: Callable[[np.ndarray, int, int], np.ndarray]
    ) -> Cache:
        """Return `contents` with `act(array, axis of its blocks, their number)` for each array."""
        counts = [len(blocks[group]) for _, group in self.plan.pages]
        pages = tuple(
            jax.tree_util.tree_map(lambda a, n=count: act(np.asarray(a), 1, n), held)
            for held, count in zip(contents.pages, counts, strict=True)
        )
        states = tuple(
            jax.tree_util.tree_map(lambda a: act(np.asarray(a), 0, len(blocks[-1])), held)
            for held in contents.states
        )
        return Cache(pages, states)

    def _step(self, rows: Sequence[Row], query_len: int) -> Step:
        settings = self.settings
        num_seqs = padded(len(rows), settings.fewest_seqs)
        width = 1 if query_len == 1 else padded(query_len, settings.fewest_queries)
        longest = padded(max(len(row.tables[0]) for row in rows), settings.fewest_blocks)
        tokens = np.zeros((num_seqs, width), np.int32)
        lens = np.zeros((2, num_seqs), np.int32)
        tables = [
            np.full((num_seqs, longest if group.ring is None else group.ring), -1, np.int32)
            for group in self.plan.groups
        ]
        for index, row in enumerate(rows):
            tokens[index, : len(row.tokens)] = row.tokens
            lens[:, index] = len(row.tokens), row.kv_len
            for table, blocks in zip(tables, row.tables, strict=True):
                table[index, : len(blocks)] = blocks
        return Step(_put(tokens), _put(lens[0]), _put(lens[1]), tuple(map(_put, tables)))

    def _call(self, step: Step) -> tuple[np.ndarray, np.ndarray, float]:
        began = time.perf_counter()
        sampled, self.cache = run_step(self.weights.graph, self.weights.state, self.plan, self.cache, step)
        jax.block_until_ready((sampled, self.cache))  # type: ignore[no-untyped-call]
        seconds = time.perf_counter() - began
        return np.asarray(sampled.tokens), np.asarray(sampled.margins), seconds


def _empty(step: Step) -> Step:
    """Return a step of the same shape in which no row has a token."""
    none = _put(np.zeros(step.kv_lens.shape, np.int32))
    return step._replace(query_lens=none, kv_lens=none)


def _put(array: np.ndarray) -> jax.Array:
    """Return a host array on the device, as it is: nothing is compiled for that."""
    return cast(jax.Array, jax.device_put(array))


def _sizes(blocks: Tables) -> tuple[int, ...]:
    return tuple(len(group) for group in blocks)


def _none(blocks: Tables) -> Tables:
    """Return lists as long that name no block."""
    return tuple(_put(np.full(len(group), -1, np.int32)) for group in blocks)


def _lists(blocks: Listed) -> Tables:
    """Return the blocks of each group as arrays of few different lengths, -1 behind."""
    arrays = []
    for group in blocks:
        array = np.full(padded(len(group), _FEWEST_MOVED), -1, np.int32)
        array[: len(group)] = group
        arrays.append(_put(array))
    return tuple(arrays)
