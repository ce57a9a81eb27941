"""Families from before Llama: LayerNorm with bias, plain MLPs, learned positions, parallel blocks."""

from __future__ import annotations

from collections.abc import Callable

from kvroof.catalog.config import Config
from kvroof.catalog.families.blocks import (
    Reach,
    Shape,
    every_nth_full,
    four_times_hidden,
    head_shape,
    heads,
    listed,
    mlp,
    window,
)
from kvroof.catalog.families.family import Family
from kvroof.catalog.families.llama_like import grouped
from kvroof.spec.weights import Weight, vector


def even(config: Config, kv_heads: int | None = None) -> Shape:
    """Return heads of exactly hidden/heads, all with their own keys unless `kv_heads` says fewer.

    Raises:
        BadInput: Hidden size and heads do not divide, or the file gives another width.
    """
    hidden, n = config.integer("hidden_size"), config.integer("num_attention_heads")
    if hidden % n:
        config.fail("hidden_size", f"{hidden} is not a multiple of {n} heads")
    width = hidden // n
    if config.integer("head_dim", width) != width:
        config.fail("head_dim", f"this family's heads are hidden/heads = {width} wide")
    m = n if kv_heads is None else kv_heads
    return Shape(n, m, width, width)


def mha(config: Config, layer: int) -> Shape:
    """Return heads that all have their own keys; a file that groups them is not of this family."""
    shape = even(config)
    if config.integer("num_key_value_heads", shape.heads) != shape.heads:
        config.fail("num_key_value_heads", f"this family has {shape.heads}, one for each head")
    return shape


def even_grouped(config: Config, layer: int) -> Shape:
    """Return heads of hidden/heads, grouped as the file says."""
    return even(config, config.integer("num_key_value_heads"))


def _decoder_only(config: Config, layer: int) -> Shape:
    """Return GPT-2's heads, refused with cross-attention."""
    if config.boolean("add_cross_attention", False):
        config.fail("add_cross_attention", "kvroof counts these classes as decoders alone")
    return mha(config, layer)


def positions_from_two(config: Config) -> tuple[Weight, ...]:
    """Return a learned position table with two rows more than positions (OPT, BioGPT)."""
    rows, hidden = config.integer("max_position_embeddings") + 2, config.integer("hidden_size")
    return (Weight(name="embed_positions", shape=(rows, hidden), role="embedding"),)


def qk_layernorms(key: str, default: bool) -> Callable[[Config, int], tuple[Weight, ...]]:
    """Return a reader of the norms on queries and keys, weight and bias of a head's width each."""

    def read(config: Config, layer: int) -> tuple[Weight, ...]:
        if not config.boolean(key, default):
            return ()
        return (vector("qk_norm", head_shape(config).k_width, count=4),)

    return read


GPT2 = Family(
    mixers=heads(shape=_decoder_only, qkv_bias=True, o_bias=True),
    ffns=mlp(gated=False, bias=True, width=four_times_hidden),
    norm_bias=True,
    tied=True,
    positions="max_position_embeddings",
    meaningless=frozenset({"reorder_and_upcast_attn", "scale_attn_by_inverse_layer_idx"}),
)
OPENAI_GPT = Family(
    mixers=heads(shape=mha, qkv_bias=True, o_bias=True),
    ffns=mlp(gated=False, bias=True, width=lambda config: 4 * config.integer("hidden_size")),
    norm_bias=True,
    final_norms=0,
    tied=True,
    positions="max_position_embeddings",
)


def _bigcode_shape(config: Config, layer: int) -> Shape:
    """Return one KV head with `multi_query`, else one for each head."""
    if config.boolean("add_cross_attention", False):
        config.fail("add_cross_attention", "kvroof counts these classes as decoders alone")
    return even(config, 1 if config.boolean("multi_query", True) else None)


GPT_BIGCODE = Family(
    mixers=heads(shape=_bigcode_shape, qkv_bias=True, o_bias=True),
    ffns=mlp(gated=False, bias=True, width=four_times_hidden),
    norm_bias=True,
    tied=True,
    positions="max_position_embeddings",
    meaningless=frozenset({"num_key_value_heads", "pre_allocate_kv_cache"}),
)
GPT_NEOX = Family(
    mixers=heads(shape=mha, qkv_bias=("attention_bias", True), o_bias=("attention_bias", True)),
    ffns=mlp(gated=False, bias=True),
    norm_bias=True,
    parallel=("use_parallel_residual", True),
)


def _last_bias(config: Config, layer: int) -> tuple[Weight, ...]:
    """Return the output bias that only the last layer of the Japanese GPT-NeoX has."""
    last = layer == config.integer("num_hidden_layers") - 1
    return (vector("dense_bias", config.integer("hidden_size")),) if last else ()


