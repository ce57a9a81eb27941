"""Delta rules: a key's old value is taken out of the state before its new one goes in (Qwen3-Next, Kimi)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array
from numpy.random import Generator

from kvroof.engine.cache import StateArrays
from kvroof.engine.layers import Held, rms_norm
from kvroof.engine.past import Past
from kvroof.engine.recurrences import Inputs, Rows, convolve, exact, scan
from kvroof.spec.recurrent import Recurrent


def delta_parts(name: str) -> str:
    """Return what a matrix of a gated delta rule makes: q, k, v, the gate z, the decay a, the strength b."""
    parts = name.removeprefix("in_proj_").removesuffix("_proj")
    return "z" if parts == "g" else parts


def _unit(rows: Array) -> Array:
    return rows * jax.lax.rsqrt((rows**2).sum(-1, keepdims=True) + 1e-6)


def fold_delta(h: Array, token: Inputs) -> tuple[Array, Array]:
    """Return the state and output after one token; `decay` is per head, or per head and key channel."""
    q, k, v, decay, strength = token
    h = h * decay[..., None]
    found = jnp.einsum("shkv,shk->shv", h, k)
    h = h + k[..., None] * ((v - found) * strength[..., None])[..., None, :]
    return h, jnp.einsum("shkv,shk->shv", h, q)


class GatedDelta(nnx.Module):
    """A gated delta rule: one decay per head."""

    def __init__(self, spec: Recurrent, place: int, dtype: DTypeLike, draw: Generator) -> None:
        shapes = {w.name: w.shape for w in spec.weights}
        self.value_heads, self.value_dim = shapes["heads"][0], shapes["norm"][0]
        self.key_dim = spec.held.recurrent_elements // (self.value_heads * self.value_dim)
        values = self.value_heads * self.value_dim
        keys = (spec.held.conv_channels - values) // 2
        self.key_heads = keys // self.key_dim
        self.keys, self.values = keys, values
        self.inputs = tuple(w.name for w in spec.projections[:-1])
        self.out = spec.projections[-1].name
        self.place = place
        self.held = Held(spec.weights, dtype, draw)

    def __call__(self, x: Rows, past: Past) -> Rows:
        """Return each token's output."""
        held, state = self.held, past.recall(self.place)
        assert state.recurrent is not None
        made = self._inputs(x)
        rows = jnp.concatenate([made[part] for part in "qkv"], axis=-1)
        rows, columns = convolve(rows, state, past, held["conv1d"], None)
        rows = exact(jax.nn.silu(rows))
        split = [self.keys, 2 * self.keys]
        q, k, v = (part.reshape(*x.shape[:2], -1, width) for part, width in zip(
            jnp.split(rows, split, axis=-1), (self.key_dim, self.key_dim, self.value_dim), strict=True
        ))  # fmt: skip
        each = self.value_heads // self.key_heads
        q, k = (jnp.repeat(_unit(part), each, axis=2) for part in (q, k))
        decay_log, step_bias = exact(held["heads"])
        decay = jnp.exp(-jnp.exp(decay_log) * jax.nn.softplus(exact(made["a"]) + step_bias))[..., None]
        strength = jax.nn.sigmoid(exact(made["b"]))
        start = state.recurrent.reshape(-1, self.value_heads, self.key_dim, self.value_dim)
        new, out = scan(fold_delta, start, (q * self.key_dim**-0.5, k, v, decay, strength), past)
        past.keep(self.place, StateArrays(columns, new.reshape(state.recurrent.shape)))
        out = rms_norm(out.astype(x.dtype), held["norm"]).reshape(*x.shape[:2], -1)
        return held.times(out * jax.nn.silu(made["z"]), self.out)

    def _inputs(self, x: Rows) -> dict[str, Rows]:
        """Return what the input matrices make, each part by its letter."""
        made: dict[str, Rows] = {}
        for name in self.inputs:
            parts = delta_parts(name)
            ends = [sum(self._width(part) for part in parts[: i + 1]) for i in range(len(parts) - 1)]
            made |= zip(parts, jnp.split(self.held.times(x, name), ends, axis=-1), strict=True)
        return made

    def _width(self, part: str) -> int:
        return self.keys if part in "qk" else self.values if part in "vz" else self.value_heads


class KimiDelta(nnx.Module):
    """Kimi's delta rule: one decay per head and key channel; its gates are low-rank or whole."""

    def __init__(self, spec: Recurrent, place: int, dtype: DTypeLike, draw: Generator) -> None:
        shapes = {w.name: w.shape for w in spec.weights}
        self.heads, self.head_dim = shapes["A_log"][0], shapes["o_norm"][0]
        self.place = place
        self.held = Held(spec.weights, dtype, draw)

    def __call__(self, x: Rows, past: Past) -> Rows:
        """Return each token's output."""
        held, state = self.held, past.recall(self.place)
        assert state.recurrent is not None
        rows = jnp.concatenate([held.times(x, f"{part}_proj") for part in "qkv"], axis=-1)
        rows, columns = convolve(rows, state, past, held["conv1d"], None)
        q, k, v = (self._heads(part) for part in jnp.split(exact(jax.nn.silu(rows)), 3, axis=-1))
        steps = jax.nn.softplus(self._heads(exact(self._gate(x, "f") + held["dt_bias"])))
        decay = jnp.exp(-jnp.exp(exact(held["A_log"]))[:, None] * steps)
        strength = jax.nn.sigmoid(exact(held.times(x, "b_proj")))
        start = state.recurrent.reshape(-1, self.heads, self.head_dim, self.head_dim)
        inputs = (_unit(q) * self.head_dim**-0.5, _unit(k), v, decay, strength)
        new, out = scan(fold_delta, start, inputs, past)
        past.keep(self.place, StateArrays(columns, new.reshape(state.recurrent.shape)))
        out = rms_norm(out.astype(x.dtype), held["o_norm"]).reshape(*x.shape[:2], -1)
        return held.times(out * jax.nn.sigmoid(self._gate(x, "g")), "o_proj")

    def _gate(self, x: Rows, name: str) -> Rows:
        if f"{name}_proj" in self.held:
            return self.held.times(x, f"{name}_proj")
        return self.held.times(self.held.times(x, f"{name}_a_proj"), f"{name}_b_proj")

    def _heads(self, rows: Rows) -> Array:
        return rows.reshape(*rows.shape[:2], self.heads, self.head_dim)
