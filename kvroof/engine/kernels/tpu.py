"""Paged attention on a TPU: a Pallas kernel that Mosaic compiles.

The block table is prefetched as scalars, so that the pipeline fetches the block of each step while the one
before it is multiplied. A step past the last used block asks for that block again, which moves nothing.
"""

# ruff: noqa: F722 - shapes are strings
from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as mosaic
from jaxtyping import Array, Float, Int

from kvroof.engine.pages import Pages
from kvroof.engine.rows import Rows

LANES = 128
STEP_TOKENS = 256
"""Tokens of one step: as many blocks as make them up."""
LOWEST = -1e30


def tpu_paged_attention(
    rows: Rows,
    pages: Pages,
    block_tables: Int[Array, "num_seqs max_blocks"],
    *,
    soft_cap: float | None = None,
    interpret: bool = False,
) -> Float[Array, "num_seqs num_kv_heads rows v_dim"]:
    """Return each row's attention over its sequence's pages.

    Scales are one number for the tensor. Products of bf16 pages are made in bf16 and added in fp32.
    """
    num_seqs, heads, count, _ = rows.queries.shape
    width, v_dim = pages.k.shape[3], pages.v_dim
    operand = jnp.bfloat16 if pages.k.dtype.itemsize < 4 else jnp.float32
    padding = -count % 16
    max_blocks = block_tables.shape[1]
    blocks = min(max(1, STEP_TOKENS // pages.block_size), max_blocks)
    queries = jnp.pad(rows.queries, ((0, 0), (0, 0), (0, padding), (0, 0)))
    if pages.k_scale is not None:
        queries = queries.at[..., :width].multiply(pages.k_scale)
    if pages.rope_scale is not None:
        queries = queries.at[..., width:].multiply(pages.rope_scale)
    queries = queries.astype(operand)
    limits = jnp.stack([rows.first, rows.last], axis=-1)
    limits = jnp.pad(limits, ((0, 0), (0, padding), (0, 0)), constant_values=-1)
    sinks = jnp.pad(rows.sinks, ((0, 0), (0, padding)), constant_values=LOWEST)
    sinks = jnp.maximum(sinks, LOWEST)[..., None]

    def page_spec(x: Array, i: int) -> pl.BlockSpec:
        def index(s: Any, h: Any, b: Any, table: Any, bounds: Any) -> tuple[Any, ...]:
            block_size = x.shape[2]
            place = bounds[s, 0] // block_size + b * blocks + i
            finish = pl.cdiv(bounds[s, 1], block_size)
            return h, table[s, jnp.maximum(jnp.minimum(place, finish - 1), 0)], 0, 0

        return pl.BlockSpec((None, None, *x.shape[2:]), index)

    def by_row(dim: int) -> pl.BlockSpec:
        return pl.BlockSpec((None, None, count + padding, dim), lambda s, h, b, *_: (s, h, 0, 0))

    kinds = [pages.k] + [x for x in (pages.rope, pages.v) if x is not None]
    inputs = [x for x in kinds for _ in range(blocks)]
    specs = [page_spec(x, i) for x in kinds for i in range(blocks)]
    rotary = pages.qk_dim - width
    parts = [queries[..., :width]] + ([queries[..., width:]] if rotary else [])
    out = pl.pallas_call(
        partial(
            _kernel,
            blocks=blocks,
            soft_cap=soft_cap,
            has_rope=pages.rope is not None,
            has_v=pages.v is not None,
            operand=operand,
        ),
        grid_spec=mosaic.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(num_seqs, heads, pl.cdiv(max_blocks, blocks)),
            in_specs=[
                pl.BlockSpec((None, count + padding, 2), lambda s, h, b, *_: (s, 0, 0)),
                pl.BlockSpec((None, count + padding, 1), lambda s, h, b, *_: (h, 0, 0)),
                by_row(width),
                *([by_row(rotary)] if rotary else []),
                *specs,
            ],
            out_specs=by_row(v_dim),
            scratch_shapes=[
                mosaic.VMEM((count + padding, LANES), jnp.float32),
                mosaic.VMEM((count + padding, LANES), jnp.float32),
                mosaic.VMEM((count + padding, v_dim), jnp.float32),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct(  # type: ignore[no-untyped-call]
            (num_seqs, heads, count + padding, v_dim), jnp.float32
        ),
        compiler_params=mosaic.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
        interpret=interpret,
        name="paged_attention",
    )(block_tables, jnp.stack([rows.start, rows.end], axis=1), limits, sinks, *parts, *inputs)
    out = out[:, :, :count]
    found: Array = out if pages.value_scale is None else out * pages.value_scale
    return found


def _kernel(
    table_ref: Any,
    bounds_ref: Any,
    limits_ref: Any,
    sinks_ref: Any,
    *refs: Any,
    blocks: int,
    soft_cap: float | None,
    has_rope: bool,
    has_v: bool,
    operand: Any,
) -> None:
    del table_ref  # the index maps read it
    *inputs, out_ref, top_ref, total_ref, sum_ref = refs
    q_ref = inputs.pop(0)
    rotary_ref: Any = inputs.pop(0) if has_rope else None
    k_refs, inputs = inputs[:blocks], inputs[blocks:]
    rope_refs, inputs = (inputs[:blocks], inputs[blocks:]) if has_rope else ([], inputs)
    v_refs = inputs if has_v else k_refs
    block_size = k_refs[0].shape[0]
    seq, step = pl.program_id(0), pl.program_id(2)
    start, end = bounds_ref[seq, 0], bounds_ref[seq, 1]
    begin = (start // block_size + step * blocks) * block_size
    exactly = lax.Precision.HIGHEST if operand == jnp.float32 else None

    @pl.when(step == 0)
    def _() -> None:
        top_ref[...] = jnp.broadcast_to(sinks_ref[...], top_ref.shape)
        total_ref[...] = jnp.where(top_ref[...] > LOWEST, 1.0, 0.0)
        sum_ref[...] = jnp.zeros_like(sum_ref)

    def tile(some: list[Any], keep: Callable[[int], Array] | None = None) -> Array:
        parts = []
        for i, ref in enumerate(some):
            part = ref[...].astype(jnp.float32)
            if keep is not None:
                part = jnp.where(keep(i), part, 0.0)
            parts.append(part.astype(operand))
        whole: Array = parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=0)
        return whole

    def known(i: int) -> Array:
        tokens = begin + i * block_size + lax.broadcasted_iota(jnp.int32, (block_size, 1), 0)
        seen: Array = (tokens >= start) & (tokens < end)
        return seen

    @pl.when(begin < end)
    def _() -> None:
        scores = _product(q_ref[...], tile(k_refs), 1, exactly)
        if has_rope:
            scores = scores + _product(rotary_ref[...], tile(rope_refs), 1, exactly)
        if soft_cap is not None:
            scores = soft_cap * jnp.tanh(scores / soft_cap)
        tokens = begin + lax.broadcasted_iota(jnp.int32, scores.shape, 1)
        seen = (tokens >= limits_ref[:, :1]) & (tokens <= limits_ref[:, 1:])
        scores = jnp.where(seen, scores, LOWEST)
        top, total = top_ref[:, :1], total_ref[:, :1]
        higher = jnp.maximum(top, scores.max(axis=1, keepdims=True))
        weights = jnp.where(seen, jnp.exp(scores - higher), 0.0)
        kept = jnp.exp(top - higher)
        total = total * kept + weights.sum(axis=1, keepdims=True)
        sum_ref[...] = sum_ref[...] * kept + _product(
            weights.astype(operand), tile(v_refs, known), 0, exactly
        )
        top_ref[...] = jnp.broadcast_to(higher, top_ref.shape)
        total_ref[...] = jnp.broadcast_to(total, total_ref.shape)

    @pl.when(step == pl.num_programs(2) - 1)
    def _() -> None:
        total = total_ref[:, :1]
        out_ref[...] = sum_ref[...] / jnp.where(total == 0, 1.0, total)


def _product(a: Array, b: Array, axis: int, precision: lax.Precision | None) -> Array:
    dims = (((1,), (axis,)), ((), ()))
    return lax.dot_general(a, b, dims, precision=precision, preferred_element_type=jnp.float32)
