"""Weights as the spec lists them, and the plain parts of a layer: norms and the dense MLP."""

# ruff: noqa: F722 - shapes are strings
from __future__ import annotations

from collections.abc import Collection, Iterable

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float
from numpy.random import Generator

from kvroof.ground.errors import Unsupported
from kvroof.spec.ffn import DenseFFN
from kvroof.spec.weights import Weight

EPSILON = 1e-6


class Held(nnx.Module):
    """The parameters of one part of a model, one array per `Weight`, found by its name."""

    def __init__(self, weights: Iterable[Weight], dtype: DTypeLike, draw: Generator) -> None:
        self.params = nnx.Dict({w.name: nnx.Param(_random(w, dtype, draw)) for w in weights})

    def __getitem__(self, name: str) -> Array:
        found: Array = self.params[name][...]
        return found

    def __contains__(self, name: str) -> bool:
        return name in self.params

    def get(self, name: str) -> Array | None:
        """Return the array called `name`, None where the part has no such weight."""
        return self[name] if name in self.params else None

    def times(self, x: Float[Array, "*batch width"], name: str) -> Float[Array, "*batch out"]:
        """Return `x` through the matrix called `name`, with its bias where there is one."""
        out = jnp.matmul(x, self[name], precision="highest")
        bias = self.get(f"{name}.bias")
        return out if bias is None else out + bias


def _random(weight: Weight, dtype: DTypeLike, draw: Generator) -> Array:
    """Return random values that keep activations near 1: matrices by their fan-in, norms near 1."""
    shape = weight.shape if weight.count == 1 else (weight.count, *weight.shape)
    values = draw.standard_normal(shape)
    if weight.role == "embedding":
        values *= weight.shape[-1] ** -0.5
    elif weight.role != "vector":
        values *= weight.shape[-2] ** -0.5
    elif len(weight.shape) > 1:
        values *= weight.shape[-1] ** -0.5
    else:
        is_scale = "norm" in weight.name and not weight.name.endswith(".bias")
        values = 0.1 * values + is_scale
    made: Array = jax.device_put(values.astype(jnp.dtype(dtype)))
    return made


def refuse_unknown(weights: Iterable[Weight], known: Collection[str], part: str) -> None:
    """Refuse a part with a weight that the engine would leave unused.

    Raises:
        Unsupported: A weight whose name is not among those `known`.
    """
    for weight in weights:
        if weight.name not in known:
            raise Unsupported(f"the engine has no {weight.name!r} in {part}", where="engine")


def rms_norm(x: Float[Array, "*batch width"], scale: Float[Array, "*#batch width"]) -> Float[Array, ...]:
    """Return `x` over the root of its mean square, scaled."""
    exact = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    return (exact * jax.lax.rsqrt((exact**2).mean(-1, keepdims=True) + EPSILON)).astype(x.dtype) * scale


def norm(
    x: Float[Array, "*batch width"], scale: Float[Array, " width"], bias: Float[Array, " width"] | None
) -> Float[Array, "*batch width"]:
    """Return the RMS norm of `x`; with a bias, the layer norm."""
    if bias is None:
        return rms_norm(x, scale)
    return rms_norm(x - x.mean(-1, keepdims=True), scale) + bias


def mlp(x: Float[Array, "*batch hidden"], held: Held, prefix: str, gated: bool) -> Float[Array, ...]:
    """Return an MLP of two matrices, or of three with a gate (SwiGLU)."""
    if not gated:
        return held.times(jax.nn.gelu(held.times(x, f"{prefix}up_proj")), f"{prefix}down_proj")
    gate, up = jnp.split(held.times(x, f"{prefix}gate_up_proj"), 2, axis=-1)
    return held.times(jax.nn.silu(gate) * up, f"{prefix}down_proj")


class DenseMLP(nnx.Module):
    """The MLP that every token runs."""

    def __init__(self, spec: DenseFFN, dtype: DTypeLike, draw: Generator) -> None:
        refuse_unknown(spec.extras, (), "a dense MLP")
        self.gated = spec.gated
        self.held = Held(spec.weights, dtype, draw)

    def __call__(self, x: Float[Array, "*batch hidden"]) -> Float[Array, "*batch hidden"]:
        """Return each token's output."""
        return mlp(x, self.held, "", self.gated)
