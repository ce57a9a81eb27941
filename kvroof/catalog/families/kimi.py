"""Kimi-Linear, Kimi-K3 and Ling 3: Kimi's delta rule beside latent attention, experts behind them.

Kimi-K3 adds a gate on both mixers' outputs, experts that read a latent, and residuals which attend over the
outputs of blocks of layers. Its checkpoint stores the latent's projections in bf16 although its quantization
config does not leave them out. Source: `modeling_kimi_linear.py` and the tensor names of the checkpoint;
llama.cpp's conversion of Kimi-K3 (pull request 26185).
"""

from __future__ import annotations

from dataclasses import replace

from kvroof.catalog.config import Config
from kvroof.catalog.families.blocks import BLOCK_SPARSE, experts, latent, mlp
from kvroof.catalog.families.family import Family, layer_count
from kvroof.catalog.families.linear_attention import layer_type
from kvroof.catalog.families.moe import LING_SHARED
from kvroof.catalog.families.recurrences import kda, matrix
from kvroof.spec.architecture import Mixer
from kvroof.spec.ffn import FFN, MoE
from kvroof.spec.weights import Weight, vector

_LINEAR_KEYS = frozenset(
    """
    full_attn_layers gate_lower_bound head_dim kda_layers num_heads short_conv_kernel_size use_full_rank_gate
    """.split()
)


def _kimi_child(config: Config) -> Config | None:
    """Return the nested description of the linear layers; what it says beyond that is refused."""
    child = config.child("linear_attn_config")
    unknown = sorted(set(child.data) - _LINEAR_KEYS) if child else []
    if child and unknown:
        child.fail(str(unknown[0])[:60], "is not known of this family's linear attention")
    return child


def _kimi_is_full(config: Config, layer: int) -> bool:
    """Return whether a layer is full attention; the checkpoint's two lists count layers from 1."""
    kind = layer_type(config, layer, ("linear_attention", "full_attention"))
    if kind is not None:
        return kind == "full_attention"
    child = _kimi_child(config)
    if child is None:
        config.fail("linear_attn_config", "missing, and it decides the size", "list the kind of each layer")
    full, linear = child.array("full_attn_layers", int) or [], child.array("kda_layers", int) or []
    if (layer + 1 in full) == (layer + 1 in linear):
        child.fail("full_attn_layers", f"layer {layer + 1} is not in exactly one of this and kda_layers")
    return layer + 1 in full


def _latent(config: Config, layer: int) -> tuple[Mixer, ...]:
    """Return latent attention, with a gate on its output where the file says so."""
    (mixer,) = latent(config, layer)
    if not config.boolean("mla_use_output_gate", False):
        return (mixer,)
    n = mixer.num_heads
    gate = matrix("g_proj", mixer.hidden_size, n * mixer.v_head_dim, n)
    return (replace(mixer, extras=(*mixer.extras, gate)),)


def _kimi_mixers(config: Config, layer: int) -> tuple[Mixer, ...]:
    """Return Kimi's delta rule, or a latent; either may have a gate as wide as its output."""
    if _kimi_is_full(config, layer):
        return _latent(config, layer)
    child = _kimi_child(config)
    whole = child is not None and child.boolean("use_full_rank_gate", False)
    if child is None:
        n, width = config.integer("linear_num_heads"), config.integer("linear_head_dim")
        kernel = config.integer("linear_conv_kernel_dim", 4)
    else:
        n, width = child.integer("num_heads"), child.integer("head_dim")
        kernel = child.integer("short_conv_kernel_size", 4)
    hidden = config.integer("hidden_size")
    return (kda(hidden=hidden, heads=n, head_dim=width, kernel=kernel, low_rank=True, whole_gate=whole),)


