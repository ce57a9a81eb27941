"""A decoder built from an `Architecture`, with random weights, and its one jitted step.

Prefill and decode are one function of (query_len, kv_len). The parameters are the spec's weights, tensor by
tensor, so their count is the model's; a model with a part that the engine does not run is refused. What the
spec does not say is fixed: rotary angles, RMS norms (layer norms where there is a bias), SiLU gates.
"""

# ruff: noqa: F722 - shapes are strings
from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int
from numpy.random import Generator, default_rng

from kvroof.engine.cache import Cache, CachePlan, Tables
from kvroof.engine.delta import GatedDelta, KimiDelta
from kvroof.engine.experts import Experts
from kvroof.engine.layers import DenseMLP, Held, norm, refuse_unknown, rms_norm
from kvroof.engine.mixers import GroupedHeads, LatentHeads
from kvroof.engine.past import NoPast, PagedPast, Past
from kvroof.engine.recurrences import Lightning, Mamba1, Mamba2, ShortConvolution
from kvroof.engine.sampling import greedy
from kvroof.ground.errors import BadInput, Unsupported
from kvroof.spec.architecture import Architecture, Layer, Mixer
from kvroof.spec.attention import GroupedAttention, LatentAttention
from kvroof.spec.ffn import DenseFFN
from kvroof.spec.recurrent import Recurrent

RECURRENT = {
    "mamba1": Mamba1,
    "mamba2": Mamba2,
    "gdn": GatedDelta,
    "kda": KimiDelta,
    "lightning": Lightning,
    "short_conv": ShortConvolution,
}
_NORMS = ("layernorm.weight", "layernorm.bias")
_OWN_INPUT = ("per_layer_input_gate", "per_layer_projection", "post_per_layer_input_norm")
_TABLES = ("embed_tokens_per_layer", "per_layer_model_projection", "per_layer_projection_norm")
_EMBEDDING = ("embed_tokens", "embed_positions", "word_embeddings_layernorm", *_TABLES)
_FINAL = ("norm.weight", "norm.bias", "final_layer_norm", "lm_head.bias")

Hidden = Float[Array, "num_seqs query_len hidden"]


class Step(NamedTuple):
    """What one step runs: rows of tokens, each the last `query_len` of its `kv_len`; behind those, padding.

    `tables` hold each row's blocks by group; a row with `query_len` 0 is empty.
    """

    tokens: Int[Array, "num_seqs query_len"]
    query_lens: Int[Array, " num_seqs"]
    kv_lens: Int[Array, " num_seqs"]
    tables: Tables


class Sampled(NamedTuple):
    """The token that each row's last position samples, greedily, and its margin over the next best."""

    tokens: Int[Array, " num_seqs"]
    margins: Float[Array, " num_seqs"]


