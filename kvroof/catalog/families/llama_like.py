"""Llama's relatives: RMS norms, rotary heads, and one MLP, told apart by biases, norms and windows."""

from __future__ import annotations

from collections.abc import Callable

from kvroof.catalog.config import Config
from kvroof.catalog.families.blocks import (
    Reach,
    ReachOf,
    Shape,
    every_nth_full,
    head_shape,
    heads,
    late_window,
    listed,
    mlp,
    window,
)
from kvroof.catalog.families.family import Family
from kvroof.spec.ffn import FFN, DenseFFN
from kvroof.spec.reach import Full, Sliding
from kvroof.spec.weights import Weight, vector

BIAS = "attention_bias"
_WINDOW_UNUSED = frozenset({"max_window_layers", "use_sliding_window"})


def stated_window(absent: int) -> ReachOf:
    """Return a window on every layer; a file that says null has none, one that is silent has `absent`."""

    def reach(config: Config, layer: int) -> Reach:
        return Full() if config.says_null("sliding_window") else _sliding(config, absent)

    return reach


def first_of_n_full(period: int, absent: int) -> ReachOf:
    """Return windows with the first layer of every `period` full."""

    def reach(config: Config, layer: int) -> Reach:
        return Full() if layer % period == 0 else _sliding(config, absent)

    return reach


def _sliding(config: Config, absent: int) -> Sliding:
    return Sliding(size=config.integer("sliding_window", absent))


def grouped(head_dim: int | None = None) -> Callable[[Config, int], Shape]:
    """Return a reader of heads whose KV heads the file must state: their class would guess a number."""

    def shape(config: Config, layer: int) -> Shape:
        if not config.says_null("num_key_value_heads"):
            config.integer("num_key_value_heads")
        return head_shape(config, head_dim)

    return shape


def _one_window(inner: ReachOf) -> ReachOf:
    """Return `inner` for all layers; a list of types that differs is read by some engines only."""

    def reach(config: Config, layer: int) -> Reach:
        found = inner(config, layer)
        kinds = config.array("layer_types", str, config.integer("num_hidden_layers"))
        if kinds is not None and kinds[layer] != f"{found.kind}_attention":
            config.fail("layer_types", f"{kinds[layer]!r:.40}, where this class has one reach for all")
        return found

    return reach


def _smollm3_window(config: Config, layer: int) -> Reach:
    """Return a window on the layers without rotary positions, and only with `use_sliding_window`."""
    rotary = config.array("no_rope_layers", int, config.integer("num_hidden_layers"))
    interval = config.integer("no_rope_layer_interval", 4)
    turns = bool(rotary[layer]) if rotary is not None else (layer + 1) % interval != 0
    if config.boolean("use_sliding_window", False) and not turns:
        return window(config, layer)
    return Full()


def _exaone4_window(config: Config, layer: int) -> Reach:
    """Return windows by `sliding_window_pattern`, a period or letters (`LLLG`, the last layer global)."""
    size = config.optional_integer("sliding_window")
    if size is None:
        return Full()
    if not isinstance(config.data.get("sliding_window_pattern"), str):
        return every_nth_full(4, size, "sliding_window_pattern")(config, layer)
    letters = config.text("sliding_window_pattern")
    if not letters or set(letters) - set("LG"):
        config.fail("sliding_window_pattern", f"{letters!r:.40} is not a pattern of L and G")
    last = layer == config.integer("num_hidden_layers") - 1
    return Full() if last or letters[layer % len(letters)] == "G" else Sliding(size=size)