GPT_NEOX_JAPANESE = Family(
    mixers=heads(shape=mha, extras=_last_bias),
    ffns=mlp(
        gated=False,
        width=lambda config: config.integer("hidden_size") * config.integer("intermediate_multiple_size", 4),
    ),
    norm_bias=True,
    tied=True,
    meaningless=frozenset({"intermediate_size"}),
)
# No implementation drops what GPT-Neo's local layers no longer read, so its cache is that of full attention.
GPT_NEO = Family(
    mixers=heads(shape=mha, o_bias=True),
    ffns=mlp(gated=False, bias=True, width=four_times_hidden),
    norm_bias=True,
    tied=True,
    positions="max_position_embeddings",
    meaningless=frozenset({"attention_types", "attention_layers", "window_size"}),
)
GPTJ = Family(
    mixers=heads(shape=mha),
    ffns=mlp(gated=False, bias=True, width=four_times_hidden),
    norms=1,
    norm_bias=True,
    parallel=True,
    head_bias=True,
)
PHI = Family(
    mixers=heads(qkv_bias=True, o_bias=True, extras=qk_layernorms("qk_layernorm", False)),
    ffns=mlp(gated=False, bias=True, width=four_times_hidden),
    norms=1,
    norm_bias=True,
    parallel=True,
    head_bias=True,
)
PERSIMMON = Family(
    mixers=heads(shape=mha, qkv_bias=True, o_bias=True, extras=qk_layernorms("qk_layernorm", True)),
    ffns=mlp(gated=False, bias=True),
    norm_bias=True,
)
STARCODER2 = Family(
    mixers=heads(
        shape=grouped(), qkv_bias=("use_bias", True), o_bias=("use_bias", True), reach=listed(window)
    ),
    ffns=mlp(gated=False, bias=("use_bias", True)),
    norm_bias=True,
    tied=True,
)


def _stablelm_norms(config: Config, layer: int) -> int:
    """Return one norm for a parallel block, else two."""
    return 1 if config.boolean("use_parallel_residual", False) else 2


STABLELM = Family(
    mixers=heads(shape=even_grouped, qkv_bias="use_qkv_bias", qk_norm="full", qk_norm_if="qk_layernorm"),
    norms=_stablelm_norms,
    norm_bias=True,
    parallel="use_parallel_residual",
)


def _bloom_norm(config: Config) -> tuple[Weight, ...]:
    """Return the norm on BLOOM's embeddings."""
    return (vector("word_embeddings_layernorm", config.integer("hidden_size"), count=2),)


BLOOM = Family(
    mixers=heads(shape=mha, qkv_bias=True, o_bias=True),
    ffns=mlp(gated=False, bias=True, width=lambda config: 4 * config.integer("hidden_size")),
    norm_bias=True,
    tied=True,
    embedding_extras=_bloom_norm,
)


def _opt_norms(config: Config, layer: int) -> int:
    """Return two norms, or none with parameters without `layer_norm_elementwise_affine`."""
    return 2 if config.boolean("layer_norm_elementwise_affine", True) else 0


def _opt_embedding(config: Config) -> tuple[Weight, ...]:
    """Return the position table, and the projections between residual and a narrower token table."""
    hidden = config.integer("hidden_size")
    width = config.integer("word_embed_proj_dim", hidden)
    table = positions_from_two(config)
    if width == hidden:
        return table
    return (
        *table,
        Weight(name="project_in", shape=(width, hidden), role="ffn"),
        Weight(name="project_out", shape=(hidden, width), role="ffn"),
    )


def _opt_final(config: Config) -> tuple[Weight, ...]:
    """Return the last norm, which models that norm after their blocks do not have."""
    before = config.boolean("do_layer_norm_before", True)
    removed = config.boolean("_remove_final_layer_norm", False)
    has = before and not removed and _opt_norms(config, 0) > 0
    return (vector("final_layer_norm", config.integer("hidden_size"), count=2),) if has else ()


OPT = Family(
    mixers=heads(shape=mha, qkv_bias=("enable_bias", True), o_bias=("enable_bias", True)),
    ffns=mlp(gated=False, bias=("enable_bias", True)),
    norms=_opt_norms,
    norm_bias=True,
    final_norms=0,
    tied=True,
    embedding_width="word_embed_proj_dim",
    embedding_extras=_opt_embedding,
    final_extras=_opt_final,
)
BIOGPT = Family(
    mixers=heads(shape=mha, qkv_bias=True, o_bias=True),
    ffns=mlp(gated=False, bias=True),
    norm_bias=True,
    tied=True,
    embedding_extras=positions_from_two,
)
XGLM = Family(
    mixers=heads(shape=_decoder_only, qkv_bias=True, o_bias=True),
    ffns=mlp(gated=False, bias=True),
    norm_bias=True,
    tied=True,
)
CTRL = Family(
    mixers=heads(shape=mha, qkv_bias=True, o_bias=True),
    ffns=mlp(gated=False, bias=True),
    norm_bias=True,
    tied=True,
    head_bias=True,
)


