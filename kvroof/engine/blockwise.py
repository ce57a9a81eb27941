"""Paged attention in plain JAX: a loop over the blocks a sequence uses, and no others.

The tokens of a sequence are walked in spans, a span in tiles of whole blocks. All tiles of a span are
scored, the softmax of what came before is rescaled once, then the tiles' values are added. Scores are kept
as `[tokens, rows]`: XLA multiplies a tall tile of keys by a few queries faster than the other way round.
"""

# ruff: noqa: F722 - shapes are strings
from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from kvroof.engine.pages import Pages
from kvroof.engine.rows import Rows

Carry = TypeVar("Carry")

CACHED_TILE_BYTES = 2**16
"""Bytes of a tile that is copied once from memory and then multiplied out of a core's own cache."""
MOST_BLOCKS = 8
"""Blocks that are joined into a tile; joining more takes XLA longer than it gains."""
SPAN_TOKENS = 2048
SPAN_SCORES = 2**20
"""Most tokens, and most scores of a KV head, that a span holds."""
LANES = 8
"""Products that are summed apart: a vector of fp32 on most CPUs."""
MOST_ROWS_IN_LANES = 4
WIDEST_IN_LANES = 256


class Tiling(NamedTuple):
    """How the work is cut: `blocks` in a tile, `tiles` in a span, KV `heads` at once, sequences in turn.

    With `in_lanes`, keys are multiplied where they lie, a few elements of every key at a time, instead of
    being copied into a tile first: faster on a CPU for few rows and long sequences.
    """

    blocks: int
    tiles: int
    heads: int
    sequential: bool
    in_lanes: bool = False


