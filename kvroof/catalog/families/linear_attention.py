"""Families built on linear attention, gated recurrences or short convolutions, mostly beside attention."""

from __future__ import annotations

import math
from collections.abc import Callable

from kvroof.catalog.config import MAX_COUNT, Config
from kvroof.catalog.families.blocks import experts, heads, mlp
from kvroof.catalog.families.family import Family, layer_count
from kvroof.catalog.families.recurrences import (
    gated_delta,
    lightning,
    matrix,
    rglru,
    short_conv,
)
from kvroof.spec.architecture import Mixer
from kvroof.spec.ffn import FFN
from kvroof.spec.reach import Full, Sliding
from kvroof.spec.recurrent import Recurrent
from kvroof.spec.weights import Weight, vector

MixersOf = Callable[[Config, int], tuple[Mixer, ...]]


def layer_type(config: Config, layer: int, known: tuple[str, ...]) -> str | None:
    """Return what `layer_types` says of a layer, None where the file has no list.

    Raises:
        BadInput: A kind that this family does not have.
    """
    types = config.array("layer_types", str, layer_count(config))
    if types is None:
        return None
    if types[layer] not in known:
        config.fail("layer_types", f"{types[layer][:40]!r} is not a layer this family has")
    return str(types[layer])


def no_list(config: Config) -> None:
    """Refuse a file that does not say which layers are of which kind."""
    config.fail("layer_types", "missing, and it decides the size", "list the kind of each layer")


def _every_nth(config: Config, layer: int, nth: int) -> bool:
    """Return whether a layer is full attention: by the list, else every `nth`."""
    kind = layer_type(config, layer, ("linear_attention", "full_attention"))
    return kind == "full_attention" if kind else (layer + 1) % nth == 0


def _qwen_mixers(inputs: dict[str, str]) -> MixersOf:
    """Return a reader of gated attention every `full_attention_interval` layers, else a delta rule."""
    attention = heads(
        head_dim=256,
        qk_norm="head",
        qkv_bias="attention_bias",
        o_bias="attention_bias",
        query_gate=True,
    )

    def read(config: Config, layer: int) -> tuple[Mixer, ...]:
        if not config.boolean("attn_output_gate", True):
            config.fail("attn_output_gate", "this family's attention is always gated")
        if _every_nth(config, layer, config.integer("full_attention_interval", 4)):
            return attention(config, layer)
        return (_qwen_delta(config, inputs),)

    return read


def _delta_heads(config: Config) -> tuple[int, int]:
    """Return key and value heads; each key head serves a whole number of value heads."""
    keys, values = config.integer("linear_num_key_heads"), config.integer("linear_num_value_heads")
    if values % keys:
        config.fail("linear_num_value_heads", f"{values} is not a multiple of {keys} key heads")
    return keys, values


def _qwen_delta(config: Config, inputs: dict[str, str], out: str = "out_proj") -> Recurrent:
    key_heads, value_heads = _delta_heads(config)
    return gated_delta(
        inputs,
        hidden=config.integer("hidden_size"),
        key_heads=key_heads,
        value_heads=value_heads,
        key_dim=config.integer("linear_key_head_dim"),
        value_dim=config.integer("linear_value_head_dim"),
        kernel=config.integer("linear_conv_kernel_dim", 4),
        out=out,
    )


_QWEN3_NEXT = {"in_proj_qkvz": "qkvz", "in_proj_ba": "ba"}
_QWEN3_5 = {"in_proj_qkv": "qkv", "in_proj_z": "z", "in_proj_b": "b", "in_proj_a": "a"}


def _qwen_experts(config: Config, layer: int) -> tuple[FFN, ...]:
    """Return experts beside a shared one with a gate of its own."""
    return experts(
        shared=lambda c: c.integer("shared_expert_intermediate_size"),
        extras=lambda c: (vector("shared_expert_gate", c.integer("hidden_size")),),
    )(config, layer)


def _qwen3_next_ffns(config: Config, layer: int) -> tuple[FFN, ...]:
    """Return experts every `decoder_sparse_step` layers, except on `mlp_only_layers`."""
    dense, step = config.array("mlp_only_layers", int) or [], config.integer("decoder_sparse_step", 1)
    if layer in dense or (layer + 1) % step:
        return mlp()(config, layer)
    config.read_nothing(("intermediate_size",))
    return _qwen_experts(config, layer)


