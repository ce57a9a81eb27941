"""The parts that families are declared from: heads, reaches, latents, MLPs and experts.

Each function here takes what a family fixes and returns a reader `(config, layer) -> part`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from kvroof.catalog.config import Config
from kvroof.spec.attention import GroupedAttention, LatentAttention
from kvroof.spec.ffn import FFN, DenseFFN, MoE
from kvroof.spec.reach import Chunked, Full, Sliding
from kvroof.spec.weights import Weight, vector

Reach: TypeAlias = Full | Sliding | Chunked
ReachOf: TypeAlias = Callable[[Config, int], Reach]
Flag: TypeAlias = bool | str | tuple[str, bool]
"""A fact of the family, or the config key that decides it, with what its absence means (else false)."""


WINDOW_KEYS = frozenset(
    {
        "attention_chunk_size",
        "max_window_layers",
        "sliding_window",
        "sliding_window_pattern",
        "use_sliding_window",
    }
)
"""What a list of layer types overrules, unless it names a layer that reads one of them."""


def flag(config: Config, value: Flag) -> bool:
    """Return a family's fact, or what the config's key says."""
    if isinstance(value, bool):
        return value
    key, default = (value, False) if isinstance(value, str) else value
    return config.boolean(key, default)


def full(config: Config, layer: int) -> Reach:
    """Return full attention on every layer."""
    return Full()


def window(config: Config, layer: int) -> Reach:
    """Return a sliding window on every layer where the config has one, else full attention."""
    size = config.optional_integer("sliding_window")
    return Full() if size is None else Sliding(size=size)


def late_window(config: Config, layer: int) -> Reach:
    """Return a window from `max_window_layers` on, and only with `use_sliding_window` (Qwen2)."""
    first = config.integer("max_window_layers", 28, minimum=0)
    size = config.optional_integer("sliding_window")
    if config.boolean("use_sliding_window", False) and size is not None and layer >= first:
        return Sliding(size=size)
    return Full()


def listed(default: ReachOf, window_size: int | None = None) -> ReachOf:
    """Return the reach `layer_types` lists, or `default` where the file leaves the list out."""

    def reach(config: Config, layer: int) -> Reach:
        types = config.array("layer_types", str, config.integer("num_hidden_layers"))
        if types is None:
            return default(config, layer)
        config.read_nothing(WINDOW_KEYS)
        kind = types[layer]
        if kind == "full_attention":
            return Full()
        if kind == "sliding_attention":
            size = (
                config.integer("sliding_window", window_size)
                if window_size
                else config.integer("sliding_window")
            )
            return Sliding(size=size)
        if kind == "chunked_attention":
            return Chunked(size=config.integer("attention_chunk_size"))
        config.fail("layer_types", f"{kind!r} is not an attention this family has")

    return reach


def every_nth_full(period: int, window_size: int, key: str | None = None) -> ReachOf:
    """Return windows with every `period`-th layer full; `key` lets the config say another period."""

    def reach(config: Config, layer: int) -> Reach:
        size = config.integer("sliding_window", window_size)
        each = config.integer(key, period) if key else period
        return Full() if (layer + 1) % each == 0 else Sliding(size=size)

    return reach


def heads(
    *,
    head_dim: int | None = None,
    qkv_bias: Flag = False,
    o_bias: Flag = False,
    qk_norm: Literal["head", "full"] | None = None,
    sinks: bool = False,
    reach: ReachOf = full,
) -> Callable[[Config, int], tuple[GroupedAttention, ...]]:
    """Return a reader of MHA, GQA or MQA heads.

    `head_dim` is the class's default where it is not hidden/heads. `qk_norm` is one vector per head
    width, or over all heads. `sinks` is one learned logit per head.
    """

    def read(config: Config, layer: int) -> tuple[GroupedAttention, ...]:
        hidden, n = config.integer("hidden_size"), config.integer("num_attention_heads")
        m = config.integer("num_key_value_heads", n)
        if n % m:
            config.fail("num_key_value_heads", f"{m} does not divide {n} attention heads")
        width = config.optional_integer("head_dim") or head_dim or _even(config, hidden, n)
        extras: list[Weight] = []
        if flag(config, qkv_bias):
            extras += [
                vector("q_proj.bias", n * width, split=n),
                vector("k_proj.bias", m * width, split=m),
                vector("v_proj.bias", m * width, split=m),
            ]
        if flag(config, o_bias):
            extras.append(vector("o_proj.bias", hidden))
        if qk_norm == "head":
            extras += [vector("q_norm", width), vector("k_norm", width)]
        elif qk_norm == "full":
            extras += [vector("q_norm", n * width, split=n), vector("k_norm", m * width, split=m)]
        if sinks:
            extras.append(vector("sinks", n, split=n))
        return (
            GroupedAttention(
                hidden_size=hidden,
                num_heads=n,
                num_kv_heads=m,
                head_dim=width,
                v_head_dim=width,
                reach=reach(config, layer),
                extras=tuple(extras),
            ),
        )

    return read


def _even(config: Config, hidden: int, num_heads: int) -> int:
    if hidden % num_heads:
        config.fail("hidden_size", f"{hidden} is not a multiple of {num_heads} heads", "add head_dim")
    return hidden // num_heads


def latent(config: Config, layer: int) -> tuple[LatentAttention, ...]:
    """Return multi-head latent attention in DeepSeek's spelling."""
    if config.boolean("attention_bias", False):
        config.fail("attention_bias", "biases are not known for latent attention")
    return (
        LatentAttention(
            hidden_size=config.integer("hidden_size"),
            num_heads=config.integer("num_attention_heads"),
            q_lora_rank=config.optional_integer("q_lora_rank"),
            kv_lora_rank=config.integer("kv_lora_rank"),
            qk_nope_head_dim=config.integer("qk_nope_head_dim"),
            qk_rope_head_dim=config.integer("qk_rope_head_dim"),
            v_head_dim=config.integer("v_head_dim"),
            reach=Full(),
        ),
    )