def _bailing_mixers(config: Config, layer: int) -> tuple[Mixer, ...]:
    """Return Ling 3's layers: KDA with whole gates, or a latent with one output gate per head."""
    if config.text("gated_attention_proj_granularity_type", "head_wise") != "head_wise":
        config.fail("gated_attention_proj_granularity_type", "is not head_wise")
    hidden, n = config.integer("hidden_size"), config.integer("num_attention_heads")
    kind = layer_type(config, layer, ("linear_attention", "full_attention"))
    full = kind == "full_attention" if kind else not (layer + 1) % config.integer("layer_group_size")
    if full:
        return tuple(
            replace(m, extras=(*m.extras, matrix("g_proj", hidden, n, n))) for m in latent(config, layer)
        )
    width = config.optional_integer("linear_head_dim") or config.integer("head_dim")
    kernel = config.optional_integer("linear_conv_kernel_dim") or config.integer("short_conv_kernel_size")
    number = config.integer("linear_num_heads", n)
    return (kda(hidden=hidden, heads=number, head_dim=width, kernel=kernel, low_rank=False),)


def _kimi_ffns(config: Config, layer: int) -> tuple[FFN, ...]:
    """Return dense MLPs first, then experts beside shared ones that run as one."""
    types = config.array("mlp_layer_types", str, layer_count(config))
    dense = (
        layer < config.integer("first_k_dense_replace", minimum=0)
        if types is None
        else types[layer] == "dense"
    )
    if config.integer("moe_layer_freq", 1) != 1:
        config.fail("moe_layer_freq", "experts on every layer are known, and no other frequency")
    if dense:
        return mlp()(config, layer)
    (moe,) = experts(
        number=("num_experts", "num_local_experts"),
        active=("num_experts_per_token", "num_experts_per_tok"),
        shared=LING_SHARED,
    )(config, layer)
    assert isinstance(moe, MoE)
    width = config.optional_integer("routed_expert_hidden_size")
    return (moe if width is None else _in_a_latent(config, moe, width),)


def _in_a_latent(config: Config, moe: MoE, width: int) -> MoE:
    """Return experts that read and write a latent; its projections are kept as the router is."""
    hidden = moe.hidden_size
    extras: tuple[Weight, ...] = (
        Weight(name="routed_expert_down_proj", shape=(hidden, width), role="router"),
        Weight(name="routed_expert_up_proj", shape=(width, hidden), role="router"),
    )
    if config.boolean("latent_moe_use_norm", False):
        extras += (vector("routed_expert_norm", width),)
    return replace(moe, expert_input_size=width, extras=moe.extras + extras)


def _residuals(config: Config, layer: int) -> tuple[Weight, ...]:
    """Return the norm and the query of the residual before attention, and of that before the MLP."""
    found = config.optional_integer("attn_res_block_size")
    return () if found is None else (vector("attn_res", config.integer("hidden_size"), count=4),)


def _last_residual(config: Config) -> tuple[Weight, ...]:
    """Return the norm and the query of the residual before the head."""
    found = config.optional_integer("attn_res_block_size")
    return () if found is None else (vector("output_attn_res", config.integer("hidden_size"), count=2),)


KIMI = Family(
    mixers=_kimi_mixers,
    ffns=_kimi_ffns,
    layer_extras=_residuals,
    final_extras=_last_residual,
    tied=None,
    # head_dim and the KV heads mean nothing to a latent; Kimi-Linear's 72 is a decoy.
    meaningless=frozenset(
        {
            "head_dim",
            "num_key_value_heads",
            "first_k_dense_replace",
            "num_expert_group",
            "moe_renormalize",
            "moe_router_activation_func",
            "num_nextn_predict_layers",
            "layer_group_size",
        }
    ),
    parts=BLOCK_SPARSE,
)
LING_3 = replace(
    KIMI,
    mixers=_bailing_mixers,
    meaningless=KIMI.meaningless
    | {"max_window_layers", "moe_router_enable_expert_bias", "num_kv_heads_for_linear_attn"},
    parts={"attention": ("attention",)},
)

FAMILIES = {
    "kimi_linear": KIMI,
    "bailing_hybrid": LING_3,
}
