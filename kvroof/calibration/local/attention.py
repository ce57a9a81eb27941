"""Programs that attend: the engine's own paged attention, its writes with it, by length, batch and heads.

One program is compiled for a number of rows and a width of block tables, as the engine does; the sequences in
it and their lengths are data, so that it gives several points.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from kvroof.calibration import work
from kvroof.calibration.local.bench import SEED, Bench, Call, copies
from kvroof.calibration.local.products import ARRAYS, TINY
from kvroof.ground.dtypes import DTYPES
from kvroof.ground.numeric import ceil_div

BLOCK_SIZE = 16
MOST_LAYERS = 8


class Heads(NamedTuple):
    """KV heads, queries to each, and their width."""

    kv_heads: int
    group: int
    head_dim: int


class Rows(NamedTuple):
    """A compiled program: `rows` of `query_len` tokens over tables of `tokens`.

    `points` are the (real rows, cached tokens) that it is measured for.
    """

    rows: int
    query_len: int
    tokens: int
    heads: Heads
    points: tuple[tuple[int, int], ...]

    @property
    def phase(self) -> str:
        """Decode where a row is one token."""
        return "decode" if self.query_len == 1 else "prefill"


def decodes(rows: int, tokens: int, heads: Heads, points: tuple[tuple[int, int], ...]) -> Rows:
    """Return a program of one token per sequence, measured for (sequences, cached tokens)."""
    return Rows(rows, 1, tokens, heads, points)


def prefills(rows: int, length: int, heads: Heads, batches: tuple[int, ...]) -> Rows:
    """Return a program of whole prompts of one length, measured for numbers of them."""
    return Rows(rows, length, length, heads, tuple((batch, length) for batch in batches))


def attention(program: Rows, dtype: str, llc_bytes: float) -> list[Bench]:
    """Return a program's points; several layers' caches are gone through, so that none is still warm."""
    size, heads = DTYPES[dtype].row_bytes(1), program.heads
    family = f"attention.{program.phase}" + (".fp32" if dtype == "fp32" else "")
    make = work.decode if program.query_len == 1 else work.prefill
    one = program.rows * program.tokens * heads.kv_heads * 2 * heads.head_dim * size
    layers = copies(one, llc_bytes, MOST_LAYERS if program.query_len == 1 else 1)
    found = []
    for batch, kv_len in program.points:
        did = make(batch, kv_len, heads.kv_heads * heads.group, heads.kv_heads, heads.head_dim, size, size)
        said = f"{batch} x {kv_len}, {heads.kv_heads} x {heads.group} heads of {heads.head_dim}"
        call = partial(_call, program, dtype, layers, batch, kv_len)
        found.append(Bench(family, said, dtype, did, layers, call))
    return found


def forget() -> None:
    """Let go of the programs and their data."""
    _program.cache_clear()


def _call(program: Rows, dtype: str, layers: int, batch: int, kv_len: int) -> Call:
    """Return a call in which the first `batch` rows are sequences that have `kv_len` tokens after it."""
    import jax

    held = _program(program._replace(points=()), dtype, layers)
    real = np.arange(program.rows) < batch
    lens, queries = np.where(real, kv_len, 0), np.where(real, program.query_len, 0)
    positions = np.arange(kv_len - program.query_len, kv_len)
    slots = held.blocks[..., positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
    slots = np.where(real[None, :, None], slots, -1).reshape(layers, -1)
    given = jax.device_put(tuple(a.astype(np.int32) for a in (slots, lens, queries)))
    return lambda poison: held.run(poison, given)


class _Held:
    """A program with its data, which its points share; the cache is donated from call to call."""

    def __init__(self, blocks: Any, run: Any, data: tuple[Any, ...], pages: Any) -> None:
        self.blocks, self._run, self._data, self._pages = blocks, run, data, pages

    def run(self, poison: float, given: Any) -> Any:
        """Return a few of the outputs, all of them, and the cache."""
        answer, out, self._pages = self._run(poison, self._pages, given, *self._data)
        return answer, out, self._pages


@cache
def _program(program: Rows, dtype: str, layers: int) -> _Held:
    import jax
    import jax.numpy as jnp

    from kvroof.engine.paged_attention import paged_attention
    from kvroof.engine.pages import Pages, write_pages

    rows, query_len, tokens, (kv_heads, group, head_dim), _ = program
    draw, array = np.random.default_rng(SEED), jnp.dtype(ARRAYS[dtype])
    width = ceil_div(tokens, BLOCK_SIZE)
    blocks = draw.permutation(layers * rows * width).reshape(layers, rows, width).astype(np.int32)

    def normal(*shape: int) -> Any:
        return jax.device_put(draw.standard_normal(shape, np.float32).astype(array))

    def pages() -> Any:
        return normal(kv_heads, blocks.size, BLOCK_SIZE, head_dim)

    queries = normal(rows, query_len, kv_heads * group, head_dim)
    entry = normal(rows * query_len, kv_heads, head_dim)

    @partial(jax.jit, donate_argnums=1)
    def run(poison: Any, pages: Any, given: Any, tables: Any, queries: Any, entry: Any) -> Any:
        slots, lens, query_lens = given
        small = jnp.asarray(TINY, queries.dtype)

        def layer(index: Any, carry: Any) -> Any:
            pages, queries = carry
            new = entry * poison.astype(entry.dtype)
            pages = write_pages(pages, slots[index], new, new)
            out = paged_attention(
                queries, pages, tables[index], lens, scale=head_dim**-0.5, query_lens=query_lens
            )
            return pages, queries + out * small, out

        def step(index: Any, carry: Any) -> Any:
            return layer(index, carry[:2])

        start = (pages, queries * poison.astype(queries.dtype), jnp.zeros_like(queries))
        done = (
            step(jnp.int32(0), start)
            if layers == 1
            else jax.lax.fori_loop(jnp.int32(0), jnp.int32(layers), step, start)
        )
        return done[2].reshape(-1)[:8], done[2], done[0]

    return _Held(blocks, run, (jax.device_put(blocks), queries, entry), Pages(k=pages(), v=pages()))
