"""The parts that families are declared from: heads, reaches, latents, MLPs and experts.

Each function here takes what a family fixes and returns a reader `(config, layer) -> part`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

from kvroof.catalog.config import MAX_COUNT, Config
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


BLOCK_SPARSE = {
    "ffn": ("mlp",),
    "expert": ("block_sparse_moe.experts",),
    "shared_expert": ("block_sparse_moe.shared_experts",),
}
"""What checkpoints call the MLPs whose experts are no `mlp`, as those of the dense layers are."""

GRANITE_PARTS = {
    "ffn": ("shared_mlp",),
    "expert": ("block_sparse_moe.experts", "block_sparse_moe"),
    "shared_expert": ("shared_mlp",),
}


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


class Shape(NamedTuple):
    """The heads of one layer: queries, keys and values, and their widths."""

    heads: int
    kv_heads: int
    k_width: int
    v_width: int


def head_shape(config: Config, head_dim: int | None = None) -> Shape:
    """Return the heads in Llama's spelling; `head_dim` is the class's where it is not hidden/heads."""
    hidden, n = config.integer("hidden_size"), config.integer("num_attention_heads")
    width = config.optional_integer("head_dim") or head_dim or _even(config, hidden, n)
    return Shape(n, config.integer("num_key_value_heads", n), width, width)


def heads(
    *,
    head_dim: int | None = None,
    qkv_bias: Flag = False,
    o_bias: Flag = False,
    qk_norm: Literal["head", "full"] | None = None,
    qk_norm_if: Flag = True,
    sinks: bool = False,
    query_gate: bool = False,
    reach: ReachOf = full,
    shape: Callable[[Config, int], Shape] | None = None,
    extras: Callable[[Config, int], tuple[Weight, ...]] | None = None,
) -> Callable[[Config, int], tuple[GroupedAttention, ...]]:
    """Return a reader of MHA, GQA or MQA heads.

    `head_dim` is the class's default where it is not hidden/heads; `shape` reads heads that differ by
    layer or have another spelling. `qk_norm` is one vector per head width, or over all heads. `sinks` is
    one learned logit per head. `query_gate` gates the output by a query twice as wide. `extras` are
    further parameters of the layer's attention (gates).
    """

    def read(config: Config, layer: int) -> tuple[GroupedAttention, ...]:
        hidden = config.integer("hidden_size")
        n, m, k_width, v_width = shape(config, layer) if shape else head_shape(config, head_dim)
        if n % m:
            config.fail("num_key_value_heads", f"{m} does not divide {n} attention heads")
        own: list[Weight] = []
        if flag(config, qkv_bias):
            own += [
                vector("q_proj.bias", n * k_width * (2 if query_gate else 1), split=n),
                vector("k_proj.bias", m * k_width, split=m),
                vector("v_proj.bias", m * v_width, split=m),
            ]
        if flag(config, o_bias):
            own.append(vector("o_proj.bias", hidden))
        if qk_norm and flag(config, qk_norm_if):
            over = (n, m) if qk_norm == "full" else (1, 1)
            own += [
                vector(f"{name}_norm", count * k_width, split=count)
                for name, count in zip("qk", over, strict=True)
            ]
        if sinks:
            own.append(vector("sinks", n, split=n))
        return (
            GroupedAttention(
                hidden_size=hidden,
                num_heads=n,
                num_kv_heads=m,
                head_dim=k_width,
                v_head_dim=v_width,
                query_gate=query_gate,
                reach=reach(config, layer),
                extras=(*own, *(extras(config, layer) if extras else ())),
            ),
        )

    return read


def _even(config: Config, hidden: int, num_heads: int) -> int:
    if hidden % num_heads:
        config.fail("hidden_size", f"{hidden} is not a multiple of {num_heads} heads", "add head_dim")
    return hidden // num_heads


def latent(config: Config, layer: int, v_head_dim: int | None = None) -> tuple[LatentAttention, ...]:
    """Return multi-head latent attention in DeepSeek's spelling.

    `v_head_dim` is the family's where its files leave that out.
    """
    hidden, q_rank = config.integer("hidden_size"), config.optional_integer("q_lora_rank")
    rank, rope = config.integer("kv_lora_rank"), config.integer("qk_rope_head_dim")
    biases: tuple[Weight, ...] = ()
    if config.boolean("attention_bias", False):
        biases = (vector("kv_a_proj.bias", rank + rope), vector("o_proj.bias", hidden))
        biases += (vector("q_a_proj.bias", q_rank),) if q_rank is not None else ()
    return (
        LatentAttention(
            hidden_size=hidden,
            num_heads=config.integer("num_attention_heads"),
            q_lora_rank=q_rank,
            kv_lora_rank=rank,
            qk_nope_head_dim=config.integer("qk_nope_head_dim"),
            qk_rope_head_dim=rope,
            v_head_dim=config.integer("v_head_dim", v_head_dim)
            if v_head_dim
            else config.integer("v_head_dim"),
            reach=Full(),
            extras=biases,
        ),
    )


def one_of(config: Config, keys: str | tuple[str, ...], maximum: int = MAX_COUNT) -> int:
    """Return the whole number that a family's files spell under one of `keys`.

    Raises:
        BadInput: None is there, or two disagree.
    """
    names = (keys,) if isinstance(keys, str) else keys
    found = {name: config.integer(name, maximum=maximum) for name in names if config.has(name)}
    if len(set(found.values())) > 1:
        config.fail(" and ".join(found), "say different numbers of the same thing")
    return next(iter(found.values())) if found else config.integer(names[0])


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
    number: str | tuple[str, ...] = "num_experts",
    width: str = "moe_intermediate_size",
    active: str | tuple[str, ...] = "num_experts_per_tok",
    shared: Callable[[Config], int | None] | None = None,
    shared_bias: Flag = False,
    biases: bool = False,
    extras: Callable[[Config], tuple[Weight, ...]] | None = None,
) -> Callable[[Config, int], tuple[FFN, ...]]:
    """Return a reader of a mixture of experts; `biases` gives the router and every expert theirs.

    A key may have several spellings. `shared` is the width of the experts that every token runs.
    """

    def read(config: Config, layer: int) -> tuple[FFN, ...]:
        hidden, count, inner = config.integer("hidden_size"), one_of(config, number), config.integer(width)
        common = shared(config) if shared else None
        own: tuple[Weight, ...] = ()
        theirs: tuple[Weight, ...] = ()
        if biases:
            own = (vector("router.bias", count),)
            theirs = (
                vector("experts.gate_up_proj.bias", 2 * inner, count=count, split=inner),
                vector("experts.down_proj.bias", hidden, count=count),
            )
        if common and flag(config, shared_bias):
            own += (
                vector("shared_expert.gate_up_proj.bias", 2 * common, split=common),
                vector("shared_expert.down_proj.bias", hidden),
            )
        return (
            MoE(
                hidden_size=hidden,
                num_experts=count,
                num_experts_per_tok=one_of(config, active, maximum=count),
                moe_intermediate_size=inner,
                shared_intermediate_size=common,
                extras=own + (extras(config) if extras else ()),
                expert_extras=theirs,
            ),
        )

    return read
