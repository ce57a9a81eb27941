"""Rows: the queries of a batch, grouped by the KV head that they share, with the tokens that each sees."""

# ruff: noqa: F722 - shapes are strings
from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from kvroof.engine.visible import first_visible, last_visible, query_positions
from kvroof.spec.reach import AnyReach


class Rows(NamedTuple):
    """Every query of a batch; a row is one query of one of the heads that share a KV head.

    A row sees the tokens from `first` to `last`; a row that stands for no query sees none. A sequence's
    rows together see tokens from `start` on, up to `end`. `queries` are scaled. `sinks` are -inf where
    there are none.
    """

    queries: Float[Array, "num_seqs num_kv_heads rows qk_dim"]
    first: Int[Array, "num_seqs rows"]
    last: Int[Array, "num_seqs rows"]
    start: Int[Array, " num_seqs"]
    end: Int[Array, " num_seqs"]
    sinks: Float[Array, "num_kv_heads rows"]


def pack_rows(
    queries: Float[Array, "num_seqs query_len num_heads qk_dim"],
    num_kv_heads: int,
    kv_lens: Int[Array, " num_seqs"],
    query_lens: Int[Array, " num_seqs"],
    *,
    scale: float,
    reach: AnyReach,
    sinks: Float[Array, " num_heads"] | None,
) -> Rows:
    """Return the rows of a batch: heads that share a KV head, each with its queries in turn."""
    num_seqs, query_len, num_heads, qk_dim = queries.shape
    group = num_heads // num_kv_heads
    exact = jnp.promote_types(queries.dtype, jnp.float32)
    kv_lens, query_lens = kv_lens.astype(jnp.int32), query_lens.astype(jnp.int32)
    grouped = queries.astype(exact).reshape(num_seqs, query_len, num_kv_heads, group, qk_dim)
    grouped = grouped.transpose(0, 2, 3, 1, 4).reshape(num_seqs, num_kv_heads, group * query_len, qk_dim)
    positions = query_positions(query_len, kv_lens, query_lens)
    real = jnp.arange(query_len, dtype=jnp.int32) < query_lens[:, None]
    first = first_visible(reach, positions)
    last = jnp.where(real, last_visible(reach, positions, kv_lens[:, None]), -1)
    sink = jnp.full((num_heads,), -jnp.inf, exact) if sinks is None else sinks.astype(exact)
    sink = jnp.broadcast_to(sink.reshape(num_kv_heads, group, 1), (num_kv_heads, group, query_len))
    return Rows(
        queries=grouped * jnp.asarray(scale, exact),
        first=jnp.tile(first, (1, group)),
        last=jnp.tile(last, (1, group)),
        start=first[:, 0],
        end=jnp.where(query_lens > 0, kv_lens, 0),
        sinks=sink.reshape(num_kv_heads, -1),
    )


def unpack_rows(
    out: Float[Array, "num_seqs num_kv_heads rows v_dim"], query_len: int, dtype: DTypeLike
) -> Float[Array, "num_seqs query_len num_heads v_dim"]:
    """Return the rows' outputs in the order of the queries."""
    num_seqs, heads, rows, v_dim = out.shape
    apart = out.reshape(num_seqs, heads, rows // query_len, query_len, v_dim).transpose(0, 3, 1, 2, 4)
    return apart.reshape(num_seqs, query_len, -1, v_dim).astype(dtype)
