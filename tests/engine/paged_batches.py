"""Random batches over paged caches, for the tests of attention."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from kvroof.engine.pages import Pages

QUICK_TO_COMPILE = {"xla_backend_optimization_level": 0}
"""For references and interpreted kernels, which XLA takes longer to optimise than to run."""


class Shape(NamedTuple):
    """What a program is compiled for; everything else about a batch varies."""

    heads: int = 2
    group: int = 2
    query_len: int = 1
    block_size: int = 4
    k_dim: int = 16
    v_dim: int = 16
    rope_dim: int = 0
    dtype: Any = jnp.float32
    num_seqs: int = 3
    max_blocks: int = 6
    num_blocks: int = 32

    @property
    def qk_dim(self) -> int:
        return self.k_dim + self.rope_dim

    @property
    def num_heads(self) -> int:
        return self.heads * self.group


MHA = Shape(heads=4, group=1)
GQA = Shape(heads=2, group=4)
MQA = Shape(heads=1, group=4)
MLA = Shape(heads=1, group=4, k_dim=32, v_dim=0, rope_dim=16)
ASYMMETRIC = Shape(heads=2, group=2, k_dim=24, v_dim=16)


class Batch(NamedTuple):
    """The arguments of attention."""

    queries: Any
    pages: Pages
    block_tables: Any
    kv_lens: Any
    query_lens: Any
    sinks: Any


def random_batch(shape: Shape, seed: int) -> Batch:
    """Return a batch of ragged lengths over blocks in random places; other blocks hold random numbers too."""
    rng = np.random.default_rng(seed)
    exact = np.float64 if shape.dtype == jnp.float64 else np.float32

    def normal(*dims):
        return rng.standard_normal(dims).astype(exact)

    def stored(width):
        return jnp.asarray(normal(shape.heads, shape.num_blocks, shape.block_size, width), shape.dtype)

    query_lens = rng.integers(0, shape.query_len + 1, shape.num_seqs).astype(np.int32)
    most = shape.max_blocks * shape.block_size
    kv_lens = np.where(query_lens > 0, rng.integers(query_lens, most + 1), 0).astype(np.int32)
    query_lens[0], kv_lens[0] = shape.query_len, most
    tables = rng.permutation(shape.num_blocks)[: shape.num_seqs * shape.max_blocks]
    return Batch(
        queries=jnp.asarray(normal(shape.num_seqs, shape.query_len, shape.num_heads, shape.qk_dim)),
        pages=Pages(
            k=stored(shape.k_dim),
            v=stored(shape.v_dim) if shape.v_dim else None,
            rope=stored(shape.rope_dim) if shape.rope_dim else None,
        ),
        block_tables=jnp.asarray(tables.reshape(shape.num_seqs, shape.max_blocks).astype(np.int32)),
        kv_lens=jnp.asarray(kv_lens),
        query_lens=jnp.asarray(query_lens),
        sinks=jnp.asarray(normal(shape.num_heads)),
    )


def blocks_read(batch: Batch, reach, block_size: int) -> set[int]:
    """Return the physical blocks that hold a token which some query sees."""
    found = set()
    for table, kv_len, query_len in zip(batch.block_tables, batch.kv_lens, batch.query_lens, strict=True):
        if query_len == 0:
            continue
        first = int(kv_len) - reach.read(int(query_len), int(kv_len)) if reach.kind != "cross" else 0
        found |= {int(table[t // block_size]) for t in range(first, int(kv_len))}
    return found


def with_nan_elsewhere(batch: Batch, kept: set[int]) -> Batch:
    """Return the batch with NaN in every block that is not `kept`, and -1 for those in the tables."""
    num_blocks = batch.pages.num_blocks
    read = np.isin(np.arange(num_blocks), list(kept))

    def poisoned(x):
        return None if x is None else jnp.where(read[:, None, None], x, jnp.nan)

    pages = Pages(*[poisoned(x) for x in batch.pages])
    tables = jnp.where(read[np.asarray(batch.block_tables)], batch.block_tables, -1)
    return batch._replace(pages=pages, block_tables=tables)
