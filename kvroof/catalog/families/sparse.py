"""Mixtures of experts whose attention differs by layer: chunked, sliding beside full, block-sparse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kvroof.catalog.config import Config
from kvroof.catalog.families.blocks import (
    BLOCK_SPARSE,
    Reach,
    Shape,
    experts,
    flag,
    head_shape,
    heads,
    listed,
    mlp,
    one_of,
)
from kvroof.catalog.families.family import Family
from kvroof.catalog.families.llama_like import BIAS, grouped
from kvroof.catalog.families.schedule import every, flags, listed_mlps, mixed, shared_experts
from kvroof.spec.attention import GroupedAttention, Indexer
from kvroof.spec.ffn import FFN, MoE
from kvroof.spec.reach import Chunked, Full, Sliding
from kvroof.spec.weights import Weight, vector

MTP = frozenset({"mtp_layer_types", "mtp_mlp_layer_types", "num_mtp_modules", "num_nextn_predict_layers"})


def _llama4_reach(config: Config, layer: int) -> Reach:
    """Return a chunk on the layers with rotary positions, everything on the others: every fourth."""
    if config.says_null("attention_chunk_size"):
        return Full()
    turns = config.array("no_rope_layers", int) or []
    if turns and len(turns) != config.integer("num_hidden_layers"):
        config.fail("no_rope_layers", f"has {len(turns)} entries, one for each layer or none are wanted")
    interval = config.integer("no_rope_layer_interval", 4)
    local = bool(turns[layer]) if turns else (layer + 1) % interval != 0
    return Chunked(size=config.integer("attention_chunk_size", 8192)) if local else Full()


def _llama4_sparse(config: Config, layer: int) -> bool:
    """Return experts on `moe_layers`, else on every `interleave_moe_layer_step`-th layer."""
    listed_layers = config.array("moe_layers", int)
    step = config.integer("interleave_moe_layer_step", 1)
    return layer in listed_layers if listed_layers is not None else (layer + 1) % step == 0


LLAMA4 = Family(
    mixers=heads(shape=grouped(128), qkv_bias=BIAS, o_bias=BIAS, reach=listed(_llama4_reach)),
    ffns=mixed(
        _llama4_sparse,
        experts(
            number=("num_local_experts", "num_experts"),
            width="intermediate_size",
            shared=lambda config: config.integer("intermediate_size"),
        ),
        mlp(width=lambda config: config.integer("intermediate_size_mlp")),
    ),
    # Its query and key norms have no weights.
    meaningless=frozenset(
        {"attn_scale", "attn_temperature_tuning", "moe_layers", "no_rope_layers", "no_rope_layer_interval"}
    ),
)


def _mimo_slides(config: Config, layer: int) -> bool:
    """Return whether a layer of MiMo-V2 has the window: listed by name, or 1 in the pattern."""
    types = config.array("layer_types", str, config.integer("num_hidden_layers"))
    if types is None:
        return bool(flags(config, "hybrid_layer_pattern")[layer])
    if types[layer] not in ("full_attention", "sliding_attention"):
        config.fail("layer_types", f"{types[layer]!r} is not an attention this family has")
    return bool(types[layer] == "sliding_attention")


def _mimo_shape(config: Config, layer: int) -> Shape:
    """Return MiMo-V2's heads: values narrower than keys, twice the KV heads where the window is."""
    n, m = config.integer("num_attention_heads"), config.integer("num_key_value_heads")
    k, v = config.integer("head_dim"), config.integer("v_head_dim")
    if not _mimo_slides(config, layer):
        return Shape(n, m, k, v)
    return Shape(
        config.integer("swa_num_attention_heads", n),
        config.integer("swa_num_key_value_heads", 2 * m),
        config.integer("swa_head_dim", k),
        config.integer("swa_v_head_dim", v),
    )


def _mimo_reach(config: Config, layer: int) -> Reach:
    size = config.integer("sliding_window")
    return Sliding(size=size) if _mimo_slides(config, layer) else Full()


def _mimo_sinks(config: Config, layer: int) -> tuple[Weight, ...]:
    """Return one sink per head, on the layers that the file says, else where the window is."""
    slides = _mimo_slides(config, layer)
    key = "add_swa_attention_sink_bias" if slides else "add_full_attention_sink_bias"
    n = _mimo_shape(config, layer).heads
    return (vector("sinks", n, split=n),) if config.boolean(key, slides) else ()


def _mimo_sparse(config: Config, layer: int) -> bool:
    return bool(flags(config, "moe_layer_freq")[layer])


MIMO_V2 = Family(
    mixers=heads(shape=_mimo_shape, qkv_bias=BIAS, reach=_mimo_reach, extras=_mimo_sinks),
    ffns=mixed(listed_mlps(_mimo_sparse), experts(number="n_routed_experts", shared=shared_experts())),
    meaningless=MTP
    | {
        "attention_chunk_size",
        "hybrid_layer_pattern",
        "sliding_window_size",
        "swa_head_dim",
        "swa_num_attention_heads",
        "swa_num_key_value_heads",
        "swa_v_head_dim",
        "add_full_attention_sink_bias",
        "add_swa_attention_sink_bias",
    },
)