LLAMA = Family(mixers=heads(qkv_bias=BIAS, o_bias=BIAS), ffns=mlp(bias="mlp_bias"))
MISTRAL = Family(mixers=heads(shape=grouped(), reach=_one_window(stated_window(4096))))
MINISTRAL = Family(mixers=heads(shape=grouped(), reach=listed(stated_window(4096), 4096)))
MINISTRAL3 = Family(mixers=heads(shape=grouped(128), reach=_one_window(window)))
QWEN2 = Family(mixers=heads(shape=grouped(), qkv_bias=True, reach=listed(late_window)))
MIMO = Family(
    mixers=heads(shape=grouped(), qkv_bias=True, reach=late_window),
    # The multi-token block runs, and holds a cache, only when speculating.
    meaningless=frozenset({BIAS, "num_nextn_predict_layers"}),
)
QWEN3 = Family(
    mixers=heads(shape=grouped(128), qk_norm="head", qkv_bias=BIAS, o_bias=BIAS, reach=listed(late_window))
)
SEED_OSS = Family(
    mixers=heads(shape=grouped(128), qkv_bias=(BIAS, True), o_bias="attention_out_bias"),
    ffns=mlp(bias="mlp_bias"),
)
SMOLLM3 = Family(
    mixers=heads(shape=grouped(), qkv_bias=BIAS, o_bias=BIAS, reach=listed(_smollm3_window)),
    ffns=mlp(bias="mlp_bias"),
    tied=True,
    meaningless=_WINDOW_UNUSED | {"sliding_window", "no_rope_layers", "no_rope_layer_interval"},
)
COHERE = Family(
    mixers=heads(qkv_bias=BIAS, o_bias=BIAS, qk_norm="full", qk_norm_if="use_qk_norm"),
    norms=1,
    tied=True,
    parallel=True,
)
COHERE2 = Family(
    mixers=heads(
        qkv_bias=BIAS, o_bias=BIAS, reach=listed(every_nth_full(4, 4096, "sliding_window_pattern"), 4096)
    ),
    norms=1,
    tied=True,
    parallel=True,
    meaningless=frozenset({"layer_switch", "order_of_interleaved_layers"}),
)
OLMO = Family(mixers=heads(qkv_bias=BIAS, o_bias=BIAS), norms=0, final_norms=0)
OLMO2 = Family(mixers=heads(qkv_bias=BIAS, o_bias=BIAS, qk_norm="full"))
OLMO3 = Family(
    mixers=heads(qkv_bias=BIAS, o_bias=BIAS, qk_norm="full", reach=listed(every_nth_full(4, 4096), 4096))
)
GRANITE_SWA = Family(
    mixers=heads(
        shape=grouped(), qkv_bias=BIAS, o_bias=BIAS, sinks=True, reach=listed(first_of_n_full(4, 128), 128)
    ),
    ffns=mlp(bias="mlp_bias"),
    tied=True,
    meaningless=frozenset({"layer_rope_theta"}),
)
CWM = Family(
    mixers=heads(shape=grouped(128), reach=listed(first_of_n_full(4, 8192), 8192)), ffns=mlp(bias="mlp_bias")
)
IQUEST = Family(mixers=heads(shape=grouped(128), qkv_bias=BIAS, o_bias=BIAS), ffns=mlp(bias="mlp_bias"))
PHI3 = Family(
    mixers=heads(reach=window), meaningless=frozenset({"attention_bias", "mlp_bias", "full_attn_mod"})
)
GLM = Family(mixers=heads(shape=grouped(128), qkv_bias=(BIAS, True)))
GLM4 = Family(mixers=heads(shape=grouped(128), qkv_bias=(BIAS, True)), norms=4)
EXAONE = Family(mixers=heads(shape=grouped(), qkv_bias=BIAS, o_bias=BIAS), ffns=mlp(bias="mlp_bias"))
EXAONE4 = Family(mixers=heads(shape=grouped(), qk_norm="head", reach=listed(_exaone4_window)))
ARCEE = Family(mixers=heads(qkv_bias=BIAS, o_bias=BIAS), ffns=mlp(gated=False, bias="mlp_bias"))
ERNIE4_5 = Family(
    mixers=heads(shape=grouped(128), qkv_bias="use_bias", o_bias="use_bias"),
    ffns=mlp(bias="use_bias"),
    tied=True,
)
JAIS2 = Family(
    mixers=heads(qkv_bias=(BIAS, True), o_bias=(BIAS, True)),
    ffns=mlp(gated=False, bias=("mlp_bias", True)),
    norm_bias=True,
)


def _nemotron_shape(config: Config, layer: int) -> Shape:
    """Return Llama's heads; `kv_channels` says their width a second time."""
    shape = head_shape(config)
    if config.integer("kv_channels", shape.k_width) != shape.k_width:
        config.fail("kv_channels", f"the heads are {shape.k_width} wide", "add head_dim")
    return shape


NEMOTRON = Family(
    mixers=heads(shape=_nemotron_shape, qkv_bias=BIAS, o_bias=BIAS),
    ffns=mlp(gated=False, bias="mlp_bias"),
    norm_bias=True,
)
NANOCHAT = Family(mixers=heads(qkv_bias=BIAS, o_bias=BIAS), ffns=mlp(gated=False), norms=0, final_norms=0)


def _square_out(config: Config, layer: int) -> Shape:
    """Return Helium's heads, whose output projection is as wide as the residual."""
    shape = head_shape(config, 128)
    if shape.heads * shape.v_width != config.integer("hidden_size"):
        config.fail("head_dim", "times the heads is not hidden_size, which Helium's o_proj needs")
    return shape


HELIUM = Family(mixers=heads(shape=_square_out, qkv_bias=BIAS), ffns=mlp(bias="mlp_bias"))


def _sub_norm(config: Config, layer: int) -> tuple[Weight, ...]:
    """Return BitNet's norm before the output projection."""
    return (vector("attn_sub_norm", config.integer("hidden_size")),)


def _bitnet_ffns(config: Config, layer: int) -> tuple[FFN, ...]:
    """Return a gated MLP with a norm before its second matrix."""
    inner = config.integer("intermediate_size")
    return (
        DenseFFN(
            hidden_size=config.integer("hidden_size"),
            intermediate_size=inner,
            extras=(vector("ffn_sub_norm", inner, split=inner),),
        ),
    )


BITNET = Family(
    mixers=heads(shape=grouped(), qkv_bias=BIAS, o_bias=BIAS, extras=_sub_norm), ffns=_bitnet_ffns
)


