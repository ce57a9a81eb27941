"""Paged attention over block tables: decode, chunked prefill and verification of drafts, one function."""

# ruff: noqa: F722 - shapes are strings
from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from kvroof.engine.blockwise import blockwise_attention
from kvroof.engine.kernels.choice import kernel_for
from kvroof.engine.pages import Pages
from kvroof.engine.rows import pack_rows, unpack_rows
from kvroof.spec.reach import AnyReach, Full


def paged_attention(
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
    """Return each query's attention over its sequence's cached tokens.

    The K and V of the queries' own tokens are already in the pages. Query i of a sequence sits at
    position `kv_len - query_len + i` and sees what `reach` says, its own token included. Decode has one
    query, a chunk of prefill many, verification of k drafted tokens k + 1.

    Args:
        queries: For latent attention, the absorbed query of `kv_lora_rank`, then the rotary one.
        pages: The layer's cache.
        block_tables: The block that holds tokens `i * block_size` on, for each i. Blocks that no query
            sees are never read; their entries may hold any number (-1 marks a hole).
        kv_lens: Tokens in each sequence's cache; 0 for an empty row of the batch.
        scale: What scores are multiplied by. For latent attention it is that of the expanded heads.
        reach: Which earlier tokens a query sees.
        query_lens: Queries of each sequence, at the start of its row; all of them if None. The outputs
            behind are 0.
        sinks: A logit for each head that takes part in the softmax and has no value (gpt-oss).
        soft_cap: Scores become `soft_cap * tanh(score / soft_cap)` (Gemma-2).

    Raises:
        Unsupported: A reach that is not full, sliding, chunked or cross.
    """
    if query_lens is None:
        query_lens = jnp.full(kv_lens.shape, queries.shape[1], kv_lens.dtype)
    rows = pack_rows(queries, pages.num_kv_heads, kv_lens, query_lens, scale=scale, reach=reach, sinks=sinks)
    attend = kernel_for(rows, pages, jax.default_backend()) or blockwise_attention
    out = attend(rows, pages, block_tables, soft_cap=soft_cap)
    return unpack_rows(out, queries.shape[1], queries.dtype)
