"""Recurrent layers: a convolution over the last columns, and a state that each token is folded into.

A step of any length is one scan over its tokens; what is kept between steps is the layer's `State`. Sizes
are read off the weights of the spec's `Recurrent`, whose kinds are named in `kvroof.catalog.families`.
"""

# ruff: noqa: F722 - shapes are strings
from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float
from numpy.random import Generator

from kvroof.engine.cache import StateArrays
from kvroof.engine.layers import Held, rms_norm
from kvroof.engine.past import Past
from kvroof.spec.recurrent import Recurrent

Rows: TypeAlias = Float[Array, "num_seqs query_len _"]
Inputs: TypeAlias = tuple[Array, ...]
Fold: TypeAlias = Callable[[Array, Inputs], tuple[Array, Array]]
"""One token: (state, its inputs) to (new state, output); the leading axis is the sequences'."""


def convolve(
    rows: Rows, state: StateArrays, past: Past, kernel: Float[Array, "channels taps"], bias: Array | None
) -> tuple[Rows, Array | None]:
    """Return the causal convolution of each channel, and the columns that the next step needs."""
    taps, query_len = kernel.shape[1], rows.shape[1]
    assert state.conv is not None
    columns = jnp.concatenate([state.conv.astype(rows.dtype), rows], axis=1)
    out = jnp.zeros_like(rows) if bias is None else jnp.broadcast_to(bias, rows.shape)
    for tap in range(taps):
        out = out + columns[:, tap : tap + query_len] * kernel[:, tap]
    kept = past.query_lens[:, None] + jnp.arange(taps - 1, dtype=past.query_lens.dtype)
    last = jnp.take_along_axis(columns, kept[..., None], axis=1)
    return out, last


def scan(fold: Fold, state: Array, inputs: Inputs, past: Past) -> tuple[Array, Array]:
    """Return the state after the step's tokens, and each token's output; padding leaves the state alone."""

    def one(held: Array, token: tuple[Array, Inputs]) -> tuple[Array, Array]:
        real, now = token
        new, out = fold(held, now)
        return jnp.where(real.reshape(-1, *[1] * (held.ndim - 1)), new, held), out

    if past.real.shape[1] == 1:
        new, out = one(state, (past.real[:, 0], tuple(part[:, 0] for part in inputs)))
        return new, out[:, None]
    by_time = tuple(jnp.moveaxis(part, 1, 0) for part in inputs)
    new, out = jax.lax.scan(one, state, (past.real.T, by_time))
    return new, jnp.moveaxis(out, 0, 1)


def exact(x: Array) -> Array:
    """Return `x` in the dtype of a recurrence: fp32, or wider where the model is."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


class Mamba1(nnx.Module):
    """A selective scan: every channel has `state_size` decays of its own."""

    def __init__(self, spec: Recurrent, place: int, dtype: DTypeLike, draw: Generator) -> None:
        self.inner = spec.held.conv_channels
        self.size = spec.held.recurrent_elements // self.inner
        self.place = place
        self.held = Held(spec.weights, dtype, draw)

    def __call__(self, x: Rows, past: Past) -> Rows:
        """Return each token's output."""
        held, state = self.held, past.recall(self.place)
        rows, gate = jnp.split(held.times(x, "in_proj"), 2, axis=-1)
        rows, columns = convolve(rows, state, past, held["conv1d"], held.get("conv1d.bias"))
        rows = jax.nn.silu(rows)
        mixed = held.times(rows, "x_proj")
        rank = mixed.shape[-1] - 2 * self.size
        parts = jnp.split(mixed, [rank, rank + self.size], axis=-1)
        if "dt_layernorm" in held:
            scales = (held["dt_layernorm"], *held["bc_layernorm"])
            parts = [rms_norm(part, scale) for part, scale in zip(parts, scales, strict=True)]
        delta = exact(jax.nn.softplus(held.times(parts[0], "dt_proj")))
        decay, skip = -jnp.exp(exact(held["A_log"])), exact(held["D"])

        def fold(h: Array, token: Inputs) -> tuple[Array, Array]:
            u, dt, b, c = token
            h = h * jnp.exp(dt[..., None] * decay) + (dt * u)[..., None] * b[:, None]
            return h, jnp.einsum("sin,sn->si", h, c)

        assert state.recurrent is not None
        start = state.recurrent.reshape(-1, self.inner, self.size)
        rows = exact(rows)
        new, out = scan(fold, start, (rows, delta, exact(parts[1]), exact(parts[2])), past)
        past.keep(self.place, StateArrays(columns, new.reshape(state.recurrent.shape)))
        out = (out + skip * rows).astype(x.dtype)
        return held.times(out * jax.nn.silu(gate), "out_proj")


def fold_scalar_decay(h: Array, token: Inputs) -> tuple[Array, Array]:
    """Return a head's state, decayed by one number with `value (x) b` added, and what `c` reads of it."""
    value, decay, b, c = token
    h = h * decay[..., None, None] + value[..., None] * b[:, :, None]
    return h, jnp.einsum("shpn,shn->shp", h, c)


