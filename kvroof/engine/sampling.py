"""Greedy sampling: the next token, and by how much it won."""

# ruff: noqa: F722 - shapes are strings
from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def greedy(
    logits: Float[Array, "num_seqs vocab"],
) -> tuple[Int[Array, " num_seqs"], Float[Array, " num_seqs"]]:
    """Return the token of the largest logit, and its margin over the next one.

    Where the margin is wider than what rounding can move, any order of summation picks the same token. Two
    passes over the logits: on a CPU XLA's `top_k` sorts them all, which takes as long as a small step.
    """
    tokens = jnp.argmax(logits, axis=1).astype(jnp.int32)
    others = jnp.arange(logits.shape[1], dtype=jnp.int32) != tokens[:, None]
    return tokens, logits.max(axis=1) - jnp.where(others, logits, -jnp.inf).max(axis=1)
