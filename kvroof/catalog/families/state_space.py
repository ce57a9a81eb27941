"""Families built on Mamba: alone, beside attention, or with one transformer block shared by many layers."""

from __future__ import annotations

import math

from kvroof.catalog.config import Config
from kvroof.catalog.families.blocks import GRANITE_PARTS, experts, heads, mlp
from kvroof.catalog.families.family import MAX_LAYERS, Family, layer_count
from kvroof.catalog.families.recurrences import auto_integer, mamba1, mamba2
from kvroof.spec.architecture import Mixer
from kvroof.spec.ffn import FFN, DenseFFN, MoE
from kvroof.spec.recurrent import Recurrent
from kvroof.spec.weights import Weight, vector

BLOCKS = {
    "mamba": "mamba",
    "linear_attention": "mamba",
    "attention": "attention",
    "full_attention": "attention",
    "hybrid": "hybrid",
    "mlp": "mlp",
    "moe": "moe",
    "M": "mamba",
    "*": "attention",
    "-": "mlp",
    "E": "moe",
}
"""What a layer is, in the spellings of older and newer files and of Nemotron's pattern."""


def block(config: Config, key: str, name: str, known: tuple[str, ...]) -> str:
    """Return the kind of block that `name` stands for.

    Raises:
        BadInput: A kind that this family does not have.
    """
    kind = BLOCKS.get(name)
    if kind not in known:
        config.fail(key, f"{name[:40]!r} is not a block this family has")
    return kind


def no_ffn(config: Config, layer: int) -> tuple[FFN, ...]:
    """Return nothing: the mixer is the whole layer."""
    return ()


def inner_channels(config: Config, key: str = "mamba_expand") -> int:
    """Return the channels of a Mamba mixer, `expand` times the residual's."""
    return config.integer(key, 2) * config.integer("hidden_size")


def check_heads(config: Config, key: str, heads: int, head_dim: int, inner: int) -> None:
    """Refuse heads that do not make up the mixer's channels, as the classes do."""
    if heads * head_dim != inner:
        config.fail(key, f"{heads} heads of {head_dim} do not make the mixer's {inner} channels")


def _mamba(config: Config, layer: int) -> tuple[Recurrent, ...]:
    """Return Mamba-1; a stated `intermediate_size` beats `expand` (Falcon-Mamba's is a decoy)."""
    hidden = config.integer("hidden_size")
    inner = config.optional_integer("intermediate_size") or inner_channels(config, "expand")
    config.read_nothing(("expand",))
    return (
        mamba1(
            hidden=hidden,
            inner=inner,
            state_size=config.integer("state_size"),
            kernel=config.integer("conv_kernel", 4),
            rank=auto_integer(config, "time_step_rank", math.ceil(hidden / 16)),
            conv_bias=config.boolean("use_conv_bias", True),
            bias=config.boolean("use_bias", False),
        ),
    )


def _mamba2(config: Config, layer: int) -> tuple[Recurrent, ...]:
    """Return Mamba-2 in the spelling of its own class."""
    n, width = config.integer("num_heads"), config.integer("head_dim")
    check_heads(config, "num_heads", n, width, inner_channels(config, "expand"))
    bias = config.boolean("use_bias", False)
    return (
        mamba2(
            hidden=config.integer("hidden_size"),
            heads=n,
            head_dim=width,
            groups=config.integer("n_groups", 8),
            state_size=config.integer("state_size"),
            kernel=config.integer("conv_kernel", 4),
            conv_bias=config.boolean("use_conv_bias", True),
            in_bias=bias,
            out_bias=bias,
        ),
    )


def jamba_mamba(config: Config, *, norms: bool) -> Recurrent:
    """Return Mamba-1 as Jamba and Zamba spell it; Jamba norms the time step, B and C."""
    hidden = config.integer("hidden_size")
    return mamba1(
        hidden=hidden,
        inner=inner_channels(config),
        state_size=config.integer("mamba_d_state"),
        kernel=config.integer("mamba_d_conv", 4),
        rank=auto_integer(config, "mamba_dt_rank", math.ceil(hidden / 16)),
        conv_bias=config.boolean("mamba_conv_bias", True),
        bias=config.boolean("mamba_proj_bias", False),
        norms=norms,
    )


def _every(config: Config, what: str, layer: int, period: int | None = None) -> bool:
    """Return whether `layer` is at the offset within the period that the config gives for `what`."""
    each = config.integer(f"{what}_layer_period") if period is None else period
    offset = config.integer(f"{what}_layer_offset", minimum=0)
    if offset >= each:
        config.fail(f"{what}_layer_offset", f"{offset} is not within the period of {each}")
    return layer % each == offset


def _jamba_mixers(config: Config, layer: int) -> tuple[Mixer, ...]:
    if _every(config, "attn", layer):
        return heads()(config, layer)
    return (jamba_mamba(config, norms=True),)