class Mamba2(nnx.Module):
    """A scan with one decay per head; groups of heads share their B and C."""

    def __init__(self, spec: Recurrent, place: int, dtype: DTypeLike, draw: Generator) -> None:
        shapes = {w.name: w.shape for w in spec.weights}
        self.heads, self.inner = shapes["heads"][0], shapes["conv1d.x"][0]
        self.size = spec.held.recurrent_elements // self.inner
        self.groups = shapes["conv1d.bc"][0] // (2 * self.size)
        self.place = place
        self.held = Held(spec.weights, dtype, draw)

    def __call__(self, x: Rows, past: Past) -> Rows:
        """Return each token's output."""
        held, state, inner = self.held, past.recall(self.place), self.inner
        channels = inner + 2 * self.groups * self.size
        gate, rows, steps = jnp.split(held.times(x, "in_proj"), [inner, inner + channels], axis=-1)
        kernel = jnp.concatenate([held["conv1d.x"], held["conv1d.bc"]])
        rows, columns = convolve(rows, state, past, kernel, held.get("conv1d.bias"))
        rows = exact(jax.nn.silu(rows))
        decay_log, skip, step_bias = exact(held["heads"])
        steps = jax.nn.softplus(exact(steps) + step_bias)
        values = rows[..., :inner].reshape(*x.shape[:2], self.heads, -1)
        b, c = (self._by_head(part) for part in jnp.split(rows[..., inner:], 2, axis=-1))

        assert state.recurrent is not None
        start = state.recurrent.reshape(-1, self.heads, values.shape[-1], self.size)
        inputs = (steps[..., None] * values, jnp.exp(-jnp.exp(decay_log) * steps), b, c)
        new, out = scan(fold_scalar_decay, start, inputs, past)
        past.keep(self.place, StateArrays(columns, new.reshape(state.recurrent.shape)))
        out = out + skip[:, None] * values
        out = out.reshape(*x.shape[:2], inner).astype(x.dtype) * jax.nn.silu(gate)
        scale = held.get("norm")
        return held.times(out if scale is None else rms_norm(out, scale), "out_proj")

    def _by_head(self, part: Rows) -> Array:
        """Return B or C of each head, which is its group's."""
        rows = part.reshape(*part.shape[:2], self.groups, self.size)
        return jnp.repeat(rows, self.heads // self.groups, axis=2)


class Lightning(nnx.Module):
    """Linear attention with a fixed decay per head (MiniMax); its state is in the model's dtype."""

    def __init__(self, spec: Recurrent, place: int, dtype: DTypeLike, draw: Generator) -> None:
        width = next(w for w in spec.weights if w.name == "out_proj").shape[0]
        self.head_dim = spec.held.recurrent_elements // width
        self.heads = width // self.head_dim
        self.place = place
        self.held = Held(spec.weights, dtype, draw)

    def __call__(self, x: Rows, past: Past) -> Rows:
        """Return each token's output."""
        held, state = self.held, past.recall(self.place)
        assert state.recurrent is not None
        rows = exact(jax.nn.silu(held.times(x, "qkv_proj"))).reshape(*x.shape[:2], self.heads, 3, -1)
        decay = jnp.exp(-(2.0 ** (-8.0 * jnp.arange(1, self.heads + 1) / self.heads))).astype(rows.dtype)

        def fold(h: Array, token: Inputs) -> tuple[Array, Array]:
            q, k, v = token
            h = exact(h) * decay[:, None, None] + k[..., None] * v[..., None, :]
            return h.astype(start.dtype), jnp.einsum("shk,shkv->shv", q, h)

        start = state.recurrent.reshape(-1, self.heads, self.head_dim, self.head_dim)
        new, out = scan(fold, start, (rows[..., 0, :], rows[..., 1, :], rows[..., 2, :]), past)
        past.keep(self.place, StateArrays(None, new.reshape(state.recurrent.shape)))
        out = rms_norm(out.reshape(*x.shape[:2], -1).astype(x.dtype), held["norm"])
        return held.times(out * jax.nn.sigmoid(held.times(x, "output_gate")), "out_proj")


class ShortConvolution(nnx.Module):
    """LFM2's gated convolution: its last columns are all it remembers."""

    def __init__(self, spec: Recurrent, place: int, dtype: DTypeLike, draw: Generator) -> None:
        self.place = place
        self.held = Held(spec.weights, dtype, draw)

    def __call__(self, x: Rows, past: Past) -> Rows:
        """Return each token's output."""
        b, c, rows = jnp.split(self.held.times(x, "in_proj"), 3, axis=-1)
        state = past.recall(self.place)
        rows, columns = convolve(b * rows, state, past, self.held["conv"], self.held.get("conv.bias"))
        past.keep(self.place, StateArrays(columns, None))
        return self.held.times(c * rows, "out_proj")
