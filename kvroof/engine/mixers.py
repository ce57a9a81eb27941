"""Attention layers: grouped heads (MHA, GQA, MQA) and latent attention, over whatever past they are given."""

# ruff: noqa: F722 - shapes are strings
from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float
from numpy.random import Generator

from kvroof.engine.layers import Held, refuse_unknown, rms_norm
from kvroof.engine.past import Entry, Past
from kvroof.ground.errors import Unsupported
from kvroof.spec.attention import GroupedAttention, LatentAttention

_GROUPED = (
    "q_norm",
    "k_norm",
    "sinks",
    "q_proj.bias",
    "k_proj.bias",
    "v_proj.bias",
    "o_proj.bias",
)
_LATENT = ("q_a_proj.bias", "kv_a_proj.bias", "o_proj.bias")


class GroupedHeads(nnx.Module):
    """Heads that share keys and values in groups; `place` is where the layer's cache is."""

    def __init__(
        self, spec: GroupedAttention, place: int, rotary: bool, dtype: DTypeLike, draw: Generator
    ) -> None:
        refuse_unknown(spec.extras, _GROUPED, "grouped attention")
        if spec.input_size is not None or spec.shared:
            raise Unsupported("the engine has no attention block shared by several layers", where="engine")
        self.spec, self.place, self.rotary = spec, place, rotary
        self.held = Held(spec.weights, dtype, draw)

    def __call__(self, x: Float[Array, "num_seqs query_len hidden"], past: Past) -> Float[Array, ...]:
        """Return each token's attention over what it sees."""
        spec = self.spec
        projected = self._heads(x, "q_proj", spec.num_heads)
        gate = None
        if spec.query_gate:
            projected, gate = jnp.split(projected, 2, axis=-1)
        queries = self._turned(self._normed(projected, "q_norm"), past)
        out = past.attend(
            self.place,
            spec.reach,
            queries,
            self._entry(x, past) if spec.stores_kv else None,
            spec.head_dim**-0.5,
            self.held.get("sinks"),
        )
        if gate is not None:
            out = out * jax.nn.sigmoid(gate)
        return self.held.times(out.reshape(*x.shape[:2], -1), "o_proj")

    def _entry(self, x: Float[Array, "num_seqs query_len hidden"], past: Past) -> Entry:
        keys = self._heads(x, "k_proj", self.spec.num_kv_heads)
        values = keys if self.spec.values_are_keys else self._heads(x, "v_proj", self.spec.num_kv_heads)
        return Entry(k=self._turned(self._normed(keys, "k_norm"), past), v=values)

    def _heads(self, x: Float[Array, "num_seqs query_len hidden"], name: str, heads: int) -> Array:
        return self.held.times(x, name).reshape(*x.shape[:2], heads, -1)

    def _normed(self, rows: Float[Array, "num_seqs query_len heads width"], name: str) -> Array:
        """Return the rows under their norm, which is one per head width or one over all heads."""
        scale = self.held.get(name)
        if scale is None:
            return rows
        if scale.shape[-1] == rows.shape[-1]:
            return rms_norm(rows, scale)
        return rms_norm(rows.reshape(*rows.shape[:2], -1), scale).reshape(rows.shape)

    def _turned(self, rows: Float[Array, "num_seqs query_len heads width"], past: Past) -> Array:
        return past.rotary(rows) if self.rotary else rows


class LatentHeads(nnx.Module):
    """MLA: absorbed over a cache of latents, expanded where the keys and values are made at once."""

    def __init__(
        self, spec: LatentAttention, place: int, rotary: bool, dtype: DTypeLike, draw: Generator
    ) -> None:
        refuse_unknown(spec.extras, _LATENT, "latent attention")
        if not spec.stores_kv or spec.shared:
            raise Unsupported("the engine has no latent attention on another layer's cache", where="engine")
        self.spec, self.place, self.rotary = spec, place, rotary
        self.held = Held(spec.weights, dtype, draw)

    def __call__(self, x: Float[Array, "num_seqs query_len hidden"], past: Past) -> Float[Array, ...]:
        """Return each token's attention over what it sees."""
        spec, absorbed = self.spec, past.execution == "absorbed"
        plain, turned = self._queries(x, past)
        down = self.held.times(x, "kv_a_proj")
        latent = rms_norm(down[..., : spec.kv_lora_rank], self.held["kv_a_layernorm"])[..., None, :]
        rope = self._turned(down[..., None, spec.kv_lora_rank :], past)
        up = self.held["kv_b_proj"].reshape(spec.kv_lora_rank, spec.num_heads, -1)
        to_keys, to_values = up[..., : spec.qk_nope_head_dim], up[..., spec.qk_nope_head_dim :]
        if absorbed:
            plain = jnp.einsum("sqhn,rhn->sqhr", plain, to_keys, precision="highest")
            entry = Entry(k=latent, rope=rope)
        else:
            keys = jnp.einsum("sqor,rhn->sqhn", latent, to_keys, precision="highest")
            values = jnp.einsum("sqor,rhv->sqhv", latent, to_values, precision="highest")
            every = jnp.broadcast_to(rope, (*keys.shape[:3], spec.qk_rope_head_dim))
            entry = Entry(k=jnp.concatenate([keys, every], axis=-1), v=values)
        scale = (spec.qk_nope_head_dim + spec.qk_rope_head_dim) ** -0.5
        queries = jnp.concatenate([plain, turned], axis=-1)
        out = past.attend(self.place, spec.reach, queries, entry, scale, None)
        if absorbed:
            out = jnp.einsum("sqhr,rhv->sqhv", out, to_values, precision="highest")
        return self.held.times(out.reshape(*x.shape[:2], -1), "o_proj")

    def _queries(self, x: Float[Array, "num_seqs query_len hidden"], past: Past) -> tuple[Array, Array]:
        """Return the part of each query without position, and the rotary one."""
        if self.spec.q_lora_rank is None:
            flat = self.held.times(x, "q_proj")
        else:
            flat = rms_norm(self.held.times(x, "q_a_proj"), self.held["q_a_layernorm"])
            flat = self.held.times(flat, "q_b_proj")
        heads = flat.reshape(*x.shape[:2], self.spec.num_heads, -1)
        width = self.spec.qk_nope_head_dim
        return heads[..., :width], self._turned(heads[..., width:], past)

    def _turned(self, rows: Float[Array, "num_seqs query_len heads width"], past: Past) -> Array:
        return past.rotary(rows) if self.rotary else rows
