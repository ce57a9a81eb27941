"""Families with multi-head latent attention, dense or sparse (DSA), with experts or without."""

from __future__ import annotations

from dataclasses import replace

from kvroof.catalog.config import Config
from kvroof.catalog.families.blocks import experts, flag, heads, latent, mlp
from kvroof.catalog.families.family import Family
from kvroof.catalog.families.schedule import after, listed_mlps, mixed, shared_experts
from kvroof.spec.architecture import Mixer
from kvroof.spec.attention import Indexer, LatentAttention
from kvroof.spec.ffn import FFN, MoE
from kvroof.spec.weights import Weight, vector

# KV heads mean nothing to a latent; MTP blocks run, and hold a cache, only when speculating.
DECOYS = frozenset(
    {
        "head_dim",
        "index_share_for_mtp_iteration",
        "indexer_rope_interleave",
        "lm_head",
        "mtp_layer_types",
        "num_key_value_heads",
        "num_nextn_predict_layers",
        "rm_head",
    }
)


def low_rank(config: Config, layer: int) -> tuple[LatentAttention, ...]:
    """Return latent attention whose `q_lora_rank` the file gives: null says there is none."""
    if not config.has("q_lora_rank") and not config.says_null("q_lora_rank"):
        config.fail("q_lora_rank", "missing, and it decides the size", "null says: no low-rank query")
    return latent(config, layer)


def _perhaps_latent(config: Config, layer: int) -> tuple[Mixer, ...]:
    """Return DeepSeek-V2's attention: plain heads where `use_mla` is false (DeepSeek-VL2-tiny)."""
    if config.boolean("use_mla", True):
        return low_rank(config, layer)
    config.read_nothing({"kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"})
    return heads(qkv_bias="attention_bias", o_bias="attention_bias")(config, layer)


def _routed(config: Config, layer: int) -> bool:
    """Return experts after the first dense layers; a file without a word of experts has none."""
    words = ("n_routed_experts", "num_experts", "moe_intermediate_size", "first_k_dense_replace")
    return any(config.has(word) for word in words) and after()(config, layer)


DEEPSEEK_EXPERTS = experts(number=("n_routed_experts", "num_experts"), shared=shared_experts())

DEEPSEEK_V2 = Family(
    mixers=_perhaps_latent,
    ffns=mixed(
        _routed,
        experts(number=("n_routed_experts", "num_experts"), shared=shared_experts(), shared_bias="mlp_bias"),
        mlp(bias="mlp_bias"),
    ),
    meaningless=DECOYS,
)
DEEPSEEK_V3 = Family(mixers=low_rank, ffns=mixed(listed_mlps(_routed), DEEPSEEK_EXPERTS), meaningless=DECOYS)
GLM4_LITE = replace(DEEPSEEK_V3, ffns=mixed(listed_mlps(after(1)), DEEPSEEK_EXPERTS))
SARVAM = replace(DEEPSEEK_V3, mixers=latent)


