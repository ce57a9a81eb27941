"""Which cached tokens a query sees, as arrays: `kvroof.spec.reach` for positions that are traced."""

# ruff: noqa: F722 - shapes are strings
from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from kvroof.ground.errors import Unsupported
from kvroof.spec.reach import AnyReach, Chunked, Encoder, Full, Sliding


def first_visible(reach: AnyReach, positions: Int[Array, "*shape"]) -> Int[Array, "*shape"]:
    """Return the first token that the query at each position sees.

    Full: 0. Sliding: the window's `size` tokens end with the query's own. Chunked: the start of its chunk.

    Raises:
        Unsupported: A reach that picks tokens by their content, or entries that are not tokens.
    """
    if isinstance(reach, Full | Encoder):
        return jnp.zeros_like(positions)
    if isinstance(reach, Sliding):
        return jnp.maximum(positions - (reach.size - 1), 0)
    if isinstance(reach, Chunked):
        return jnp.maximum(positions // reach.size * reach.size, 0)
    raise Unsupported(
        f"paged attention has no {reach.kind} reach",
        where="engine",
        way_out="use full, sliding, chunked or cross attention",
    )


def last_visible(
    reach: AnyReach, positions: Int[Array, "*shape"], kv_lens: Int[Array, "*#shape"]
) -> Int[Array, "*shape"]:
    """Return the last token that each query sees: itself; in cross-attention, the encoder's last."""
    if isinstance(reach, Encoder):
        return jnp.broadcast_to(kv_lens - 1, positions.shape)
    return positions


def query_positions(
    query_len: int, kv_lens: Int[Array, " num_seqs"], query_lens: Int[Array, " num_seqs"]
) -> Int[Array, "num_seqs query_len"]:
    """Return the position of each query: query i of a sequence sits at `kv_len - query_len + i`."""
    steps = jnp.arange(query_len, dtype=kv_lens.dtype)
    return (kv_lens - query_lens)[:, None] + steps


def visible(
    reach: AnyReach,
    positions: Int[Array, "num_seqs query_len"],
    tokens: Int[Array, " num_tokens"],
    kv_lens: Int[Array, " num_seqs"],
    query_lens: Int[Array, " num_seqs"],
) -> Bool[Array, "num_seqs query_len num_tokens"]:
    """Return whether each query sees each token; queries behind a sequence's own see nothing."""
    first = first_visible(reach, positions)[..., None]
    last = last_visible(reach, positions, kv_lens[:, None])[..., None]
    real = jnp.arange(positions.shape[1], dtype=query_lens.dtype) < query_lens[:, None]
    return (tokens >= first) & (tokens <= last) & real[..., None]
