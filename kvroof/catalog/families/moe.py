"""Families whose feed-forward part is a mixture of experts, on some layers or on all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kvroof.catalog.config import Config
from kvroof.catalog.families.blocks import (
    GRANITE_PARTS,
    Reach,
    Shape,
    every_nth_full,
    experts,
    full,
    head_shape,
    heads,
    listed,
    mlp,
    one_of,
    window,
)
from kvroof.catalog.families.family import Family
from kvroof.catalog.families.llama_like import BIAS, first_of_n_full, grouped
from kvroof.catalog.families.schedule import after, listed_mlps, mixed, shared_experts, stepped
from kvroof.spec.ffn import FFN
from kvroof.spec.reach import Full, Sliding
from kvroof.spec.weights import Weight, vector

EXPERTS = ("num_experts", "num_local_experts")
ROUTED = ("n_routed_experts", "num_experts")
MTP = frozenset({"num_nextn_predict_layers"})
"""Multi-token blocks run, and hold a cache, only when speculating."""

LOCAL_EXPERTS = experts(number=EXPERTS, width="intermediate_size")

MIXTRAL = Family(mixers=heads(shape=grouped(), reach=window), ffns=LOCAL_EXPERTS)
PHIMOE = Family(
    mixers=heads(shape=grouped(), qkv_bias=BIAS, o_bias=BIAS, reach=window),
    ffns=LOCAL_EXPERTS,
    norm_bias=True,
    head_bias="lm_head_bias",
)


def _minimax_ffns(config: Config, layer: int) -> tuple[FFN, ...]:
    """Return MiniMax-M2's experts; its class has neither shared experts nor linear attention."""
    if config.integer("shared_intermediate_size", 0, minimum=0):
        config.fail("shared_intermediate_size", "is not 0, and this family has no shared experts")
    if 0 in (config.array("attn_type_list", int) or []):
        config.fail("attn_type_list", "names linear attention, which this family does not have")
    return LOCAL_EXPERTS(config, layer)


MINIMAX_M2 = Family(
    mixers=heads(shape=grouped(128), qk_norm="full", qk_norm_if=("use_qk_norm", True)),
    ffns=_minimax_ffns,
    meaningless=frozenset(
        """
        layernorm_full_attention_alpha layernorm_full_attention_beta layernorm_linear_attention_alpha
        layernorm_linear_attention_beta mtp_transformer_layers num_mtp_modules qk_norm_type shared_moe_mode
        """.split()
    ),
)
OLMOE = Family(mixers=heads(qkv_bias=BIAS, o_bias=BIAS, qk_norm="full"), ffns=LOCAL_EXPERTS)


def _alternate(config: Config, layer: int) -> Full | Sliding:
    """Return a window on even layers (gpt-oss)."""
    return Full() if layer % 2 else Sliding(size=config.integer("sliding_window", 128))


GPT_OSS = Family(
    mixers=heads(
        shape=grouped(64),
        qkv_bias=(BIAS, True),
        o_bias=(BIAS, True),
        sinks=True,
        reach=listed(_alternate, 128),
    ),
    ffns=experts(number=EXPERTS, width="intermediate_size", biases=True),
)


def used_window(config: Config, layer: int) -> Reach:
    """Return a window on every layer, and only with `use_sliding_window`."""
    size = config.optional_integer("sliding_window", minimum=0)
    return Sliding(size=size) if config.boolean("use_sliding_window", False) and size else Full()


def _stated_layers(config: Config, layer: int) -> Reach:
    """Return full attention; a window that is used needs the list of the layers that have it."""
    if config.boolean("use_sliding_window", False):
        config.fail("layer_types", "missing, and the window is used", "add layer_types")
    return Full()


def _shared_gate(config: Config) -> tuple[Weight, ...]:
    """Return the gate on the shared expert (Qwen)."""
    return (Weight(name="shared_expert_gate", shape=(config.integer("hidden_size"), 1), role="router"),)


