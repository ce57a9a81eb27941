"""Greedy sampling: the next token, and by how much it won."""

# ruff: noqa: F722 - shapes are strings
from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def greedy(
    logits: Float[Array, "num_seqs vocab"],
) -> tuple[Int[Array, " num_seqs"], Float[Array, " num_seqs"]]:
    """Return the token of the largest logit, and its margin over the next one.

    Where the margin is wider than what rounding can move, any order of summation picks the same token.
    """
    best, tokens = jax.lax.top_k(logits, 2)
    return tokens[:, 0].astype(jnp.int32), best[:, 0] - best[:, 1]
