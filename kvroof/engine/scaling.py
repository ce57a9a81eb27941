"""A model made small enough to run anywhere: the same kinds of layers in the same ratios, narrow and few."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kvroof.engine.narrow_recurrences import Size, narrow_recurrent
from kvroof.ground.dtypes import DTYPES
from kvroof.ground.errors import Unsupported
from kvroof.ground.record import record
from kvroof.spec.architecture import Architecture, Layer, Mixer, stack
from kvroof.spec.attention import GroupedAttention, LatentAttention
from kvroof.spec.ffn import FFN, DenseFFN
from kvroof.spec.reach import AnyReach, Chunked, Sliding
from kvroof.spec.recurrent import Recurrent
from kvroof.spec.weights import Weight, unquantised

_HIDDEN_WIDE = (
    "layernorm.weight",
    "layernorm.bias",
    "norm.weight",
    "norm.bias",
    "final_layer_norm",
    "word_embeddings_layernorm",
    "post_per_layer_input_norm",
)
_POSITIONS = 4096
_OWN_INPUT = 8
"""Width of a layer's own token embedding, scaled down."""


@record
class Scale:
    """How small: the residual, the vocabulary, the narrowest head, the narrowest window, the fewest layers.

    A mixture keeps at most `experts` experts of which a token runs at most two.
    """

    hidden_size: int = 64
    vocab_size: int = 128
    head_dim: int = 8
    window: int = 16
    num_layers: int = 2
    experts: int = 8


def scaled_down(model: Architecture, scale: Scale = Scale()) -> Architecture:  # noqa: B008 - a frozen record
    """Return `model` with few and narrow layers: one of each kind at least, in the order they stand.

    Kept: the kinds of layers, queries per KV head, widths of heads and of MLPs against each other, which
    layers store, biases, norms and sinks. Not kept: the numbers of layers, heads and experts.

    Raises:
        Unsupported: A part that the engine does not run.
    """
    chosen = [model.layers[model.order[i]].layer for i in _chosen(model, scale.num_layers)]
    narrow = _Narrow(model, scale)
    groups, order = stack([narrow.layer(layer) for layer in chosen])
    rows, hidden, own = scale.vocab_size, scale.hidden_size, len(chosen) * _OWN_INPUT
    shapes = {
        "embed_tokens": (rows, hidden),
        "embed_positions": (_POSITIONS, hidden),
        "embed_tokens_per_layer": (rows, own),
        "per_layer_model_projection": (hidden, own),
        "per_layer_projection_norm": (_OWN_INPUT,),
        "lm_head": (hidden, rows),
        "lm_head.bias": (rows,),
    }
    return replace(
        model,
        name=f"{model.name}, scaled down",
        hidden_size=hidden,
        vocab_size=rows,
        layers=groups,
        order=order,
        embedding=tuple(narrow.weight(w, shapes) for w in model.embedding),
        lm_head=narrow.weight(model.lm_head, shapes),
        final=tuple(narrow.weight(w, shapes) for w in model.final),
        towers=(),
        formats=unquantised(DTYPES[model.dtype]),
        checkpoint_bytes=None,
        kv_dtype=None,
        state_dtype=None,
        max_position_embeddings=None,
        notes=(),
    )


def _chosen(model: Architecture, fewest: int) -> list[int]:
    """Return the layers to keep: the first of each kind, and more of the first ones up to `fewest`."""
    first: dict[object, int] = {}
    for index, group in enumerate(model.order):
        first.setdefault(_kind(model.layers[group].layer), index)
    chosen = set(first.values())
    for index in range(len(model.order)):
        if len(chosen) < fewest:
            chosen.add(index)
    return sorted(chosen)


def _kind(layer: Layer) -> object:
    """Return what makes a layer another kind than the next, sizes left out."""
    mixers = tuple(
        (type(m).__name__, m.kind, getattr(m, "reach", None), getattr(m, "stores_kv", True))
        for m in layer.mixers
    )
    return mixers, tuple(type(ffn).__name__ for ffn in layer.ffns), layer.parallel