def _mpt_shape(config: Config, layer: int) -> Shape:
    """Return MPT's heads, whose `attn_config` says in words whether they share keys."""
    attention = config.child("attn_config")
    if not config.boolean("no_bias", True):
        config.fail("no_bias", "MPT with biases is not known")
    if attention is None:
        return mha(config, layer)
    if attention.integer("sliding_window_size", -1, minimum=-1) != -1:
        attention.fail("sliding_window_size", "MPT is known without windows")
    if attention.boolean("qk_ln", False):
        attention.fail("qk_ln", "MPT is known without norms on queries and keys")
    if not attention.boolean("alibi", True):
        attention.fail("alibi", "MPT is known with ALiBi in place of a position table")
    kind, shape = attention.text("attn_type", "multihead_attention"), even(config)
    groups = {"multihead_attention": shape.heads, "multiquery_attention": 1}
    if kind == "grouped_query_attention":
        groups[kind] = attention.integer("kv_n_heads")
    if kind not in groups:
        attention.fail("attn_type", f"{kind!r:.40} is not an attention MPT has")
    if attention.integer("kv_n_heads", groups[kind]) != groups[kind]:
        attention.fail("kv_n_heads", f"{kind} has {groups[kind]}")
    return shape._replace(kv_heads=groups[kind])


MPT = Family(
    mixers=heads(shape=_mpt_shape),
    ffns=mlp(
        gated=False,
        width=lambda config: config.integer("hidden_size") * config.integer("expansion_ratio", 4),
    ),
    tied=True,
)


def _falcon_shape(config: Config, layer: int) -> Shape:
    """Return Falcon's heads: the new decoder groups them, the old one has one KV head or all."""
    n = config.integer("num_attention_heads")
    multi_query = config.boolean("multi_query", True)
    if config.boolean("new_decoder_architecture", False):
        return even(config, config.integer("num_kv_heads", n))
    return even(config, 1 if multi_query else n)


def _falcon_norms(config: Config, layer: int) -> int:
    """Return two norms for sequential blocks and for the new decoder unless told one, else one."""
    if not config.boolean("parallel_attn", True):
        return 2
    new = config.boolean("new_decoder_architecture", False)
    return config.integer("num_ln_in_parallel_attn", 2 if new else 1, maximum=2)


FALCON = Family(
    mixers=heads(shape=_falcon_shape, qkv_bias="bias", o_bias="bias"),
    ffns=mlp(gated=False, bias="bias", width=four_times_hidden),
    norms=_falcon_norms,
    norm_bias=True,
    tied=True,
    parallel=("parallel_attn", True),
    meaningless=frozenset({"num_kv_heads", "num_ln_in_parallel_attn"}),
)


def _modern_head(config: Config) -> tuple[Weight, ...]:
    """Return ModernBERT's head before the vocabulary: a matrix and a norm."""
    hidden = config.integer("hidden_size")
    biases = int(config.boolean("classifier_bias", False)) + int(config.boolean("norm_bias", False))
    own = (vector("lm_head.norm", hidden), Weight(name="lm_head.dense", shape=(hidden, hidden), role="ffn"))
    return (*own, vector("lm_head.bias", hidden, count=biases)) if biases else own


def _modern_norms(config: Config, layer: int) -> int:
    """Return one norm for the first layer, whose input the embedding has normed, else two."""
    return 2 if layer else 1


def _modern_embedding(config: Config) -> tuple[Weight, ...]:
    """Return the norm on the embeddings."""
    return (
        vector(
            "embeddings.norm", config.integer("hidden_size"), count=1 + config.boolean("norm_bias", False)
        ),
    )


def _modern_window(config: Config, layer: int) -> Reach:
    """Return half of `local_attention` as the window, with every third layer from the first full."""
    half = config.integer("local_attention", 128, minimum=2) // 2
    period = config.integer("global_attn_every_n_layers", 3)
    size = config.integer("sliding_window", half)
    return every_nth_full(period, size)(config, layer - 1 + period)


MODERNBERT_DECODER = Family(
    mixers=heads(
        shape=mha, qkv_bias="attention_bias", o_bias="attention_bias", reach=listed(_modern_window, 64)
    ),
    ffns=mlp(bias="mlp_bias"),
    norms=_modern_norms,
    norm_bias="norm_bias",
    tied=True,
    head_bias=("decoder_bias", True),
    embedding_extras=_modern_embedding,
    final_extras=_modern_head,
    meaningless=frozenset({"global_attn_every_n_layers", "local_attention"}),
)

FAMILIES = {
    "biogpt": BIOGPT,
    "bloom": BLOOM,
    "codegen": GPTJ,
    "ctrl": CTRL,
    "falcon": FALCON,
    "gpt-sw3": GPT2,
    "gpt2": GPT2,
    "gpt_bigcode": GPT_BIGCODE,
    "gpt_neo": GPT_NEO,
    "gpt_neox": GPT_NEOX,
    "gpt_neox_japanese": GPT_NEOX_JAPANESE,
    "gptj": GPTJ,
    "modernbert-decoder": MODERNBERT_DECODER,
    "mpt": MPT,
    "openai-gpt": OPENAI_GPT,
    "opt": OPT,
    "persimmon": PERSIMMON,
    "phi": PHI,
    "phi-msft": PHI,
    "stablelm": STABLELM,
    "stablelm_epoch": STABLELM,
    "starcoder2": STARCODER2,
    "xglm": XGLM,
}