def mlp(
    *, gated: bool = True, bias: Flag = False, width: Callable[[Config], int] | None = None
) -> Callable[[Config, int], tuple[FFN, ...]]:
    """Return a reader of a dense MLP, of `intermediate_size` unless `width` says otherwise."""

    def read(config: Config, layer: int) -> tuple[FFN, ...]:
        inner = width(config) if width else config.integer("intermediate_size")
        hidden = config.integer("hidden_size")
        return (DenseFFN(hidden_size=hidden, intermediate_size=inner, gated=gated, bias=flag(config, bias)),)

    return read


def four_times_hidden(config: Config) -> int:
    """Return the MLP width of the families that do not state one."""
    return config.integer("intermediate_size", 4 * config.integer("hidden_size"))


def experts(
    *,
    number: str = "num_experts",
    width: str = "moe_intermediate_size",
    shared: Callable[[Config], int | None] | None = None,
    biases: bool = False,
    extras: Callable[[Config], tuple[Weight, ...]] | None = None,
) -> Callable[[Config, int], tuple[FFN, ...]]:
    """Return a reader of a mixture of experts; `biases` gives the router and every expert theirs."""

    def read(config: Config, layer: int) -> tuple[FFN, ...]:
        hidden, count, inner = config.integer("hidden_size"), config.integer(number), config.integer(width)
        active = config.integer("num_experts_per_tok", maximum=count)
        own: tuple[Weight, ...] = ()
        if biases:
            own = (
                vector("router.bias", count),
                vector("experts.gate_up_proj.bias", 2 * inner, count=count, split=inner),
                vector("experts.down_proj.bias", hidden, count=count),
            )
        return (
            MoE(
                hidden_size=hidden,
                num_experts=count,
                num_experts_per_tok=active,
                moe_intermediate_size=inner,
                shared_intermediate_size=shared(config) if shared else None,
                extras=own + (extras(config) if extras else ()),
            ),
        )

    return read