def _minicpm3(config: Config, layer: int) -> tuple[LatentAttention, ...]:
    """Return MiniCPM3's attention, whose files leave out that a value is hidden/heads wide."""
    hidden, n = config.integer("hidden_size"), config.integer("num_attention_heads")
    if not config.has("v_head_dim") and hidden % n:
        config.fail("v_head_dim", f"missing, and {hidden} is not a multiple of {n} heads")
    return latent(config, layer, v_head_dim=hidden // n)


MINICPM3 = Family(mixers=_minicpm3, ffns=mlp(bias="mlp_bias"), tied=True, meaningless=DECOYS)
YOUTU = replace(MINICPM3, mixers=low_rank)


def scored_by(mixer: LatentAttention, config: Config, full: bool) -> LatentAttention:
    """Return `mixer` with a DSA indexer, its own where the layer is `full`, else an earlier layer's."""
    hidden, rank = mixer.hidden_size, mixer.q_lora_rank
    number, width = config.integer("index_n_heads"), config.integer("index_head_dim")
    if rank is None:
        config.fail("q_lora_rank", "null, but the indexer reads the compressed query")
    weights: tuple[Weight, ...] = ()
    if full:
        weights = (
            Weight(name="indexer.wq_b", shape=(rank, number * width), split=1, role="attention"),
            Weight(name="indexer.wk", shape=(hidden, width), role="attention"),
            Weight(name="indexer.weights_proj", shape=(hidden, number), role="attention"),
            vector("indexer.k_norm", width, count=2),
        )
    topk = config.integer("index_topk")
    index = Indexer(num_heads=number, head_dim=width, topk=topk, stores=full, weights=weights)
    return replace(mixer, index=index)


def _own_index(config: Config, layer: int) -> tuple[LatentAttention, ...]:
    """Return sparse latent attention with an indexer on every layer (DeepSeek-V3.2)."""
    return sparse_layer(config, layer, full=True)


def _some_index(config: Config, layer: int) -> tuple[LatentAttention, ...]:
    """Return sparse latent attention, some layers of which reuse an earlier one's index (GLM-5.2)."""
    return sparse_layer(config, layer, full=_indexes(config, layer))


def sparse_layer(config: Config, layer: int, full: bool) -> tuple[LatentAttention, ...]:
    """Return sparse latent attention, with an indexer of its own where the layer is `full`."""
    types = config.array("layer_types", str, config.integer("num_hidden_layers"))
    if types is not None and types[layer] not in ("indexed_attention", "deepseek_sparse_attention"):
        config.fail("layer_types", f"{types[layer]!r} is not an attention this family has")
    (mixer,) = low_rank(config, layer)
    return (scored_by(mixer, config, full),)


def _indexes(config: Config, layer: int) -> bool:
    """Return whether a layer has an indexer: listed, drawn as a pattern, or every n-th past an offset."""
    count = config.integer("num_hidden_layers")
    types = config.array("indexer_types", str, count)
    if types is None and isinstance(config.data.get("index_topk_pattern"), str):
        names = {"F": "full", "S": "shared"}
        types = [names.get(letter, letter) for letter in config.text("index_topk_pattern")]
    elif types is None:
        types = config.array("index_topk_pattern", str, count)
    step, offset = (
        config.integer("index_topk_freq", 1),
        config.integer("index_skip_topk_offset", 2, minimum=0),
    )
    if types is None:
        return max(layer - offset + 1, 0) % step == 0
    if len(types) != count or types[layer] not in ("full", "shared") or types[0] != "full":
        config.fail("indexer_types", "is not a list of full and shared layers that starts with a full one")
    return bool(types[layer] == "full")


DEEPSEEK_V32 = replace(DEEPSEEK_V3, mixers=_own_index)
GLM_DSA = replace(DEEPSEEK_V3, mixers=_some_index)


def _twice(config: Config, layer: int) -> tuple[LatentAttention, ...]:
    """Return the two attentions of a LongCat layer, each with its own cache."""
    return low_rank(config, layer) * 2


def _longcat_ffns(config: Config, layer: int) -> tuple[FFN, ...]:
    """Return two dense MLPs and the experts, of which the zero-computation ones hold no weights."""
    kind = config.text("zero_expert_type", "identity")
    zero = config.integer("zero_expert_num", minimum=0)
    if zero and kind != "identity":
        config.fail("zero_expert_type", f"{kind!r} is not known to hold no weights")
    dense = mlp(width=lambda c: c.integer("ffn_hidden_size"))(config, layer)
    (moe,) = experts(
        number="n_routed_experts", width="expert_ffn_hidden_size", active=("moe_topk", "num_experts_per_tok")
    )(config, layer)
    assert isinstance(moe, MoE)
    bias: tuple[Weight, ...] = ()
    if flag(config, "router_bias"):
        bias = (vector("router.bias", moe.num_experts + zero),)
    return (*dense, *dense, replace(moe, zero_experts=zero, extras=bias))


LONGCAT = Family(
    mixers=_twice,
    ffns=_longcat_ffns,
    norms=4,
    layers=lambda config: config.integer("num_layers", maximum=10_000),
    # The scales multiply what the low-rank projections give.
    meaningless=DECOYS
    | {"attention_method", "num_hidden_layers", "intermediate_size", "mla_scale_q_lora", "mla_scale_kv_lora"},
    parts={"attention": ("self_attn.{}",), "ffn": ("mlps.{}",)},
)


def _axk1_norm(config: Config, layer: int) -> int:
    """Return two norms, and a third after the experts."""
    return 3 if listed_mlps(after(1))(config, layer) else 2


AXK1 = replace(GLM4_LITE, norms=_axk1_norm)

FAMILIES = {
    "axk1": AXK1,
    "deepseek_v2": DEEPSEEK_V2,
    "deepseek_v3": DEEPSEEK_V3,
    "deepseek_v32": DEEPSEEK_V32,
    "deepseek_vl_v2": DEEPSEEK_V2,
    "glm4_moe_lite": GLM4_LITE,
    "glm_moe_dsa": GLM_DSA,
    "kimi_k2": DEEPSEEK_V3,
    "longcat_flash": LONGCAT,
    "minicpm3": MINICPM3,
    "mistral4": replace(DEEPSEEK_V3, ffns=mixed(after(0), DEEPSEEK_EXPERTS)),
    "sarvam_mla": SARVAM,
    "youtu": YOUTU,
}