_M3_KEYS = {
    "index_n_heads": "sparse_num_index_heads",
    "index_head_dim": "sparse_index_dim",
    "index_block_size": "sparse_block_size",
    "index_topk_blocks": "sparse_topk_blocks",
}


def _m3_sparse(config: Config, layer: int) -> bool:
    """Return whether a MiniMax-M3 layer reads the blocks that an index picks."""
    count = config.integer("num_hidden_layers")
    types = config.array("layer_types", str, count)
    sparse = config.child("sparse_attention_config")
    if types is not None:
        return bool(types[layer] == "minimax_m3_sparse")
    if sparse is None or not sparse.boolean("use_sparse_attention", True):
        return False
    turns = sparse.array("sparse_attention_freq", int, count)
    if turns is None:
        sparse.fail("sparse_attention_freq", "missing, and it decides the cache")
    return bool(turns[layer])


def _m3_index(config: Config) -> Indexer:
    """Return the index of MiniMax-M3: it reads the residual, and picks blocks of keys."""
    hidden, sparse = config.integer("hidden_size"), config.child("sparse_attention_config")
    number, width, block, topk = (
        sparse.integer(old) if sparse is not None and sparse.has(old) else config.integer(new)
        for new, old in _M3_KEYS.items()
    )
    weights = (
        Weight(name="indexer.q_proj", shape=(hidden, number * width), role="attention"),
        Weight(name="indexer.k_proj", shape=(hidden, width), role="attention"),
        vector("indexer.norms", width, count=2),
    )
    return Indexer(num_heads=number, head_dim=width, topk=topk * block, weights=weights)


def _m3_mixers(config: Config, layer: int) -> tuple[GroupedAttention, ...]:
    """Return grouped heads, with an index key per token where the layer is sparse."""
    if config.text("qk_norm_type", "per_head") != "per_head":
        config.fail("qk_norm_type", "is not per_head")
    if flag(config, "attention_output_gate"):
        config.fail("attention_output_gate", "is not understood")
    (mixer,) = heads(shape=grouped(128), qk_norm="head", qk_norm_if=("use_qk_norm", True))(config, layer)
    return (replace(mixer, index=_m3_index(config)) if _m3_sparse(config, layer) else mixer,)


def _m3_experts(config: Config, layer: int) -> bool:
    return (
        bool(flags(config, "moe_layer_freq")[layer]) if config.has("moe_layer_freq") else every(config, layer)
    )


MINIMAX_M3 = Family(
    mixers=_m3_mixers,
    ffns=mixed(
        listed_mlps(_m3_experts),
        experts(
            number=("num_local_experts", "num_experts"),
            width="intermediate_size",
            shared=lambda config: config.integer("shared_intermediate_size", minimum=0) or None,
        ),
        mlp(width=lambda config: config.integer("dense_intermediate_size")),
    ),
    meaningless=MTP
    | {
        "first_k_dense_replace",
        "index_block_size",
        "index_head_dim",
        "index_local_blocks",
        "index_n_heads",
        "index_topk_blocks",
        "moe_intermediate_size",
        "n_shared_experts",
    },
    parts=BLOCK_SPARSE,
)


def _step_types(config: Config) -> list[str]:
    """Return the attention of each layer; MTP blocks trail the list."""
    types, count = config.array("layer_types", str), config.integer("num_hidden_layers")
    if types is None or len(types) < count:
        config.fail("layer_types", f"is not a list of {count} layers or more")
    if set(types) - {"full_attention", "sliding_attention"}:
        config.fail("layer_types", "names an attention that this family does not have")
    return types


def _step_shape(config: Config, layer: int) -> Shape:
    """Return Step's heads, more of them where the window is, as the file must then say."""
    names = ("num_attention_groups", "num_key_value_heads")
    kv = next((config.integer(name) for name in names if config.has(name)), None)
    if kv is None:
        config.fail(names[1], "missing, and it decides the cache")
    shape = head_shape(config, 128)._replace(kv_heads=kv)
    if _step_types(config)[layer] == "full_attention":
        return shape
    other = config.child("attention_other_setting")
    if other is None:
        return shape._replace(heads=config.integer("num_sliding_attention_heads"))
    groups = other.integer("num_attention_groups", kv)
    return shape._replace(heads=other.integer("num_attention_heads"), kv_heads=groups)


def _step_reach(config: Config, layer: int) -> Reach:
    if _step_types(config)[layer] == "full_attention":
        return Full()
    return Sliding(size=config.integer("sliding_window"))


def _step_gate(config: Config, layer: int) -> tuple[Weight, ...]:
    """Return one output gate per head (Step)."""
    if not config.boolean("use_head_wise_attn_gate", True):
        return ()
    n = _step_shape(config, layer).heads
    return (Weight(name="g_proj", shape=(config.integer("hidden_size"), n), split=n, role="attention"),)


