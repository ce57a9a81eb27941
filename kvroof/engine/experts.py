"""A mixture of experts: a router, the experts it picks for each token, and those that every token runs."""

# ruff: noqa: F722 - shapes are strings
from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int
from numpy.random import Generator

from kvroof.engine.layers import Held, mlp, refuse_unknown
from kvroof.ground.errors import Unsupported
from kvroof.spec.ffn import MoE

_KNOWN = (
    "router.bias",
    "router.score_bias",
    "shared_expert_gate",
    "shared_expert.gate_up_proj.bias",
    "shared_expert.up_proj.bias",
    "shared_expert.down_proj.bias",
    "fc1_latent_proj",
    "fc2_latent_proj",
    "fc1_latent_proj.bias",
    "fc2_latent_proj.bias",
)
_KNOWN_OF_EXPERTS = ("experts.gate_up_proj.bias", "experts.up_proj.bias", "experts.down_proj.bias")


class Experts(nnx.Module):
    """The feed-forward part whose tokens each run `num_experts_per_tok` of `num_experts` MLPs.

    Tokens are sorted by expert and multiplied group by group, so an expert that nobody picked costs
    nothing. The picked experts' shares are the softmax over their scores.
    """

    def __init__(self, spec: MoE, dtype: DTypeLike, draw: Generator) -> None:
        refuse_unknown(spec.extras, _KNOWN, "a mixture of experts")
        refuse_unknown(spec.expert_extras, _KNOWN_OF_EXPERTS, "an expert")
        if spec.zero_experts:
            raise Unsupported("the engine has no zero experts", where="engine")
        self.num_experts, self.picked = spec.num_experts, spec.num_experts_per_tok
        self.gated, self.shared_gated = spec.gated, spec.shared_gated
        self.has_shared = spec.shared_intermediate_size is not None
        self.held = Held(spec.weights, dtype, draw)

    def __call__(self, x: Float[Array, "*batch hidden"]) -> Float[Array, "*batch hidden"]:
        """Return each token's output."""
        flat = x.reshape(-1, x.shape[-1])
        shares, chosen = self._route(flat)
        read = self.held.times(flat, "fc1_latent_proj") if "fc1_latent_proj" in self.held else flat
        out = self._routed(read, shares, chosen)
        if "fc2_latent_proj" in self.held:
            out = self.held.times(out, "fc2_latent_proj")
        if self.has_shared:
            out = out + self._shared(flat)
        return out.reshape(x.shape)

    def _route(
        self, x: Float[Array, "tokens hidden"]
    ) -> tuple[Float[Array, "tokens picked"], Int[Array, "tokens picked"]]:
        """Return the picked experts and their shares; a score bias decides who is picked, not how much."""
        scores = self.held.times(x, "router")
        bias = self.held.get("router.score_bias")
        _, chosen = jax.lax.top_k(scores if bias is None else scores + bias, self.picked)
        return jax.nn.softmax(jnp.take_along_axis(scores, chosen, axis=-1), axis=-1), chosen

    def _routed(
        self,
        x: Float[Array, "tokens width"],
        shares: Float[Array, "tokens picked"],
        chosen: Int[Array, "tokens picked"],
    ) -> Float[Array, "tokens width"]:
        expert = chosen.reshape(-1)
        order = jnp.argsort(expert, stable=True)
        token, expert = order // self.picked, expert[order]
        sizes = jnp.bincount(expert, length=self.num_experts).astype(jnp.int32)
        rows = self._grouped(x[token], "gate_up_proj" if self.gated else "up_proj", sizes, expert)
        if self.gated:
            gate, up = jnp.split(rows, 2, axis=-1)
            rows = jax.nn.silu(gate) * up
        else:
            rows = jax.nn.gelu(rows)
        rows = self._grouped(rows, "down_proj", sizes, expert) * shares.reshape(-1)[order][:, None]
        return jnp.zeros_like(x).at[token].add(rows)

    def _grouped(
        self, rows: Float[Array, "rows width"], name: str, sizes: Int[Array, " experts"], expert: Array
    ) -> Float[Array, "rows out"]:
        """Return each row through the matrix of its expert."""
        weights = self.held[f"experts.{name}"].reshape(self.num_experts, rows.shape[-1], -1)
        out = jax.lax.ragged_dot(rows, weights, sizes, precision="highest")
        bias = self.held.get(f"experts.{name}.bias")
        return out if bias is None else out + bias.reshape(self.num_experts, -1)[expert]

    def _shared(self, x: Float[Array, "tokens hidden"]) -> Float[Array, "tokens hidden"]:
        out = mlp(x, self.held, "shared_expert.", self.shared_gated)
        gate = self.held.get("shared_expert_gate")
        if gate is None:
            return out
        return out * jax.nn.sigmoid(x @ gate.reshape(x.shape[-1], 1))