def _lambdas(config: Config, layer: int) -> tuple[Weight, ...]:
    """Return the four vectors that weigh the two softmaxes of a DiffLlama head."""
    return (vector("lambda", head_shape(config).k_width, count=4),)


DIFFLLAMA = Family(mixers=heads(qkv_bias=BIAS, o_bias=BIAS, extras=_lambdas))


def _xielu(config: Config, layer: int) -> tuple[Weight, ...]:
    """Return the two learned numbers of the xIELU activation."""
    return (vector("act_fn.alpha", 1, count=2),) if config.text("hidden_act", "xielu") == "xielu" else ()


def _apertus_shape(config: Config, layer: int) -> Shape:
    """Return Llama's heads, refused where a file turns Apertus' fixed norms around."""
    if not config.boolean("qk_norm", True) or config.boolean("post_norm", False):
        config.fail("qk_norm", "Apertus norms queries and keys, and has no norm after a block")
    return head_shape(config)


APERTUS = Family(
    mixers=heads(shape=_apertus_shape, qkv_bias=BIAS, o_bias=BIAS, qk_norm="head"),
    ffns=mlp(gated=False),
    layer_extras=_xielu,
)


def _hunyuan_shape(config: Config, layer: int) -> Shape:
    """Return Llama's heads, refused for what other Hunyuan models have and this class does not."""
    for key in ("use_cla", "use_mla", "use_mixed_mlp_moe", "mlp_bias"):
        if config.boolean(key, False):
            config.fail(key, "is not known for hunyuan_v1_dense")
    if not config.boolean("use_qk_norm", True):
        config.fail("use_qk_norm", "hunyuan_v1_dense always norms queries and keys")
    config.integer("num_experts", 1, maximum=1)
    return head_shape(config)


HUNYUAN_DENSE = Family(
    mixers=heads(shape=_hunyuan_shape, qkv_bias=BIAS, o_bias=BIAS, qk_norm="head"),
    meaningless=frozenset(
        """
        attention_head_dim cla_share_factor moe_drop_tokens moe_layer_num_skipped moe_topk num_shared_expert
        moe_random_routing_dropped_token num_media_embeds
        """.split()
    ),
)


def _hyperclovax_norms(config: Config, layer: int) -> int:
    """Return four norms with `use_post_norm`, else two."""
    return 4 if config.boolean("use_post_norm", True) else 2


HYPERCLOVAX = Family(
    mixers=heads(qkv_bias=BIAS, o_bias=BIAS), ffns=mlp(bias="mlp_bias"), norms=_hyperclovax_norms
)


def _doge_gate(config: Config, layer: int) -> tuple[Weight, ...]:
    """Return the parameters of Doge's dynamic mask: a decay per KV head and its projection."""
    if config.boolean("is_moe", False):
        config.fail("is_moe", "Doge's product-key experts are not known")
    _, m, width, _ = head_shape(config)
    bias = (vector("dt_proj.bias", m),) if config.boolean(BIAS, False) else ()
    return vector("A", m, split=m), Weight(name="dt_proj", shape=(m * width, m), role="attention"), *bias


def _doge_residuals(config: Config, layer: int) -> tuple[Weight, ...]:
    """Return the two vectors that scale Doge's residuals."""
    return (vector("residual", config.integer("hidden_size"), count=2),)


DOGE = Family(
    mixers=heads(qkv_bias=BIAS, o_bias=BIAS, qk_norm="head", reach=window, extras=_doge_gate),
    ffns=mlp(bias="mlp_bias"),
    layer_extras=_doge_residuals,
    meaningless=frozenset({"keep_window_size", "num_experts", "num_experts_per_tok"}),
)

FAMILIES = {
    "apertus": APERTUS,
    "apertus1p5_text": APERTUS,
    "arcee": ARCEE,
    "bitnet": BITNET,
    "cohere": COHERE,
    "cohere2": COHERE2,
    "cwm": CWM,
    "diffllama": DIFFLLAMA,
    "doge": DOGE,
    "ernie4_5": ERNIE4_5,
    "exaone": EXAONE,
    "exaone4": EXAONE4,
    "glm": GLM,
    "glm4": GLM4,
    "granite": LLAMA,
    "granite_swa": GRANITE_SWA,
    "helium": HELIUM,
    "hunyuan_v1_dense": HUNYUAN_DENSE,
    "hyperclovax": HYPERCLOVAX,
    "iquestcoder": IQUEST,
    "jais2": JAIS2,
    "llama": LLAMA,
    "mimo": MIMO,
    "ministral": MINISTRAL,
    "ministral3": MINISTRAL3,
    "mistral": MISTRAL,
    "nanochat": NANOCHAT,
    "nemotron": NEMOTRON,
    "olmo": OLMO,
    "olmo2": OLMO2,
    "olmo3": OLMO3,
    "phi3": PHI3,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "seed_oss": SEED_OSS,
    "smollm3": SMOLLM3,
}