def tiling_for(pages: Pages, rows: int, max_blocks: int, platform: str) -> Tiling:
    """Return how to cut the work on a platform for `rows` queries to a KV head.

    On a CPU, tiles of one head fit a core's cache, and sequences follow one another. Elsewhere all heads
    and sequences run side by side.
    """
    if platform != "cpu":
        blocks = min(max(1, 512 // pages.block_size), max_blocks)
        return Tiling(blocks=blocks, tiles=1, heads=pages.num_kv_heads, sequential=False)
    row_bytes = max(pages.k.shape[3], pages.v_dim) * 4
    blocks = min(max(1, CACHED_TILE_BYTES // (row_bytes * pages.block_size)), MOST_BLOCKS, max_blocks)
    tokens = blocks * pages.block_size
    span = min(SPAN_TOKENS, max(SPAN_SCORES // rows, tokens), max_blocks * pages.block_size)
    tiles = max(1, span // tokens)
    in_lanes = rows <= MOST_ROWS_IN_LANES and tiles * tokens >= SPAN_TOKENS and _fits_lanes(pages)
    return Tiling(blocks=blocks, tiles=tiles, heads=1, sequential=True, in_lanes=in_lanes)


def _fits_lanes(pages: Pages) -> bool:
    width, scale = pages.k.shape[3], pages.k_scale
    whole = pages.rope is None and (scale is None or scale.ndim == 0)
    return whole and pages.k.dtype.itemsize >= 4 and width % LANES == 0 and width <= WIDEST_IN_LANES


def blockwise_attention(
    rows: Rows,
    pages: Pages,
    block_tables: Int[Array, "num_seqs max_blocks"],
    *,
    soft_cap: float | None,
) -> Float[Array, "num_seqs num_kv_heads rows v_dim"]:
    """Return each row's attention over its sequence's pages."""
    tiling = tiling_for(pages, rows.first.shape[1], block_tables.shape[1], jax.default_backend())

    def one(each: tuple[Array, ...]) -> Array:
        queries, first, last, start, end, table = each
        mine = Rows(queries, first, last, start, end, rows.sinks)
        return _sequence(mine, pages, table, soft_cap, tiling)

    batch = (rows.queries, rows.first, rows.last, rows.start, rows.end, block_tables)
    out: Array = lax.map(one, batch) if tiling.sequential else jax.vmap(one)(batch)
    return out


def _sequence(
    rows: Rows,
    pages: Pages,
    table: Int[Array, " max_blocks"],
    soft_cap: float | None,
    tiling: Tiling,
) -> Float[Array, "num_kv_heads rows v_dim"]:
    """Return the attention of one sequence's rows, some heads at a time."""
    heads = pages.num_kv_heads

    def some(head: Array, out: Array) -> Array:
        taken = rows._replace(
            queries=lax.dynamic_slice_in_dim(rows.queries, head, tiling.heads),
            sinks=lax.dynamic_slice_in_dim(rows.sinks, head, tiling.heads),
        )
        part = _head_rows(taken, pages, head, table, soft_cap, tiling)
        out = lax.dynamic_update_slice_in_dim(out, part, head, 0)
        return out

    out: Array = jnp.zeros((heads, rows.first.shape[0], pages.v_dim), rows.queries.dtype)
    if tiling.heads == heads:
        return some(jnp.int32(0), out)
    out = lax.fori_loop(jnp.int32(0), jnp.int32(heads), some, out)
    return out


def _head_rows(
    rows: Rows,
    pages: Pages,
    head: Int[Array, ""],
    table: Int[Array, " max_blocks"],
    soft_cap: float | None,
    tiling: Tiling,
) -> Float[Array, "heads rows v_dim"]:
    """Return the attention of the rows of `tiling.heads` KV heads from `head` on."""
    start, end, block_size = rows.start, rows.end, pages.block_size
    exact = rows.queries.dtype
    tile_tokens = tiling.blocks * block_size
    span_blocks = tiling.blocks * tiling.tiles
    first_block = start // block_size
    end_block = -(-end // block_size)
    width = pages.k.shape[3]
    latent, rotary = rows.queries[..., :width], rows.queries[..., width:]

    def tile_of(array: Array, block: Array, *, seen_only: bool = False) -> Array:
        """Return the rows of a tile's blocks; a place past the last used block repeats that one.

        With `seen_only`, rows of tokens that no query sees are 0: a weight of 0 does not undo a NaN.
        """
        parts = []
        for i in range(tiling.blocks):
            place = jnp.minimum(block + i, end_block - 1)
            sizes = (tiling.heads, 1, *array.shape[2:])
            begin = (head, table[place], *[jnp.int32(0)] * (array.ndim - 2))
            part = lax.dynamic_slice(array, begin, sizes)[:, 0].astype(exact)
            if seen_only:
                tokens = (block + i) * block_size + jnp.arange(block_size, dtype=jnp.int32)
                seen = (tokens >= start) & (tokens < end)
                part = jnp.where(seen.reshape(-1, *[1] * (part.ndim - 2)), part, 0)
            parts.append(part)
        return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=1)

    def scores_of(block: Array) -> Float[Array, "heads tile_tokens rows"]:
        scores = _product(tile_of(pages.k, block), latent, (2, 2))
        scores = _scaled(scores, pages.k_scale, block)
        if pages.rope is not None:
            more = _product(tile_of(pages.rope, block), rotary, (2, 2))
            scores = scores + _scaled(more, pages.rope_scale, block)
        return scores

    def _scaled(scores: Array, scale: Array | None, block: Array) -> Array:
        if scale is None:
            return scores
        return scores * (scale.astype(exact) if scale.ndim == 0 else tile_of(scale, block)[..., None])

    def values_of(weights: Float[Array, "heads tile_tokens rows"], block: Array) -> Array:
        scale = pages.value_scale
        if scale is not None and scale.ndim == 0:
            weights = weights * scale.astype(exact)
        elif scale is not None:
            weights = weights * tile_of(scale, block, seen_only=True)[..., None]
        return _product(weights, tile_of(pages.values, block, seen_only=True), (1, 1))

    def span(i: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        top, total, out = carry
        block = first_block + i * span_blocks
        used = -(-(end_block - block) // tiling.blocks)

        def score(j: Array, held: Array) -> Array:
            found = scores_of(block + j * tiling.blocks)
            return lax.dynamic_update_slice_in_dim(held, found, j * tile_tokens, 1)

        def score_in_lanes(j: Array, held: Array) -> Array:
            """Add `LANES` products at a time: XLA reads the blocks themselves then, and makes no copy."""
            for i in range(tiling.blocks):
                nth = j * tiling.blocks + i
                place = table[jnp.minimum(block + nth, end_block - 1)]
                found = jnp.zeros((), exact)
                for lane in range(0, width, LANES):
                    sizes = (1, 1, block_size, LANES)
                    keys = lax.dynamic_slice(pages.k, (head, place, jnp.int32(0), jnp.int32(lane)), sizes)
                    some = keys.astype(exact).reshape(1, block_size, 1, LANES)
                    found = found + some * latent[:, None, :, lane : lane + LANES]
                zero = jnp.int32(0)
                held = lax.dynamic_update_slice(held, found, (zero, nth * block_size, zero, zero))
            return held

        def add(j: Array, held: Array) -> Array:
            taken = lax.dynamic_slice_in_dim(weights, j * tile_tokens, tile_tokens, 1)
            return held + values_of(taken, block + j * tiling.blocks)

        empty = jnp.zeros((tiling.heads, tiling.tiles * tile_tokens, rows.first.shape[0]), exact)
        if tiling.in_lanes:
            lanes = _each_tile(tiling.tiles, used, score_in_lanes, jnp.zeros((*empty.shape, LANES), exact))
            scores = _scaled(lanes @ jnp.ones((LANES,), exact), pages.k_scale, block)
        else:
            scores = _each_tile(tiling.tiles, used, score, empty)
        if soft_cap is not None:
            scores = soft_cap * jnp.tanh(scores / soft_cap)
        tokens = (block * block_size + jnp.arange(empty.shape[1], dtype=jnp.int32))[:, None]
        scores = jnp.where((tokens >= rows.first) & (tokens <= rows.last), scores, -jnp.inf)
        higher = jnp.maximum(top, scores.max(axis=1))
        base = jnp.where(higher == -jnp.inf, 0, higher)
        weights, kept = jnp.exp(scores - base[:, None]), jnp.exp(top - base)
        out = _each_tile(tiling.tiles, used, add, out * kept[..., None])
        return higher, total * kept + weights.sum(axis=1), out

    spans = -(-(end_block - first_block) // span_blocks)
    begin = (
        rows.sinks,
        jnp.where(rows.sinks == -jnp.inf, 0, jnp.ones_like(rows.sinks)),
        jnp.zeros((tiling.heads, rows.first.shape[0], pages.v_dim), exact),
    )
    _, total, out = lax.fori_loop(jnp.int32(0), spans, span, begin)
    done: Array = out / jnp.where(total == 0, 1, total)[..., None]
    return done


def _each_tile(tiles: int, used: Array, body: Callable[[Array, Carry], Carry], carry: Carry) -> Carry:
    """Return the carry after the used tiles of a span."""
    if tiles == 1:
        return body(jnp.int32(0), carry)
    end: Carry = lax.fori_loop(jnp.int32(0), jnp.minimum(used, tiles), body, carry)
    return end


def _product(a: Array, b: Array, contract: tuple[int, int]) -> Array:
    """Return the product over one axis of each, head by head, in the precision of its operands."""
    dims = (((contract[0],), (contract[1],)), ((0,), (0,)))
    return lax.dot_general(a, b, dims, precision=lax.Precision.HIGHEST)