class _Narrow:
    """Narrows the parts of one model by the same ratios."""

    def __init__(self, model: Architecture, scale: Scale) -> None:
        self.model, self.scale, self.hidden = model, scale, scale.hidden_size
        mixers = [m for g in model.layers for m in g.layer.mixers]
        grouped = [m for m in mixers if isinstance(m, GroupedAttention)]
        windows = [r.size for m in mixers if isinstance(r := getattr(m, "reach", None), Sliding | Chunked)]
        self.narrowest = min((min(m.head_dim, m.v_head_dim) for m in grouped), default=1)
        self.shortest = min(windows, default=1)

    def layer(self, layer: Layer) -> Layer:
        """Return the layer, narrow."""
        own = {
            "per_layer_input_gate": (self.hidden, _OWN_INPUT),
            "per_layer_projection": (_OWN_INPUT, self.hidden),
        }
        return Layer(
            mixers=tuple(self.mixer(mixer) for mixer in layer.mixers),
            ffns=tuple(self.ffn(ffn) for ffn in layer.ffns),
            norms=tuple(self.weight(w, own) for w in layer.norms),
            parallel=layer.parallel,
        )

    def mixer(self, mixer: Mixer) -> Mixer:
        """Return the mixer, narrow."""
        if isinstance(mixer, GroupedAttention):
            return self._grouped(mixer)
        if isinstance(mixer, LatentAttention):
            return self._latent(mixer)
        if isinstance(mixer, Recurrent):
            return narrow_recurrent(mixer, Size(self.hidden, self.scale.head_dim, self.width))
        raise Unsupported(f"the engine has no {mixer.kind} layer", where=self.model.name)

    def ffn(self, ffn: FFN) -> FFN:
        """Return the feed-forward part, narrow."""
        extras = ffn.extras
        if isinstance(ffn, DenseFFN):
            inner = self.width(ffn.intermediate_size)
            return replace(ffn, hidden_size=self.hidden, intermediate_size=inner, extras=extras)
        experts = min(ffn.num_experts, self.scale.experts)
        inner, latent = self.width(ffn.moe_intermediate_size), ffn.expert_input_size
        shared = None if ffn.shared_intermediate_size is None else self.width(ffn.shared_intermediate_size)
        latent = None if latent is None else self.width(latent)
        into = "gate_up_proj" if ffn.gated else "up_proj"
        shapes: dict[str, tuple[int, ...]] = {
            "router.bias": (experts,),
            "router.score_bias": (experts,),
            "shared_expert_gate": (self.hidden, 1),
            "shared_expert.gate_up_proj.bias": (2 * (shared or 0),),
            "shared_expert.up_proj.bias": (shared or 0,),
            "shared_expert.down_proj.bias": (self.hidden,),
            "fc1_latent_proj": (self.hidden, latent or 0),
            "fc2_latent_proj": (latent or 0, self.hidden),
            "fc1_latent_proj.bias": (latent or 0,),
            "fc2_latent_proj.bias": (self.hidden,),
            f"experts.{into}.bias": (inner * (2 if ffn.gated else 1),),
            "experts.down_proj.bias": (latent or self.hidden,),
        }
        theirs = tuple(replace(self.weight(w, shapes), count=experts) for w in ffn.expert_extras)
        return replace(
            ffn,
            hidden_size=self.hidden,
            num_experts=experts,
            num_experts_per_tok=min(ffn.num_experts_per_tok, 2, experts),
            moe_intermediate_size=inner,
            shared_intermediate_size=shared,
            expert_input_size=latent,
            extras=tuple(self.weight(w, shapes) for w in extras),
            expert_extras=theirs,
        )

    def width(self, wide: int) -> int:
        """Return a width in the ratio that it has to the residual, in steps of 8."""
        return max(8, 8 * round(wide * self.hidden / (8 * self.model.hidden_size)))

    def weight(self, weight: Weight, shapes: Mapping[str, tuple[int, ...]]) -> Weight:
        """Return a weight beside the projections in its new shape, by its name.

        Raises:
            Unsupported: A weight that the engine does not run.
        """
        if weight.name in _HIDDEN_WIDE:
            return replace(weight, shape=(self.hidden,), split=1)
        if weight.name not in shapes:
            raise Unsupported(f"the engine has no {weight.name!r}", where=self.model.name)
        return replace(weight, shape=shapes[weight.name], split=1)

    def _reach(self, reach: AnyReach) -> AnyReach:
        if isinstance(reach, Sliding | Chunked):
            return replace(reach, size=max(1, reach.size * self.scale.window // self.shortest))
        return reach

    def _even(self, wide: int, narrowest: int) -> int:
        return max(2, 2 * round(wide * self.scale.head_dim / (2 * narrowest)))

    def _grouped(self, spec: GroupedAttention) -> GroupedAttention:
        ratio = spec.num_heads // spec.num_kv_heads
        kv_heads = 1 if spec.num_kv_heads == 1 else 4 if ratio == 1 else 2
        k_dim, v_dim = self._even(spec.head_dim, self.narrowest), self._even(spec.v_head_dim, self.narrowest)
        made = replace(
            spec,
            hidden_size=self.hidden,
            num_heads=kv_heads * ratio,
            num_kv_heads=kv_heads,
            head_dim=k_dim,
            v_head_dim=v_dim,
            reach=self._reach(spec.reach),
        )
        shapes: dict[str, tuple[int, ...]] = {
            "q_proj.bias": (made.projections[0].shape[1],),
            "k_proj.bias": (kv_heads * k_dim,),
            "v_proj.bias": (kv_heads * v_dim,),
            "o_proj.bias": (self.hidden,),
            "sinks": (kv_heads * ratio,),
        }
        for name, heads in (("q_norm", spec.num_heads), ("k_norm", spec.num_kv_heads)):
            old = next((w.shape[0] for w in spec.extras if w.name == name), 0)
            whole = old == heads * spec.head_dim and heads > 1
            new = (kv_heads * ratio if name == "q_norm" else kv_heads) if whole else 1
            shapes[name] = (new * k_dim,)
        return replace(made, extras=tuple(self.weight(w, shapes) for w in spec.extras))

    def _latent(self, spec: LatentAttention) -> LatentAttention:
        narrowest = 2 * min(spec.qk_rope_head_dim, spec.qk_nope_head_dim, spec.v_head_dim)
        rank, rope = self._even(spec.kv_lora_rank, narrowest), self._even(spec.qk_rope_head_dim, narrowest)
        q_rank = None if spec.q_lora_rank is None else self._even(spec.q_lora_rank, narrowest)
        shapes = {
            "kv_a_proj.bias": (rank + rope,),
            "o_proj.bias": (self.hidden,),
            "q_a_proj.bias": (q_rank or 0,),
        }
        return replace(
            spec,
            hidden_size=self.hidden,
            num_heads=4,
            q_lora_rank=q_rank,
            kv_lora_rank=rank,
            qk_nope_head_dim=self._even(spec.qk_nope_head_dim, narrowest),
            qk_rope_head_dim=rope,
            v_head_dim=self._even(spec.v_head_dim, narrowest),
            reach=self._reach(spec.reach),
            extras=tuple(self.weight(w, shapes) for w in spec.extras),
        )