def _step_sparse(config: Config, layer: int) -> bool:
    """Return experts on the layers that `moe_layers_enum` lists, as numbers or as one text."""
    named = config.data.get("moe_layers_enum")
    if named is None:
        return layer >= config.integer("first_k_dense_replace", minimum=0)
    if not isinstance(named, str):
        return layer in (config.array("moe_layers_enum", int) or [])
    return str(layer) in [part.strip() for part in config.text("moe_layers_enum").split(",")]


def _step_mlps(config: Config, layer: int) -> bool:
    types = config.array("mlp_layer_types", str)
    if types is None:
        return _step_sparse(config, layer)
    if len(types) <= layer or types[layer] not in ("dense", "sparse"):
        config.fail("mlp_layer_types", f"does not say whether layer {layer} is dense or sparse")
    return bool(types[layer] == "sparse")


STEP = Family(
    mixers=heads(
        shape=_step_shape, qkv_bias=BIAS, o_bias=BIAS, qk_norm="head", reach=_step_reach, extras=_step_gate
    ),
    ffns=mixed(
        _step_mlps,
        experts(
            number=("n_routed_experts", "num_experts", "moe_num_experts", "num_local_experts"),
            active=("num_experts_per_tok", "moe_top_k"),
            shared=lambda config: config.integer("share_expert_dim", minimum=0) or None,
            shared_bias="mlp_bias",
        ),
        mlp(bias="mlp_bias"),
    ),
    meaningless=MTP
    | {
        "first_k_dense_replace",
        "moe_every_n_layer",
        "moe_layer_offset",
        "moe_layers_enum",
        "moe_router_activation",
        "moe_router_scaling_factor",
        "n_shared_experts",
        "num_sliding_attention_heads",
        "per_layer_config",
        "swiglu_limits_shared",
        "use_moe",
        "use_moe_router_bias",
        "use_rope_layers",
        "attention_other_setting",
        "norm_expert_weight",
        "sliding_window",
    },
    parts={"expert": ("moe",), "shared_expert": ("share_expert",)},
)


def _dbrx_part(config: Config, key: str) -> Config:
    part = config.child(key)
    if part is None:
        config.fail(key, "missing, and it decides the size")
    return part


def _dbrx_shape(config: Config, layer: int) -> Shape:
    return head_shape(config)._replace(kv_heads=_dbrx_part(config, "attn_config").integer("kv_n_heads"))


def _dbrx_ffns(config: Config, layer: int) -> tuple[FFN, ...]:
    """Return DBRX's experts, which its config keeps in an object of their own."""
    part = _dbrx_part(config, "ffn_config")
    count = part.integer("moe_num_experts")
    return (
        MoE(
            hidden_size=config.integer("hidden_size"),
            num_experts=count,
            num_experts_per_tok=part.integer("moe_top_k", maximum=count),
            moe_intermediate_size=part.integer("ffn_hidden_size"),
        ),
    )


DBRX = Family(mixers=heads(shape=_dbrx_shape), ffns=_dbrx_ffns)


_JET_EXPERTS = ("num_local_experts", "moe_num_experts")
_JET_ACTIVE = ("num_experts_per_tok", "moe_top_k")


def _jet_mixers(config: Config, layer: int) -> tuple[GroupedAttention, ...]:
    """Return a mixture of attentions: each expert has its queries and its output, all share the keys."""
    hidden, m = config.integer("hidden_size"), config.integer("num_key_value_heads")
    width, count = config.integer("kv_channels"), one_of(config, _JET_EXPERTS)
    active = one_of(config, _JET_ACTIVE, maximum=count)
    shape: Callable[[Config, int], Shape] = lambda c, i: Shape(m * active, m, width, width)  # noqa: E731
    (mixer,) = heads(shape=shape)(config, layer)
    idle = count - active
    parts = (
        Weight(name="router", shape=(hidden, count), role="router"),
        vector("bias", hidden),
        Weight(name="idle.q_proj", shape=(hidden, m * width), count=idle, split=m, role="expert"),
        Weight(
            name="idle.o_proj", shape=(m * width, hidden), count=idle, split=m, split_rows=True, role="expert"
        ),
    )
    return (replace(mixer, extras=parts if idle else parts[:2]),)


JETMOE = Family(
    mixers=_jet_mixers,
    ffns=experts(
        number=_JET_EXPERTS,
        width="intermediate_size",
        active=_JET_ACTIVE,
        extras=lambda config: (vector("bias", config.integer("hidden_size")),),
    ),
    tied=True,
    meaningless=frozenset({"num_attention_heads"}),
    parts={"expert": ("mlp",)},
)

FAMILIES = {
    "dbrx": DBRX,
    "jetmoe": JETMOE,
    "llama4": LLAMA4,
    "llama4_text": LLAMA4,
    "mimo_v2_flash": MIMO_V2,
    "minimax_m3": MINIMAX_M3,
    "minimax_m3_vl": MINIMAX_M3,
    "minimax_m3_vl_text": MINIMAX_M3,
    "step3p5": STEP,
    "step3p7": STEP,
}