class Block(nnx.Module):
    """One layer of the residual stream, with its norms where their number says they stand."""

    def __init__(
        self, layer: Layer, places: tuple[int, ...], rotary: bool, dtype: DTypeLike, draw: Generator
    ) -> None:
        refuse_unknown(layer.norms, (*_NORMS, *_OWN_INPUT), "a layer")
        self.mixers = nnx.List(
            _mixer(mixer, place, rotary, dtype, draw)
            for mixer, place in zip(layer.mixers, places, strict=True)
        )
        self.ffns = nnx.List(
            DenseMLP(ffn, dtype, draw) if isinstance(ffn, DenseFFN) else Experts(ffn, dtype, draw)
            for ffn in layer.ffns
        )
        self.parallel = layer.parallel
        norms = next((w.count for w in layer.norms if w.name == "layernorm.weight"), 0)
        branches = bool(layer.mixers) + bool(layer.ffns)
        self.sandwich = norms == 2 * branches and not layer.parallel
        if norms not in ((1, branches) if layer.parallel else (branches, 2 * branches)):
            raise Unsupported(
                f"the engine has no layer of {branches} parts and {norms} norms", where="engine"
            )
        self.norms, self.branches = norms, branches
        self.held = Held(layer.norms, dtype, draw)

    def __call__(
        self, x: Hidden, past: Past, own_input: Float[Array, "num_seqs query_len own"] | None
    ) -> Hidden:
        """Return the residual stream after the layer; `own_input` is the layer's own token embedding."""
        if self.parallel:
            x = x + self._mixed(self._norm(x, 0), past) + self._fed(self._norm(x, self.norms - 1))
        else:
            stride = 2 if self.sandwich else 1
            if self.mixers:
                x = x + self._behind(self._mixed(self._norm(x, 0), past), 1)
            if self.ffns:
                x = x + self._behind(self._fed(self._norm(x, self.norms - stride)), self.norms - 1)
        if own_input is None:
            return x
        gate = jax.nn.gelu(self.held.times(x, "per_layer_input_gate"))
        own = self.held.times(gate * own_input, "per_layer_projection")
        return x + rms_norm(own, self.held["post_per_layer_input_norm"])

    def _mixed(self, x: Hidden, past: Past) -> Hidden:
        return sum((mixer(x, past) for mixer in self.mixers), start=jnp.zeros_like(x))

    def _fed(self, x: Hidden) -> Hidden:
        return sum((ffn(x) for ffn in self.ffns), start=jnp.zeros_like(x))

    def _behind(self, out: Hidden, index: int) -> Hidden:
        """Return a branch's output, under its own norm where the layer has one behind each branch."""
        return self._norm(out, index) if self.sandwich else out

    def _norm(self, x: Hidden, index: int) -> Hidden:
        scales, biases = self.held["layernorm.weight"], self.held.get("layernorm.bias")
        scales = scales.reshape(self.norms, -1)
        return norm(x, scales[index], None if biases is None else biases.reshape(self.norms, -1)[index])


def _mixer(mixer: Mixer, place: int, rotary: bool, dtype: DTypeLike, draw: Generator) -> nnx.Module:
    if isinstance(mixer, GroupedAttention):
        return GroupedHeads(mixer, place, rotary, dtype, draw)
    if isinstance(mixer, LatentAttention):
        return LatentHeads(mixer, place, rotary, dtype, draw)
    if isinstance(mixer, Recurrent) and mixer.kind in RECURRENT and not mixer.shared:
        return RECURRENT[mixer.kind](mixer, place, dtype, draw)
    raise Unsupported(f"the engine has no {mixer.kind} layer", where="engine")


