"""Gemma 1 to 4: tied embeddings, sandwich norms, windows, shared caches and per-layer embeddings."""

from __future__ import annotations

from collections.abc import Callable

from kvroof.catalog.config import MAX_COUNT, Config
from kvroof.catalog.families.blocks import Shape, every_nth_full, experts, head_shape, heads, listed, mlp
from kvroof.catalog.families.family import Family
from kvroof.spec.attention import GroupedAttention
from kvroof.spec.ffn import FFN, DenseFFN
from kvroof.spec.reach import Full, Sliding
from kvroof.spec.weights import Weight, vector

BIAS = "attention_bias"


def _both_ways(config: Config) -> None:
    """Refuse encoders: a layer that looks both ways halves its window and keeps no cache."""
    if config.has("use_bidirectional_attention") and config.data["use_bidirectional_attention"] not in (
        False,
        "vision",
    ):
        config.fail("use_bidirectional_attention", "kvroof counts decoders, which look back only")


def _stated(config: Config, layer: int) -> Shape:
    """Return the heads; the class would guess the KV heads, so the file must say them."""
    _both_ways(config)
    config.integer("num_key_value_heads")
    return head_shape(config, 256)


def _gemma3_shape(config: Config, layer: int) -> Shape:
    """Return the heads; Gemma 3's multimodal files leave out what the 4B shares with its class."""
    _both_ways(config)
    if not config.path:
        return _stated(config, layer)
    n, m = config.integer("num_attention_heads", 8), config.integer("num_key_value_heads", 4)
    width = config.integer("head_dim", 256)
    return Shape(n, m, width, width)


def _gemma_shape(config: Config, layer: int) -> Shape:
    """Return the heads; a tower's tokens may look both ways (PaliGemma), which changes no shape."""
    config.read_nothing({"use_bidirectional_attention"})
    config.integer("num_key_value_heads")
    return head_shape(config, 256)


GEMMA = Family(mixers=heads(shape=_gemma_shape, qkv_bias=BIAS, o_bias=BIAS), tied=True)
GEMMA2_MIXERS = heads(shape=_stated, qkv_bias=BIAS, o_bias=BIAS, reach=listed(every_nth_full(2, 4096), 4096))
GEMMA2 = Family(mixers=GEMMA2_MIXERS, norms=4, tied=True, meaningless=frozenset({"sliding_window_size"}))
VAULT = Family(mixers=GEMMA2_MIXERS, norms=2, tied=True)
GEMMA3 = Family(
    mixers=heads(
        shape=_gemma3_shape,
        qk_norm="head",
        qkv_bias=BIAS,
        o_bias=BIAS,
        reach=listed(every_nth_full(6, 4096, "sliding_window_pattern"), 4096),
    ),
    norms=4,
    tied=True,
    vocab_size=262_208,
    meaningless=frozenset({"_sliding_window_pattern"}),
)


def _reuses(config: Config, layer: int) -> bool:
    """Return whether the layer reads an earlier layer's cache and has no keys of its own."""
    count = config.integer("num_hidden_layers")
    shared = config.integer("num_kv_shared_layers", 0, minimum=0, maximum=count)
    if shared == count:
        config.fail("num_kv_shared_layers", "leaves no layer that makes keys and values")
    return layer >= count - shared


def _attention(
    config: Config, layer: int, shape: Shape, reach: Full | Sliding, keys_only: bool = False
) -> tuple[GroupedAttention, ...]:
    """Return heads with query and key norms, or with queries alone where the cache is another's."""
    hidden, reuses = config.integer("hidden_size"), _reuses(config, layer)
    n, m, width, _ = shape
    if n % m:
        config.fail("num_key_value_heads", f"{m} does not divide {n} attention heads")
    extras = [vector("q_norm", width)] if reuses else [vector("q_norm", width), vector("k_norm", width)]
    if config.boolean(BIAS, False):
        extras += [vector("q_proj.bias", n * width, split=n), vector("o_proj.bias", hidden)]
        made = 0 if reuses else 1 if keys_only else 2
        extras += [vector("kv_proj.bias", m * width, split=m, count=made)] if made else []
    return (
        GroupedAttention(
            hidden_size=hidden,
            num_heads=n,
            num_kv_heads=m,
            head_dim=width,
            v_head_dim=width,
            reach=reach,
            stores_kv=not reuses,
            values_are_keys=keys_only,
            extras=tuple(extras),
        ),
    )


