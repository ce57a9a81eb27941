"""Families whose feed-forward part is a mixture of experts, on some layers or on all."""

from __future__ import annotations

from kvroof.catalog.config import Config
from kvroof.catalog.families.blocks import experts, heads, late_window, latent, listed, mlp, window
from kvroof.catalog.families.family import Family
from kvroof.spec.ffn import FFN
from kvroof.spec.reach import Full, Sliding

MIXTRAL = Family(
    mixers=heads(reach=window), ffns=experts(number="num_local_experts", width="intermediate_size")
)


def _alternate(config: Config, layer: int) -> Full | Sliding:
    """Return a window on even layers (gpt-oss)."""
    return Full() if layer % 2 else Sliding(size=config.integer("sliding_window", 128))


GPT_OSS = Family(
    mixers=heads(
        head_dim=64,
        qkv_bias=("attention_bias", True),
        o_bias=("attention_bias", True),
        sinks=True,
        reach=listed(_alternate, 128),
    ),
    ffns=experts(number="num_local_experts", width="intermediate_size", biases=True),
)


def _qwen_ffns(config: Config, layer: int) -> tuple[FFN, ...]:
    """Return experts every `decoder_sparse_step` layers, except on `mlp_only_layers`."""
    dense = config.array("mlp_only_layers", int) or []
    step = config.integer("decoder_sparse_step", 1)
    if layer in dense or (layer + 1) % step:
        return mlp()(config, layer)
    return experts()(config, layer)


QWEN3_MOE = Family(
    mixers=heads(
        head_dim=128,
        qk_norm="head",
        qkv_bias="attention_bias",
        o_bias="attention_bias",
        reach=listed(late_window),
    ),
    ffns=_qwen_ffns,
    meaningless=frozenset({"shared_expert_intermediate_size"}),
)


def _deepseek_shared(config: Config) -> int | None:
    """Return the width of the shared experts, which run as one MLP."""
    shared = config.optional_integer("n_shared_experts", minimum=0)
    return shared * config.integer("moe_intermediate_size") if shared else None


def _deepseek_ffns(config: Config, layer: int) -> tuple[FFN, ...]:
    """Return dense MLPs first, then experts on every `moe_layer_freq`-th layer."""
    first = config.integer("first_k_dense_replace", 0, minimum=0)
    step = config.integer("moe_layer_freq", 1)
    if not config.has("n_routed_experts") or layer < first or layer % step:
        return mlp()(config, layer)
    return experts(number="n_routed_experts", shared=_deepseek_shared)(config, layer)


DEEPSEEK = Family(
    mixers=latent,
    ffns=_deepseek_ffns,
    # MTP blocks run, and hold a cache, only when speculating; KV heads mean nothing to a latent.
    meaningless=frozenset({"num_key_value_heads", "head_dim", "num_nextn_predict_layers"}),
)

FAMILIES = {
    "mixtral": MIXTRAL,
    "gpt_oss": GPT_OSS,
    "qwen3_moe": QWEN3_MOE,
    "deepseek_v2": DEEPSEEK,
    "deepseek_v3": DEEPSEEK,
}