class Decoder(nnx.Module):
    """The whole model: embedding, layers in their order, final norm and head."""

    def __init__(self, model: Architecture, plan: CachePlan, dtype: DTypeLike, draw: Generator) -> None:
        refuse_unknown(model.embedding, _EMBEDDING, "the embedding")
        refuse_unknown(model.final, _FINAL, "the end of the stack")
        refuse_unknown(model.shared, (), "what layers share")
        if model.embedding[0].shape[1] != model.hidden_size:
            raise Unsupported("the engine has no embedding narrower than the residual", where="engine")
        head = () if model.tied else (model.lm_head,)
        self.ends = Held((*model.embedding, *model.final, *head), dtype, draw)
        rotary = "embed_positions" not in self.ends
        self.blocks = nnx.List(
            Block(model.layers[group].layer, places, rotary, dtype, draw)
            for group, places in zip(model.order, plan.places, strict=True)
        )

    def __call__(
        self, tokens: Int[Array, "num_seqs query_len"], past: Past
    ) -> Float[Array, "num_seqs vocab"]:
        """Return the logits behind each row's last token."""
        x = self._embedded(tokens, past)
        own = self._own_inputs(tokens, x)
        for index, block in enumerate(self.blocks):
            x = block(x, past, None if own is None else own[:, :, index])
        last = jnp.maximum(past.query_lens - 1, 0)
        x = jnp.take_along_axis(x, last[:, None, None], axis=1)[:, 0]
        return self._logits(x)

    def _embedded(self, tokens: Int[Array, "num_seqs query_len"], past: Past) -> Hidden:
        x = self.ends["embed_tokens"][tokens]
        positions = self.ends.get("embed_positions")
        if positions is not None:
            x = x + positions[jnp.minimum(past.positions, positions.shape[0] - 1)]
        pair = self.ends.get("word_embeddings_layernorm")
        return x if pair is None else norm(x, pair[0], pair[1])

    def _own_inputs(self, tokens: Int[Array, "num_seqs query_len"], x: Hidden) -> Array | None:
        """Return each layer's own embedding of each token (Gemma 3n on), None where there is none."""
        if "embed_tokens_per_layer" not in self.ends:
            return None
        scale = self.ends["per_layer_projection_norm"]
        shape = (*tokens.shape, len(self.blocks), scale.shape[-1])
        projected = rms_norm(self.ends.times(x, "per_layer_model_projection").reshape(shape), scale)
        return (projected + self.ends["embed_tokens_per_layer"][tokens].reshape(shape)) * 2**-0.5

    def _logits(self, x: Float[Array, "num_seqs hidden"]) -> Float[Array, "num_seqs vocab"]:
        ends = self.ends
        if "norm.weight" in ends:
            x = norm(x, ends["norm.weight"], ends.get("norm.bias"))
        pair = ends.get("final_layer_norm")
        if pair is not None:
            x = norm(x, pair[0], pair[1])
        if "lm_head" in ends:
            return ends.times(x, "lm_head")
        out = jnp.matmul(x, ends["embed_tokens"].T, precision="highest")
        bias = ends.get("lm_head.bias")
        return out if bias is None else out + bias


Leaves: TypeAlias = "nnx.State[Any, Any]"
"""The arrays of a decoder."""


class Weights(NamedTuple):
    """A decoder split for `jit`: what it is made of, which is hashable, and its arrays."""

    graph: nnx.GraphDef[Decoder]
    state: Leaves


def _has_float64() -> bool:
    return bool(getattr(jax.config, "jax_enable_x64"))  # noqa: B009 - the stubs leave it out


def new_decoder(model: Architecture, plan: CachePlan, dtype: DTypeLike, seed: int) -> Weights:
    """Return a decoder of `model` with random weights, the same for the same seed.

    Raises:
        Unsupported: A part that the engine does not run.
        BadInput: 64-bit floats while JAX has them off.
    """
    if jnp.dtype(dtype) == jnp.float64 and not _has_float64():
        raise BadInput(
            "64-bit floats are off in JAX", where="float64", way_out="set JAX_ENABLE_X64=1, or use float32"
        )
    return Weights(*nnx.split(Decoder(model, plan, dtype, default_rng(seed))))


@partial(jax.jit, static_argnames=("graph", "plan"), donate_argnames="cache")
def run_step(
    graph: nnx.GraphDef[Decoder], state: Leaves, plan: CachePlan, cache: Cache, step: Step
) -> tuple[Sampled, Cache]:
    """Return what each row samples, and the cache with the step's tokens in it, updated in place."""
    past = PagedPast(plan, cache, step.tables, step.query_lens, step.kv_lens, step.tokens.shape[1])
    logits = nnx.merge(graph, state)(step.tokens, past)
    return Sampled(*greedy(logits)), past.cache


@partial(jax.jit, static_argnames=("graph", "plan"))
def run_whole(
    graph: nnx.GraphDef[Decoder],
    state: Leaves,
    plan: CachePlan,
    tokens: Int[Array, "num_seqs query_len"],
    lens: Int[Array, " num_seqs"],
) -> Sampled:
    """Return what each row samples, with nothing cached: every layer sees the whole row anew."""
    decoder = nnx.merge(graph, state)
    dtype = jax.tree_util.tree_leaves(state)[0].dtype
    past = NoPast(plan.states, lens, tokens.shape[1], dtype)
    return Sampled(*greedy(decoder(tokens, past)))