def _sliding_or_full(config: Config, layer: int, period: int, size: int) -> Full | Sliding:
    reach = listed(every_nth_full(period, size), size)(config, layer)
    if not isinstance(reach, (Full, Sliding)):
        config.fail("layer_types", "names an attention that Gemma does not have")
    return reach


def _gemma3n_mixers(config: Config, layer: int) -> tuple[GroupedAttention, ...]:
    """Return Gemma 3n's heads: every fifth layer full, the last ones on caches of earlier layers."""
    return _attention(config, layer, _stated(config, layer), _sliding_or_full(config, layer, 5, 512))


def _gemma3n_ffns(config: Config, layer: int) -> tuple[FFN, ...]:
    """Return the MLP, whose width may be listed by layer; sparse activations store every weight."""
    if not isinstance(config.data.get("intermediate_size"), list):
        return mlp()(config, layer)
    widths = config.array("intermediate_size", int, config.integer("num_hidden_layers")) or []
    if not 1 <= widths[layer] <= MAX_COUNT:
        config.fail("intermediate_size", f"layer {layer} is not between 1 and {MAX_COUNT}")
    return (DenseFFN(hidden_size=config.integer("hidden_size"), intermediate_size=widths[layer]),)


def _per_layer(config: Config) -> int:
    """Return the width of a layer's own token embedding, 0 where there is none."""
    return config.integer("hidden_size_per_layer_input", 256, minimum=0)


def _per_layer_weights(config: Config) -> tuple[Weight, ...]:
    """Return the matrices and the norm with which a layer mixes in its own token embedding."""
    hidden, width = config.integer("hidden_size"), _per_layer(config)
    if not width:
        return ()
    return (
        Weight(name="per_layer_input_gate", shape=(hidden, width), role="ffn"),
        Weight(name="per_layer_projection", shape=(width, hidden), role="ffn"),
        vector("post_per_layer_input_norm", hidden),
    )


def _per_layer_tables(config: Config) -> tuple[Weight, ...]:
    """Return the packed table of all layers' token embeddings, and its projection and norm."""
    hidden, width = config.integer("hidden_size"), _per_layer(config)
    if not width:
        return ()
    packed = config.integer("num_hidden_layers") * width
    rows = config.integer("vocab_size_per_layer_input", 262_144)
    return (
        Weight(name="embed_tokens_per_layer", shape=(rows, packed), split=rows, role="embedding"),
        Weight(name="per_layer_model_projection", shape=(hidden, packed), split=packed, role="ffn"),
        vector("per_layer_projection_norm", width),
    )


def _altup(config: Config, layer: int) -> tuple[Weight, ...]:
    """Return Gemma 3n's layer parameters beside its blocks: AltUp, Laurel and the layer's embedding."""
    hidden, streams = config.integer("hidden_size"), config.integer("altup_num_inputs", 4, maximum=1024)
    rank = config.integer("laurel_rank", 64)
    return (
        vector("altup.correct_output_scale", hidden),
        vector("altup.router_norm", hidden),
        vector("laurel.post_laurel_norm", hidden),
        Weight(name="altup.modality_router", shape=(hidden, streams), role="router"),
        Weight(name="altup.correction_coefs", shape=(streams, streams), role="router"),
        Weight(name="altup.prediction_coefs", shape=(streams, streams**2), role="router"),
        Weight(name="laurel.linear_left", shape=(hidden, rank), role="ffn"),
        Weight(name="laurel.linear_right", shape=(rank, hidden), role="ffn"),
        *_per_layer_weights(config),
    )


def _streams(config: Config) -> tuple[Weight, ...]:
    """Return the matrices that split the residual into AltUp's streams and join them again."""
    hidden, others = config.integer("hidden_size"), config.integer("altup_num_inputs", 4) - 1
    if not others:
        return ()
    name = ("altup_projections", "altup_unembed_projections")
    return tuple(Weight(name=n, shape=(hidden, hidden), count=others, role="ffn") for n in name)


GEMMA3N = Family(
    mixers=_gemma3n_mixers,
    ffns=_gemma3n_ffns,
    norms=4,
    tied=True,
    vocab_size=262_400,
    layer_extras=_altup,
    embedding_extras=_per_layer_tables,
    final_extras=_streams,
)