def _jamba_ffns(config: Config, layer: int) -> tuple[FFN, ...]:
    """Return experts on the layers at their offset, unless there is only one."""
    if config.integer("num_experts") > 1 and _every(config, "expert", layer):
        return experts(width="intermediate_size")(config, layer)
    config.read_nothing(("num_experts_per_tok",))
    return mlp()(config, layer)


def bamba_mixer(
    config: Config,
    *,
    inner: int | None = None,
    norm: bool = True,
    out_bias: str = "mamba_proj_bias",
) -> Recurrent:
    """Return Mamba-2 in Bamba's spelling; `inner` is given where `mamba_expand` does not decide it."""
    channels = inner_channels(config) if inner is None else inner
    n = config.integer("mamba_n_heads")
    width = auto_integer(config, "mamba_d_head", channels // n)
    check_heads(config, "mamba_n_heads", n, width, channels)
    return mamba2(
        hidden=config.integer("hidden_size"),
        heads=n,
        head_dim=width,
        groups=config.integer("mamba_n_groups", 1),
        state_size=config.integer("mamba_d_state"),
        kernel=config.integer("mamba_d_conv", 4),
        conv_bias=config.boolean("mamba_conv_bias", True),
        in_bias=config.boolean("mamba_proj_bias", False),
        out_bias=config.boolean(out_bias, False),
        norm=norm,
    )


_BIASED = heads(qkv_bias="attention_bias", o_bias="attention_bias")


def _bamba_mixers(config: Config, layer: int) -> tuple[Mixer, ...]:
    if layer in (config.array("attn_layer_indices", int) or []):
        return _BIASED(config, layer)
    return (bamba_mixer(config),)


def _granite_mixers(config: Config, layer: int) -> tuple[Mixer, ...]:
    types = config.array("layer_types", str, layer_count(config))
    if types is None:
        config.fail("layer_types", "missing, and it decides the size", "list the kind of each layer")
    if block(config, "layer_types", types[layer], ("mamba", "attention")) == "attention":
        return _BIASED(config, layer)
    return (bamba_mixer(config),)


def _granite_ffns(config: Config, layer: int) -> tuple[FFN, ...]:
    """Return experts beside a shared MLP, or that MLP alone where there are no experts."""
    hidden, shared = config.integer("hidden_size"), config.integer("shared_intermediate_size")
    if config.integer("num_local_experts", minimum=0):
        return experts(number="num_local_experts", width="intermediate_size", shared=lambda _: shared)(
            config, layer
        )
    config.read_nothing(("num_experts_per_tok",))
    return (DenseFFN(hidden_size=hidden, intermediate_size=shared),)


def _falcon_h1_mixers(config: Config, layer: int) -> tuple[Mixer, ...]:
    """Return attention and Mamba-2 side by side; `mamba_d_ssm` beats `mamba_expand`, which null restores."""
    default = inner_channels(config) if config.says_null("mamba_d_ssm") else 1024
    mamba = bamba_mixer(
        config,
        inner=config.integer("mamba_d_ssm", default),
        norm=config.boolean("mamba_rms_norm", False),
        out_bias="projectors_bias",
    )
    return (*_BIASED(config, layer), mamba)


NEMOTRON_BLOCKS = ("mamba", "attention", "mlp", "moe")


def _nemotron_blocks(config: Config) -> tuple[str, str | list[str]]:
    """Return the key of the layers' kinds and the kinds: a list, else one letter each."""
    for key in ("layers_block_type", "layer_types"):
        listed = config.array(key, str)
        if listed:
            return key, listed
    return "hybrid_override_pattern", config.text("hybrid_override_pattern")


def _nemotron_layers(config: Config) -> int:
    """Return the length of the pattern, which a layer count may not contradict."""
    key, kinds = _nemotron_blocks(config)
    if len(kinds) > MAX_LAYERS:
        config.fail(key, f"{len(kinds)} layers are more than {MAX_LAYERS}")
    if config.integer("num_hidden_layers", len(kinds), maximum=MAX_LAYERS) != len(kinds):
        config.fail("num_hidden_layers", f"is not the {len(kinds)} layers of {key}")
    return len(kinds)


def _nemotron_block(config: Config, layer: int) -> str:
    key, kinds = _nemotron_blocks(config)
    return block(config, key, kinds[layer], NEMOTRON_BLOCKS)


def _nemotron_mixers(config: Config, layer: int) -> tuple[Mixer, ...]:
    """Return Mamba-2, attention without biases, or nothing on an MLP's layer."""
    kind = _nemotron_block(config, layer)
    if kind == "attention":
        return heads(head_dim=config.integer("attention_head_dim", 128))(config, layer)
    if kind != "mamba":
        return ()
    bias = config.boolean("use_bias", False)
    return (
        mamba2(
            hidden=config.integer("hidden_size"),
            heads=config.integer("mamba_num_heads"),
            head_dim=config.integer("mamba_head_dim"),
            groups=config.integer("n_groups", 8),
            state_size=config.integer("ssm_state_size"),
            kernel=config.integer("conv_kernel", 4),
            conv_bias=config.boolean("use_conv_bias", True),
            in_bias=bias,
            out_bias=bias,
        ),
    )


def _nemotron_ffns(config: Config, layer: int) -> tuple[FFN, ...]:
    kind = _nemotron_block(config, layer)
    if kind == "mlp":
        return mlp(gated=False, bias="mlp_bias")(config, layer)
    return (_nemotron_experts(config),) if kind == "moe" else ()


def _nemotron_experts(config: Config) -> MoE:
    """Return plain experts beside a shared one; with `moe_latent_size` the routed ones read a latent."""
    if config.integer("n_shared_experts", 1, minimum=0) != 1:
        config.fail("n_shared_experts", "one shared expert is known, and no other number")
    hidden, number = config.integer("hidden_size"), config.integer("n_routed_experts")
    shared, size = (
        config.integer("moe_shared_expert_intermediate_size"),
        config.optional_integer("moe_latent_size"),
    )
    extras: tuple[Weight, ...] = ()
    widths: dict[str, int] = {"shared_experts.up_proj": shared, "shared_experts.down_proj": hidden}
    if size is not None:
        extras = (
            Weight(name="fc1_latent_proj", shape=(hidden, size), role="ffn"),
            Weight(name="fc2_latent_proj", shape=(size, hidden), role="ffn"),
        )
        widths |= {"fc1_latent_proj": size, "fc2_latent_proj": hidden}
    if config.boolean("mlp_bias", False):
        extras += tuple(vector(f"{name}.bias", width) for name, width in widths.items())
    return MoE(
        hidden_size=hidden,
        num_experts=number,
        num_experts_per_tok=config.integer("num_experts_per_tok", maximum=number),
        moe_intermediate_size=config.integer("moe_intermediate_size"),
        shared_intermediate_size=shared,
        expert_input_size=size,
        gated=False,
        shared_gated=False,
        extras=extras,
    )


FALCON_H1 = Family(
    mixers=_falcon_h1_mixers,
    ffns=mlp(bias="mlp_bias"),
    meaningless=frozenset(
        {
            "mamba_expand",
            "attention_in_multiplier",
            "attention_out_multiplier",
            "lm_head_multiplier",
            "ssm_in_multiplier",
            "ssm_multipliers",
            "ssm_out_multiplier",
        }
    ),
)

NEMOTRON_H = Family(
    mixers=_nemotron_mixers,
    ffns=_nemotron_ffns,
    norms=1,
    tied=None,
    layers=_nemotron_layers,
    # Its attention has no biases and no window whatever these say; MTP blocks run only when speculating.
    meaningless=frozenset(
        {
            "attention_bias",
            "sliding_window",
            "time_step_rank",
            "attention_head_dim",
            "hybrid_override_pattern",
            "num_hidden_layers",
            "num_nextn_predict_layers",
            "mtp_layers_block_type",
            "mtp_hybrid_override_pattern",
            "mamba_ssm_cache_dtype",
            "moe_shared_expert_overlap",
            "n_shared_experts",
            "n_routed_experts",
            "num_experts_per_tok",
            "moe_intermediate_size",
            "moe_shared_expert_intermediate_size",
            "moe_latent_size",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "mamba_num_heads",
            "mamba_head_dim",
            "ssm_state_size",
        }
    ),
    parts={"expert": ("mixer.experts",), "shared_expert": ("mixer.shared_experts",), "mamba2": ("mixer",)},
)
_ONLY_MAMBA = Family(mixers=_mamba, ffns=no_ffn, norms=1, tied=True)

FAMILIES = {
    "mamba": _ONLY_MAMBA,
    "falcon_mamba": _ONLY_MAMBA,
    "mamba2": Family(mixers=_mamba2, ffns=no_ffn, norms=1, meaningless=frozenset({"time_step_rank"})),
    "jamba": Family(
        mixers=_jamba_mixers,
        ffns=_jamba_ffns,
        meaningless=frozenset({"expert_layer_period", "expert_layer_offset"}),
    ),
    "bamba": Family(
        mixers=_bamba_mixers,
        ffns=mlp(bias="mlp_bias"),
        meaningless=frozenset({"attn_rotary_emb", "mamba_d_state", "mamba_n_heads", "mamba_d_head"}),
    ),
    "granitemoehybrid": Family(
        mixers=_granite_mixers,
        ffns=_granite_ffns,
        # A file without Mamba layers, or without experts, carries their sizes all the same.
        meaningless=frozenset(
            {"mamba_d_state", "mamba_n_heads", "mamba_d_head", "num_experts_per_tok", "intermediate_size"}
        ),
        parts=GRANITE_PARTS,
    ),
    "falcon_h1": FALCON_H1,
    "nemotron_h": NEMOTRON_H,
}