def _own_width(config: Config) -> int | None:
    """Return the width of the shared expert, which is a key of its own; 0 says none."""
    return config.integer("shared_expert_intermediate_size", minimum=0) or None


QWEN2_MOE = Family(
    mixers=heads(shape=grouped(), qkv_bias=("qkv_bias", True), reach=listed(_stated_layers)),
    ffns=mixed(stepped, experts(shared=_own_width, extras=_shared_gate)),
    meaningless=frozenset({"max_window_layers", "sliding_window"}),
)
QWEN3_MOE = Family(
    mixers=heads(shape=grouped(), qk_norm="head", qkv_bias=BIAS, o_bias=BIAS, reach=used_window),
    ffns=mixed(stepped, experts(number=EXPERTS)),
    meaningless=frozenset({"max_window_layers", "shared_expert_intermediate_size"}),
)
QWEN3_VL_MOE = replace(
    QWEN3_MOE,
    mixers=heads(shape=grouped(128), qk_norm="head", qkv_bias=BIAS, o_bias=BIAS, reach=used_window),
)
MELLUM = replace(
    QWEN3_MOE,
    mixers=heads(
        shape=grouped(128), qk_norm="head", qkv_bias=BIAS, o_bias=BIAS, reach=listed(_stated_layers)
    ),
    ffns=mixed(listed_mlps(stepped), experts(number=EXPERTS)),
    meaningless=QWEN3_MOE.meaningless | MTP | {"mtp_layer_types", "mtp_mlp_layer_types", "num_mtp_layers"},
)


def _flint_reach(config: Config, layer: int) -> Reach:
    """Return full attention on the first two layers, every fourth and the last, else a window."""
    last = config.integer("num_hidden_layers") - 1
    if layer < 2 or layer % 4 == 1 or layer == last:
        return Full()
    return Sliding(size=config.integer("sliding_window", 513))


FLINT = Family(
    mixers=heads(
        shape=grouped(128),
        qkv_bias=BIAS,
        o_bias=BIAS,
        qk_norm="head",
        sinks=True,
        reach=listed(_flint_reach, 513),
    ),
    ffns=mixed(stepped, experts(number=EXPERTS, shared=_own_width)),
)
KOLIBRI = Family(
    mixers=heads(shape=grouped(128), qk_norm="head", reach=listed(every_nth_full(5, 513), 513)),
    ffns=experts(number=EXPERTS, shared=_own_width),
    norms=4,
)

GRANITE_MOE = Family(mixers=heads(qkv_bias=BIAS, o_bias=BIAS), ffns=LOCAL_EXPERTS, parts=GRANITE_PARTS)


def _granite_width(config: Config) -> int | None:
    """Return the width of Granite's shared MLP; 0 says none."""
    return config.integer("shared_intermediate_size", minimum=0) or None


_GRANITE_SHARED = experts(number=EXPERTS, width="intermediate_size", shared=_granite_width)
GRANITE_SHARED = replace(GRANITE_MOE, ffns=_GRANITE_SHARED)
GRANITE_SWA = Family(
    mixers=heads(qkv_bias=BIAS, o_bias=BIAS, sinks=True, reach=listed(first_of_n_full(4, 128), 128)),
    ffns=_GRANITE_SHARED,
    meaningless=frozenset({"layer_rope_theta"}),
    parts=GRANITE_PARTS,
)

GLM4_MOE = Family(
    mixers=heads(shape=grouped(), qkv_bias=BIAS, qk_norm="head", qk_norm_if="use_qk_norm"),
    ffns=mixed(after(), experts(number=ROUTED, shared=shared_experts())),
    meaningless=MTP,
)
GLM4V_MOE = replace(
    GLM4_MOE, mixers=heads(shape=grouped(), qkv_bias=(BIAS, True)), meaningless=MTP | {"use_qk_norm"}
)
SARVAM_MOE = replace(
    GLM4_MOE,
    mixers=heads(shape=grouped(64), qkv_bias=BIAS, qk_norm="head", qk_norm_if=("use_qk_norm", True)),
)
SOLAR_OPEN = replace(
    GLM4_MOE,
    mixers=heads(shape=grouped(128), qkv_bias=BIAS),
    ffns=experts(number=ROUTED, shared=shared_experts()),
    meaningless=MTP | {"first_k_dense_replace", "use_qk_norm"},
)


