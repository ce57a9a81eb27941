"""Attention over pages the readable way: gather every sequence's tokens, score all, mask, sum.

It is the reference that the fast paths are held against. It reads every block that a table names.
"""

# ruff: noqa: F722 - shapes are strings
from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from kvroof.engine.pages import Pages
from kvroof.engine.visible import query_positions, visible
from kvroof.spec.reach import AnyReach, Full


def dense_attention(
    queries: Float[Array, "num_seqs query_len num_heads qk_dim"],
    pages: Pages,
    block_tables: Int[Array, "num_seqs max_blocks"],
    kv_lens: Int[Array, " num_seqs"],
    *,
    scale: float,
    reach: AnyReach = Full(),  # noqa: B008 - a frozen record
    query_lens: Int[Array, " num_seqs"] | None = None,
    sinks: Float[Array, " num_heads"] | None = None,
    soft_cap: float | None = None,
) -> Float[Array, "num_seqs query_len num_heads v_dim"]:
    """Return what `kvroof.engine.paged_attention.paged_attention` returns, from the same arguments."""
    num_seqs, query_len, num_heads, _ = queries.shape
    exact = jnp.promote_types(queries.dtype, jnp.float32)
    group = num_heads // pages.num_kv_heads
    if query_lens is None:
        query_lens = jnp.full((num_seqs,), query_len, kv_lens.dtype)

    keys = _tokens(pages.k, pages.k_scale, block_tables, exact)
    if pages.rope is not None:
        rotary = _tokens(pages.rope, pages.rope_scale, block_tables, exact)
        keys = jnp.concatenate([keys, rotary], axis=-1)
    values = _tokens(pages.values, pages.value_scale, block_tables, exact)

    tokens = jnp.arange(keys.shape[2], dtype=kv_lens.dtype)
    positions = query_positions(query_len, kv_lens, query_lens)
    seen = visible(reach, positions, tokens, kv_lens, query_lens)
    touched = seen.any(axis=1)[:, None, :, None]
    keys, values = jnp.where(touched, keys, 0), jnp.where(touched, values, 0)

    grouped = queries.astype(exact).reshape(num_seqs, query_len, pages.num_kv_heads, group, -1)
    scores = jnp.einsum("sqkgd,sktd->skgqt", grouped, keys, precision="highest") * scale
    if soft_cap is not None:
        scores = soft_cap * jnp.tanh(scores / soft_cap)
    scores = jnp.where(seen[:, None, None], scores, -jnp.inf)
    if sinks is None:
        sinks = jnp.full((num_heads,), -jnp.inf)
    sink = sinks.astype(exact).reshape(pages.num_kv_heads, group, 1, 1)
    top = jnp.maximum(scores.max(axis=-1, keepdims=True), sink)
    top = jnp.where(top == -jnp.inf, 0, top)
    weights = jnp.exp(scores - top)
    total = weights.sum(axis=-1, keepdims=True) + jnp.exp(sink - top)
    weights = weights / jnp.where(total == 0, 1, total)
    out = jnp.einsum("skgqt,sktv->sqkgv", weights, values, precision="highest")
    return out.reshape(num_seqs, query_len, num_heads, -1).astype(queries.dtype)


def _tokens(
    pages: Array, scale: Array | None, block_tables: Array, dtype: jnp.dtype
) -> Float[Array, "num_seqs num_kv_heads num_tokens width"]:
    """Return every sequence's rows in the order of its tokens; a hole in the table reads some block."""
    heads, num_blocks, _, width = pages.shape
    rows = pages.astype(dtype)
    if scale is not None:
        rows = rows * (scale if scale.ndim == 0 else scale[..., None]).astype(dtype)
    found = rows[:, jnp.clip(block_tables, 0, num_blocks - 1)]
    return jnp.moveaxis(found, 1, 0).reshape(block_tables.shape[0], heads, -1, width)