def _qwen3_5_ffns(config: Config, layer: int) -> tuple[FFN, ...]:
    """Return experts on every layer: the class knows no other."""
    if config.array("mlp_only_layers", int) or config.integer("decoder_sparse_step", 1) != 1:
        config.fail("mlp_only_layers", "this family has experts on every layer")
    return _qwen_experts(config, layer)


_MTP = frozenset({"mtp_num_hidden_layers", "mtp_use_dedicated_embeddings"})
_QWEN3_5_DENSE = Family(mixers=_qwen_mixers(_QWEN3_5), meaningless=_MTP | {"mlp_only_layers"})
_QWEN3_5_MOE = Family(mixers=_qwen_mixers(_QWEN3_5), ffns=_qwen3_5_ffns, meaningless=_MTP)


def _olmo_mixers(config: Config, layer: int) -> tuple[Mixer, ...]:
    """Return attention with norms over all heads, or a delta rule of six separate projections."""
    if _every_nth(config, layer, 4):
        return heads(qk_norm="full", qkv_bias="attention_bias", o_bias="attention_bias")(config, layer)
    hidden, n = config.integer("hidden_size"), config.integer("num_attention_heads")
    key_heads = config.integer("linear_num_key_heads", n)
    value_heads = config.integer("linear_num_value_heads", n)
    if value_heads % key_heads:
        config.fail("linear_num_value_heads", f"{value_heads} is not a multiple of {key_heads} key heads")
    key_dim = config.integer("linear_key_head_dim", 3 * hidden // (4 * key_heads))
    return (
        gated_delta(
            {f"{part}_proj": "z" if part == "g" else part for part in "qkvabg"},
            hidden=hidden,
            key_heads=key_heads,
            value_heads=value_heads,
            key_dim=key_dim,
            value_dim=config.integer("linear_value_head_dim", 2 * key_dim),
            kernel=config.integer("linear_conv_kernel_dim", 4),
            out="o_proj",
        ),
    )


def _minimax_mixers(config: Config, layer: int) -> tuple[Mixer, ...]:
    """Return lightning attention, or full: by `layer_types`, else by `attn_type_list`, whose 1 is full."""
    if config.has("sliding_window"):
        config.fail("sliding_window", "windows are not known for this family")
    kind = layer_type(config, layer, ("linear_attention", "full_attention"))
    codes = config.array("attn_type_list", int, layer_count(config))
    if kind is None and codes is None:
        no_list(config)
    if kind == "full_attention" or (kind is None and codes and codes[layer]):
        return heads()(config, layer)
    hidden, n = config.integer("hidden_size"), config.integer("num_attention_heads")
    width = config.optional_integer("head_dim") or hidden // n
    return (lightning(hidden=hidden, heads=n, head_dim=width),)


def _minimax_ffns(config: Config, layer: int) -> tuple[FFN, ...]:
    if config.integer("shared_intermediate_size", 0, minimum=0):
        config.fail("shared_intermediate_size", "shared experts are not known for this family")
    return experts(number="num_local_experts", width="intermediate_size")(config, layer)


_MINIMAX = Family(
    mixers=_minimax_mixers,
    ffns=_minimax_ffns,
    meaningless=frozenset(
        f"{prefix}_{factor}"
        for prefix in ("full_attn", "linear_attn")
        for factor in ("alpha_factor", "beta_factor")
    )
    | {f"layernorm_{kind}_attention_{f}" for kind in ("full", "linear") for f in ("alpha", "beta")}
    | {"shared_moe_mode"},
)


def _griffin_mixers(config: Config, layer: int) -> tuple[Mixer, ...]:
    """Return Griffin's recurrence, or local attention, as the tile of `block_types` has it over and over."""
    tile = config.array("block_types", str) or ["recurrent", "recurrent", "attention"]
    kind = tile[layer % len(tile)]
    if kind == "attention":
        size = config.integer("attention_window_size")
        local = heads(qkv_bias="attention_bias", o_bias=True, reach=lambda c, i: Sliding(size=size))
        return local(config, layer)
    if kind != "recurrent":
        config.fail("block_types", f"{kind[:40]!r} is not a block this family has")
    hidden, n = config.integer("hidden_size"), config.integer("num_attention_heads")
    width = config.integer("lru_width", hidden)
    if width % n:
        config.fail("lru_width", f"{width} is not a multiple of {n} heads")
    return (rglru(hidden=hidden, width=width, heads=n, kernel=config.integer("conv1d_width", 4)),)


def _half(config: Config) -> int:
    """Return half of `intermediate_size`, which RecurrentGemma states for both matrices of the gate."""
    return config.integer("intermediate_size") // 2


def _lfm_mixers(*, gate: bool = False) -> MixersOf:
    """Return a reader of LFM's layers: short convolutions, full attention, and LFM3's windows."""

    def per_head(config: Config, layer: int) -> tuple[Weight, ...]:
        n = config.integer("num_attention_heads")
        on = gate and config.boolean("use_attention_gate", True)
        return (matrix("g_proj", config.integer("hidden_size"), n, n),) if on else ()

    def read(config: Config, layer: int) -> tuple[Mixer, ...]:
        kind = _lfm_kind(config, layer, gate)
        if kind == "conv":
            return (
                short_conv(
                    hidden=config.integer("hidden_size"),
                    kernel=config.integer("conv_L_cache"),
                    bias=config.boolean("conv_bias", False),
                ),
            )
        size = config.integer("sliding_window") if kind == "sliding_attention" else None
        bias = "attention_bias" if gate else False
        attention = heads(
            head_dim=128 if gate else None,
            qk_norm="head",
            qkv_bias=bias,
            o_bias=bias,
            extras=per_head,
            reach=lambda c, i: Sliding(size=size) if size else Full(),
        )
        return attention(config, layer)

    return read


def _lfm_kind(config: Config, layer: int, windows: bool) -> str:
    """Return the kind of a layer: by the list, else by the indices of the attention layers."""
    known = ("conv", "full_attention", *(("sliding_attention",) if windows else ()))
    kind = layer_type(config, layer, known)
    indices = config.array("full_attn_idxs", int)
    if kind is None and indices is None:
        no_list(config)
    return kind or ("full_attention" if layer in (indices or []) else "conv")


def _lfm_width(config: Config) -> int:
    """Return LFM2's MLP width: two thirds of what is stated, rounded up, unless told to leave it."""
    stated = config.optional_integer("block_ff_dim") or config.integer("intermediate_size")
    if not config.boolean("block_auto_adjust_ff_dim", True):
        return stated
    factor = config.optional_number("block_ffn_dim_multiplier")
    width, step = int(2 * stated / 3), config.integer("block_multiple_of", 256)
    width = width if factor is None else int(factor * width)
    if not 0 < width <= MAX_COUNT:
        config.fail("block_ffn_dim_multiplier", f"makes an MLP of {width} columns")
    return step * math.ceil(width / step)


def _lfm_experts(config: Config, layer: int) -> tuple[FFN, ...]:
    """Return dense MLPs first, then experts."""
    return (mlp() if layer < config.integer("num_dense_layers", minimum=0) else experts())(config, layer)


def _sandwich(config: Config, layer: int) -> int:
    return 4 if config.boolean("use_sandwich_norm", True) else 2


FAMILIES = {
    "qwen3_next": Family(mixers=_qwen_mixers(_QWEN3_NEXT), ffns=_qwen3_next_ffns),
    "qwen3_5": _QWEN3_5_DENSE,
    "qwen3_5_text": _QWEN3_5_DENSE,
    "qwen3_5_moe": _QWEN3_5_MOE,
    "qwen3_5_moe_text": _QWEN3_5_MOE,
    "olmo_hybrid": Family(mixers=_olmo_mixers),
    "minimax": _MINIMAX,
    "minimax_text_01": _MINIMAX,
    "minimax_m1": _MINIMAX,
    "recurrent_gemma": Family(
        mixers=_griffin_mixers,
        ffns=mlp(bias=("mlp_bias", True), width=_half),
        tied=True,
        meaningless=frozenset({"_block_types"}),
        parts={"attention": ("temporal_block",)},
    ),
    "lfm2": Family(
        mixers=_lfm_mixers(),
        ffns=mlp(width=_lfm_width),
        tied=True,
        meaningless=frozenset({"conv_L_cache", "full_attn_idxs"}),
    ),
    "lfm2_moe": Family(
        mixers=_lfm_mixers(), ffns=_lfm_experts, tied=True, meaningless=frozenset({"use_expert_bias"})
    ),
    "lfm3": Family(mixers=_lfm_mixers(gate=True), norms=_sandwich, tied=True),
}