def _late(config: Config, layer: int) -> Reach:
    """Return a window from `max_window_layers` on where the config has one (dots.llm1)."""
    size = config.optional_integer("sliding_window")
    late = layer >= config.integer("max_window_layers", 62, minimum=0)
    return Sliding(size=size) if size is not None and late else Full()


DOTS = replace(GLM4_MOE, mixers=heads(qkv_bias=BIAS, o_bias=BIAS, qk_norm="head", reach=listed(_late)))
EXAONE_MOE = Family(
    mixers=heads(
        shape=grouped(), qk_norm="head", reach=listed(every_nth_full(4, 4096, "sliding_window_pattern"), 4096)
    ),
    ffns=mixed(listed_mlps(after()), experts(shared=shared_experts("num_shared_experts"))),
    meaningless=MTP,
)
HY_V3 = Family(
    mixers=heads(shape=grouped(128), qkv_bias=BIAS, o_bias=BIAS, qk_norm="head"),
    ffns=mixed(
        listed_mlps(after(1)),
        experts(shared=shared_experts("num_shared_experts"), shared_bias="mlp_bias"),
        mlp(bias="mlp_bias"),
    ),
    meaningless=MTP | {"enable_moe_fp32_combine"},
)


def _output_gate(config: Config, layer: int) -> tuple[Weight, ...]:
    """Return the gate on the attention's output, as wide as the queries (AFMoE)."""
    n, _, width, _ = head_shape(config, 128)
    shape = (config.integer("hidden_size"), n * width)
    return (Weight(name="gate_proj", shape=shape, split=n, role="attention"),)


def score_bias(*keys: str) -> Callable[[Config], tuple[Weight, ...]]:
    """Return the score correction of the families whose class makes it a parameter."""
    return lambda config: (vector("router.score_bias", one_of(config, keys)),)


AFMOE = Family(
    mixers=heads(
        shape=grouped(128),
        qkv_bias=BIAS,
        o_bias=BIAS,
        qk_norm="head",
        reach=listed(every_nth_full(4, 1024, "global_attn_every_n_layers"), 1024),
        extras=_output_gate,
    ),
    ffns=mixed(
        after(key="num_dense_layers"),
        experts(shared=shared_experts("num_shared_experts"), extras=score_bias(*EXPERTS)),
    ),
    norms=4,
    meaningless=frozenset({"global_attn_every_n_layers", "num_expert_groups", "num_limited_groups"}),
)


def _laguna_shape(config: Config, layer: int) -> Shape:
    """Return the heads of a layer, which `num_attention_heads_per_layer` may list (Laguna)."""
    shape = grouped(128)(config, layer)
    counts = config.array("num_attention_heads_per_layer", int, config.integer("num_hidden_layers"))
    return shape if counts is None else shape._replace(heads=counts[layer])


def _head_gate(config: Config, layer: int) -> tuple[Weight, ...]:
    """Return the gate on the attention's output: one value per head, or per element (Laguna)."""
    gating = config.data.get("gating", True)
    config.read.add("gating")
    if gating not in (True, "per-head", "per-element"):
        config.fail("gating", f"{gating!r:.40} is not a gate this family has")
    n, _, _, width = _laguna_shape(config, layer)
    wide = n * width if gating == "per-element" else n
    return (Weight(name="g_proj", shape=(config.integer("hidden_size"), wide), split=n, role="attention"),)


