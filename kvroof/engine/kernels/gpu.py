"""Paged attention on a GPU: a Pallas kernel that Triton compiles.

One program takes some rows of one KV head of one sequence, and one split of its blocks. Splits keep the
whole chip busy when there are few sequences; their softmaxes are joined at the end.
"""

# ruff: noqa: F722 - shapes are strings
from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as triton
from jaxtyping import Array, Float, Int

from kvroof.engine.pages import Pages
from kvroof.engine.rows import Rows

LEAST_ROWS = 16
"""Rows of the smallest product that tensor cores take."""
MOST_ROWS = 64
TILE_ELEMENTS = 2**14
"""Elements of a tile of keys: 64 tokens of 256, or 128 of 128."""
LOWEST = -1e30


def gpu_paged_attention(
    rows: Rows,
    pages: Pages,
    block_tables: Int[Array, "num_seqs max_blocks"],
    *,
    soft_cap: float | None = None,
    splits: int = 8,
    interpret: bool = False,
) -> Float[Array, "num_seqs num_kv_heads rows v_dim"]:
    """Return each row's attention over its sequence's pages. Widths and `block_size` are powers of two.

    Scales are one number for the tensor. Products of bf16 pages are made in bf16 and added in fp32.
    """
    num_seqs, heads, count, _ = rows.queries.shape
    width, v_dim, rope_dim = pages.k.shape[3], pages.v_dim, pages.qk_dim - pages.k.shape[3]
    taken = min(max(LEAST_ROWS, _power_of_two(count)), LEAST_ROWS if v_dim > 256 else MOST_ROWS)
    parts = pl.cdiv(count, taken)
    padding = parts * taken - count
    max_blocks = block_tables.shape[1]
    blocks = max(1, min(TILE_ELEMENTS // (max(width, v_dim) * pages.block_size), _power_of_two(max_blocks)))
    operand = jnp.bfloat16 if pages.k.dtype.itemsize < 4 else jnp.float32

    queries = jnp.pad(rows.queries, ((0, 0), (0, 0), (0, padding), (0, 0)))
    if pages.k_scale is not None:
        queries = queries.at[..., :width].multiply(pages.k_scale)
    if pages.rope_scale is not None:
        queries = queries.at[..., width:].multiply(pages.rope_scale)
    queries = queries.astype(operand)
    first = jnp.pad(rows.first, ((0, 0), (0, padding)))
    last = jnp.pad(rows.last, ((0, 0), (0, padding)), constant_values=-1)
    bounds = jnp.stack([rows.start, rows.end], axis=1)

    def by_row(dim: int) -> pl.BlockSpec:
        return pl.BlockSpec((None, None, taken, dim), lambda s, h, k: (s, h // parts, h % parts, 0))

    def whole(x: Array) -> pl.BlockSpec:
        return pl.BlockSpec((None, *x.shape[1:]), lambda s, h, k: (h // parts, 0, 0, 0))

    of_row = pl.BlockSpec((None, taken), lambda s, h, k: (s, h % parts))
    inputs = [queries[..., :width], pages.k]
    specs = [by_row(width), whole(pages.k)]
    if pages.rope is not None:
        inputs += [queries[..., width:], pages.rope]
        specs += [by_row(rope_dim), whole(pages.rope)]
    if pages.v is not None:
        inputs += [pages.v]
        specs += [whole(pages.v)]
    split_spec = pl.BlockSpec((None, None, None, taken), lambda s, h, k: (k, s, h // parts, h % parts))
    shape = (splits, num_seqs, heads, parts * taken)
    out, top, total = pl.pallas_call(
        partial(
            _kernel,
            blocks=blocks,
            splits=splits,
            soft_cap=soft_cap,
            has_rope=pages.rope is not None,
            has_v=pages.v is not None,
            operand=operand,
        ),
        grid=(num_seqs, heads * parts, splits),
        in_specs=[
            pl.BlockSpec((None, 2), lambda s, h, k: (s, 0)),
            pl.BlockSpec((None, max_blocks), lambda s, h, k: (s, 0)),
            of_row,
            of_row,
            *specs,
        ],
        out_specs=[
            pl.BlockSpec((None, None, None, taken, v_dim), lambda s, h, k: (k, s, h // parts, h % parts, 0)),
            split_spec,
            split_spec,
        ],
        out_shape=[
            _fp32(*shape, v_dim),
            _fp32(*shape),
            _fp32(*shape),
        ],
        compiler_params=triton.CompilerParams(num_warps=4, num_stages=2),
        interpret=interpret,
        name="paged_attention",
    )(bounds, block_tables, first, last, *inputs)
    joined = _join(out[:, :, :, :count], top[..., :count], total[..., :count], rows.sinks)
    return joined if pages.value_scale is None else joined * pages.value_scale


def _join(out: Array, top: Array, total: Array, sinks: Array) -> Array:
    """Return the splits' outputs as one softmax, sinks included."""
    highest = jnp.maximum(top.max(axis=0), sinks)
    kept = jnp.exp(top - highest)
    denominator = (total * kept).sum(axis=0) + jnp.exp(sinks - highest)
    joined = (out * kept[..., None]).sum(axis=0)
    return joined / jnp.where(denominator == 0, 1, denominator)[..., None]


def _kernel(
    bounds_ref: Any,
    table_ref: Any,
    first_ref: Any,
    last_ref: Any,
    q_ref: Any,
    k_ref: Any,
    *refs: Any,
    blocks: int,
    splits: int,
    soft_cap: float | None,
    has_rope: bool,
    has_v: bool,
    operand: Any,
) -> None:
    refs, (out_ref, top_ref, total_ref) = refs[:-3], refs[-3:]
    rotary_ref, rope_ref = refs[:2] if has_rope else (None, None)
    v_ref = refs[-1] if has_v else k_ref
    block_size, v_dim = v_ref.shape[1:]
    tile = blocks * block_size
    start, end = bounds_ref[0], bounds_ref[1]
    begin, finish = start // block_size, pl.cdiv(end, block_size)
    share = pl.cdiv(jnp.maximum(finish - begin, 0), splits)
    begin = begin + pl.program_id(2) * share
    stop = jnp.minimum(begin + share, finish)
    q, first, last = q_ref[...], first_ref[...][:, None], last_ref[...][:, None]
    rotary: Any = rotary_ref[...] if has_rope else None
    exactly = lax.Precision.HIGHEST if operand == jnp.float32 else None

    def product(a: Array, b: Array) -> Array:
        return jnp.dot(a, b, precision=exactly, preferred_element_type=jnp.float32)

    def body(i: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        top, total, out = carry
        block = begin + i * blocks
        places = jnp.minimum(block + jnp.arange(blocks), finish - 1)
        ids = table_ref[places]
        tokens = block * block_size + jnp.arange(tile)
        k = k_ref[ids].reshape(tile, -1).astype(operand)
        scores = product(q, k.T)
        if has_rope:
            scores = scores + product(rotary, rope_ref[ids].reshape(tile, -1).astype(operand).T)
        if soft_cap is not None:
            scores = soft_cap * jnp.tanh(scores / soft_cap)
        seen = (tokens[None] >= first) & (tokens[None] <= last) & (tokens[None] < stop * block_size)
        scores = jnp.where(seen, scores, LOWEST)
        higher = jnp.maximum(top, scores.max(axis=1))
        weights = jnp.where(seen, jnp.exp(scores - higher[:, None]), 0.0)
        kept = jnp.exp(top - higher)
        v = v_ref[ids].reshape(tile, -1).astype(operand) if has_v else k
        known = (tokens >= start) & (tokens < end)
        v = jnp.where(known[:, None], v, jnp.zeros_like(v))
        out = out * kept[:, None] + product(weights.astype(operand), v)
        return higher, total * kept + weights.sum(axis=1), out

    count = q.shape[0]
    carry = (
        jnp.full((count,), LOWEST, jnp.float32),
        jnp.zeros((count,), jnp.float32),
        jnp.zeros((count, v_dim), jnp.float32),
    )
    tiles = jnp.maximum(pl.cdiv(stop - begin, blocks), 0)
    top, total, out = lax.fori_loop(0, tiles, body, carry)
    out_ref[...], top_ref[...], total_ref[...] = out, top, total


def _fp32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)  # type: ignore[no-untyped-call]


def _power_of_two(count: int) -> int:
    """Return the smallest power of two that is at least `count`."""
    return 1 << max(count - 1, 0).bit_length()