def _gemma4_shape(config: Config, layer: int, full: bool) -> Shape:
    """Return the heads: full layers have wider ones, and fewer KV heads where keys serve as values."""
    _both_ways(config)
    n, m = config.integer("num_attention_heads"), config.integer("num_key_value_heads")
    width = config.integer("head_dim", 256)
    overrides = config.child("per_layer_config")
    keys_only = config.boolean("attention_k_eq_v", False)
    if overrides is not None:
        own = overrides.child(str(layer)) or overrides.child(f"{layer:02d}")
        if own is not None:
            n = own.integer("num_attention_heads", n)
            m, width = own.integer("num_key_value_heads", m), own.integer("head_dim", width)
            unknown = set(own.data) - own.read
            if unknown:
                own.fail(min(unknown), "is not a part of a layer that kvroof reads")
    elif full:
        width = config.integer("global_head_dim", 512)
        m = config.integer("num_global_key_value_heads", m) if keys_only else m
    return Shape(n, m, width, width)


def _gemma4_mixers(size: int) -> Callable[[Config, int], tuple[GroupedAttention, ...]]:
    """Return a reader of Gemma 4's heads, with `size` as the class's window."""

    def read(config: Config, layer: int) -> tuple[GroupedAttention, ...]:
        last = layer == config.integer("num_hidden_layers") - 1
        reach = Full() if last else _sliding_or_full(config, layer, 6, size)
        is_full = isinstance(reach, Full)
        keys_only = config.boolean("attention_k_eq_v", False) and is_full
        return _attention(config, layer, _gemma4_shape(config, layer, is_full), reach, keys_only)

    return read


def _gemma4_ffns(config: Config, layer: int) -> tuple[FFN, ...]:
    """Return the MLP, twice as wide on reusing layers if told so, and the experts beside it."""
    double = config.boolean("use_double_wide_mlp", False) and _reuses(config, layer)
    inner = config.integer("intermediate_size") * (2 if double else 1)
    dense = DenseFFN(hidden_size=config.integer("hidden_size"), intermediate_size=inner)
    if not config.boolean("enable_moe_block", False):
        return (dense,)
    return (dense, *experts(active="top_k_experts", extras=_gemma4_router)(config, layer))


def _gemma4_router(config: Config) -> tuple[Weight, ...]:
    """Return the scales of Gemma 4's router and the three norms around its experts."""
    hidden = config.integer("hidden_size")
    return (
        vector("router.scale", hidden),
        vector("router.per_expert_scale", config.integer("num_experts")),
        vector("feedforward_layernorm", hidden, count=3),
    )


def _gemma4_extras(config: Config, layer: int) -> tuple[Weight, ...]:
    """Return a layer's part in the per-layer embeddings."""
    return _per_layer_weights(config)


_GEMMA4_UNUSED = frozenset(
    """
    global_head_dim moe_intermediate_size num_experts num_global_key_value_heads per_layer_config
    top_k_experts vocab_size_per_layer_input
    """.split()
)
_BESIDE_THE_MLP = {"expert": ("experts",)}
GEMMA4 = Family(
    mixers=_gemma4_mixers(512),
    ffns=_gemma4_ffns,
    norms=4,
    tied=True,
    layer_extras=_gemma4_extras,
    embedding_extras=_per_layer_tables,
    meaningless=_GEMMA4_UNUSED,
    parts=_BESIDE_THE_MLP,
)
GEMMA4_UNIFIED = Family(
    mixers=_gemma4_mixers(1024),
    ffns=_gemma4_ffns,
    norms=4,
    tied=True,
    meaningless=_GEMMA4_UNUSED,
    parts=_BESIDE_THE_MLP,
)

FAMILIES = {
    "gemma": GEMMA,
    "gemma2": GEMMA2,
    "gemma3": GEMMA3,
    "gemma3_text": GEMMA3,
    "gemma3n": GEMMA3N,
    "gemma3n_text": GEMMA3N,
    "gemma4": GEMMA4,
    "gemma4_text": GEMMA4,
    "gemma4_unified": GEMMA4_UNIFIED,
    "gemma4_unified_text": GEMMA4_UNIFIED,
    "vaultgemma": VAULT,
}
