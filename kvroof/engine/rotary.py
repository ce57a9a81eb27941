"""Rotary position embedding: the spec has no angles, so every layer turns by the same ones."""

# ruff: noqa: F722 - shapes are strings
from __future__ import annotations

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

BASE = 10_000.0


class Rotary:
    """The turn of each token of a step, worked out once for all layers.

    Source: Su et al. 2021, RoFormer, in the layout of Hugging Face's Llama.
    """

    def __init__(self, positions: Int[Array, "num_seqs query_len"]) -> None:
        self._positions = positions
        self._turns: dict[tuple[int, DTypeLike], tuple[Array, Array]] = {}

    def __call__(
        self, x: Float[Array, "num_seqs query_len num_heads width"]
    ) -> Float[Array, "num_seqs query_len num_heads width"]:
        """Return `x` with pairs (i, i + width/2) turned by `position * BASE**(-2i/width)`; width is even."""
        half = x.shape[-1] // 2
        cos, sin = self._turn(half, jnp.promote_types(x.dtype, jnp.float32))
        first, second = x[..., :half], x[..., half:]
        turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
        return turned.astype(x.dtype)

    def _turn(self, half: int, dtype: DTypeLike) -> tuple[Array, Array]:
        if (half, dtype) not in self._turns:
            speeds = BASE ** (-jnp.arange(half, dtype=dtype) / half)
            angles = self._positions[..., None, None].astype(dtype) * speeds
            self._turns[half, dtype] = jnp.cos(angles), jnp.sin(angles)
        return self._turns[half, dtype]