LAGUNA = Family(
    mixers=heads(
        shape=_laguna_shape,
        qkv_bias=BIAS,
        o_bias=BIAS,
        qk_norm="head",
        reach=listed(full, 512),
        extras=_head_gate,
    ),
    ffns=mixed(
        listed_mlps(after(1)), experts(number=EXPERTS, shared=_own_width, extras=score_bias(*EXPERTS))
    ),
    meaningless=frozenset(
        {"moe_apply_router_weight_on_input", "moe_routed_scaling_factor", "moe_router_logit_softcapping"}
    ),
)


def _ernie_sparse(config: Config, layer: int) -> bool:
    """Return experts on every `moe_layer_interval`-th layer between a first and a last one."""
    count = config.integer("num_hidden_layers")
    first = config.integer("moe_layer_start_index", minimum=0)
    last = config.integer("moe_layer_end_index", -1, minimum=-1)
    inside = first <= layer <= (count - 1 if last == -1 else last)
    return inside and (layer + 1) % config.integer("moe_layer_interval", 1) == 0


ERNIE_MOE = Family(
    mixers=heads(shape=grouped(), qkv_bias="use_bias", o_bias="use_bias"),
    ffns=mixed(
        _ernie_sparse,
        experts(
            number=("moe_num_experts", "num_experts"),
            active=("moe_k", "num_experts_per_tok"),
            shared=shared_experts("moe_num_shared_experts"),
            shared_bias="use_bias",
            extras=score_bias("moe_num_experts", "num_experts"),
        ),
        mlp(bias="use_bias"),
    ),
    head_bias="use_bias",
    tied=True,
    meaningless=MTP | {"moe_capacity", "moe_gate", "moe_norm_min", "moe_use_aux_free"},
)
LING_SHARED = shared_experts(
    "num_shared_experts", "moe_shared_expert_intermediate_size", "moe_intermediate_size"
)
BAILING = Family(
    mixers=heads(
        shape=grouped(), qkv_bias="use_qkv_bias", o_bias="use_bias", qk_norm="head", qk_norm_if="use_qk_norm"
    ),
    ffns=mixed(after(), experts(shared=LING_SHARED), mlp(bias="use_bias")),
    meaningless=MTP
    | {
        "max_window_layers",
        "moe_router_enable_expert_bias",
        "moe_router_enable_routed_scaling",
        "moe_router_topk_scaling_factor",
    },
)
ARIA = Family(
    mixers=heads(qkv_bias=BIAS, o_bias=BIAS),
    ffns=experts(
        number="moe_num_experts",
        width="intermediate_size",
        active="moe_topk",
        shared=shared_experts("moe_num_shared_experts", "intermediate_size"),
        shared_bias="mlp_bias",
    ),
)


FAMILIES = {
    "afmoe": AFMOE,
    "aria": ARIA,
    "aria_text": ARIA,
    "bailing_moe": BAILING,
    "bailing_moe_v2": BAILING,
    "dots1": DOTS,
    "ernie4_5_moe": ERNIE_MOE,
    "exaone_moe": EXAONE_MOE,
    "flex_olmo": OLMOE,
    "flint": FLINT,
    "glm4_moe": GLM4_MOE,
    "glm4v_moe": GLM4V_MOE,
    "glm4v_moe_text": GLM4V_MOE,
    "gpt_oss": GPT_OSS,
    "granitemoe": GRANITE_MOE,
    "granitemoe_swa": GRANITE_SWA,
    "granitemoeshared": GRANITE_SHARED,
    "hy_v3": HY_V3,
    "kolibri1": KOLIBRI,
    "laguna": LAGUNA,
    "mellum": MELLUM,
    "minimax_m2": MINIMAX_M2,
    "mixtral": MIXTRAL,
    "olmoe": OLMOE,
    "phimoe": PHIMOE,
    "qwen2_moe": QWEN2_MOE,
    "qwen3_moe": QWEN3_MOE,
    "qwen3_vl_moe": QWEN3_VL_MOE,
    "qwen3_vl_moe_text": QWEN3_VL_MOE,
    "sarvam_moe": SARVAM_MOE,
    "solar_open": SOLAR_OPEN,
}
