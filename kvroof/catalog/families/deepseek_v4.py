"""DeepSeek-V4: a window, compressed entries behind it, hyper-connected residual streams."""

from __future__ import annotations

from kvroof.catalog.config import Config
from kvroof.catalog.families.blocks import experts
from kvroof.catalog.families.family import Family
from kvroof.catalog.families.schedule import shared_experts
from kvroof.spec.attention import CompressedAttention, Compressor, Indexer
from kvroof.spec.ffn import FFN
from kvroof.spec.reach import Sliding
from kvroof.spec.weights import Weight, vector

_KINDS = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
_RATIOS = {kind: ratio for ratio, kind in _KINDS.items()}


def _kind(config: Config, layer: int) -> str:
    """Return a layer's attention: listed by name, or by compression ratio; blocks for MTP trail the list."""
    count = config.integer("num_hidden_layers")
    types = config.array("layer_types", str)
    ratios = config.array("compress_ratios", int)
    if types is None and ratios is not None:
        types = [_KINDS.get(ratio, str(ratio)) for ratio in ratios]
    if types is None:
        config.fail("layer_types", "missing, and it decides the cache", "add layer_types or compress_ratios")
    if len(types) < count:
        config.fail("layer_types", f"has {len(types)} entries for {count} layers")
    if types[layer] not in _RATIOS:
        config.fail("layer_types", f"{types[layer]!r} is not an attention this family has")
    return str(types[layer])


def _ratio(config: Config, kind: str) -> int:
    """Return how many tokens make one entry of a layer of this kind."""
    rates = config.child("compress_rates")
    return rates.integer(kind, _RATIOS[kind]) if rates is not None else _RATIOS[kind]


def _poolers(prefix: str, hidden: int, width: int, ratio: int, overlap: int) -> tuple[Weight, ...]:
    """Return what pools `ratio` tokens into one entry: values, their weights, a position bias, a norm."""
    return (
        Weight(name=f"{prefix}.kv_proj", shape=(hidden, overlap * width), role="attention"),
        Weight(name=f"{prefix}.gate_proj", shape=(hidden, overlap * width), role="attention"),
        vector(f"{prefix}.position_bias", ratio, overlap * width),
        vector(f"{prefix}.kv_norm", width),
    )


def _indexer(config: Config, hidden: int, ratio: int) -> Indexer:
    number, width = config.integer("index_n_heads"), config.integer("index_head_dim")
    queries = Weight(
        name="indexer.q_b_proj", shape=(config.integer("q_lora_rank"), number * width), role="attention"
    )
    heads = Weight(name="indexer.weights_proj", shape=(hidden, number), role="attention")
    return Indexer(
        num_heads=number,
        head_dim=width,
        topk=config.integer("index_topk"),
        weights=(queries, heads, *_poolers("indexer", hidden, width, ratio, 2)),
    )


def _compressor(config: Config, layer: int, hidden: int, width: int) -> Compressor | None:
    """Return the compressor of a layer: overlapping and indexed, or heavy and read whole."""
    kind = _kind(config, layer)
    if kind == "sliding_attention":
        return None
    ratio, indexed = _ratio(config, kind), kind == "compressed_sparse_attention"
    overlap = 2 if indexed else 1
    return Compressor(
        ratio=ratio,
        head_dim=width,
        overlap=overlap,
        index=_indexer(config, hidden, ratio) if indexed else None,
        weights=_poolers("compressor", hidden, width, ratio, overlap),
    )


def _mixers(config: Config, layer: int) -> tuple[CompressedAttention, ...]:
    """Return a layer's attention, whose one KV head is key and value of every query head."""
    hidden, n, width = (config.integer(k) for k in ("hidden_size", "num_attention_heads", "head_dim"))
    groups = config.integer("o_groups")
    if n * width % groups:
        config.fail("o_groups", f"{groups} does not divide {n * width} columns of {n} heads")
    return (
        CompressedAttention(
            hidden_size=hidden,
            num_heads=n,
            head_dim=width,
            q_lora_rank=config.integer("q_lora_rank"),
            o_groups=groups,
            o_lora_rank=config.integer("o_lora_rank"),
            reach=Sliding(size=config.integer("sliding_window")),
            compressor=_compressor(config, layer, hidden, width),
            extras=(vector("sinks", n, split=n),),
        ),
    )


def _ffns(config: Config, layer: int) -> tuple[FFN, ...]:
    """Return the experts; the first layers choose them by token id, from a table that is no parameter."""
    types = config.array("mlp_layer_types", str)
    if types is not None and set(types) - {"hash_moe", "moe"}:
        config.fail("mlp_layer_types", "names an MLP that this family does not have")
    if config.integer("n_shared_experts") != 1:
        config.fail("n_shared_experts", "is not 1, and this family's class has one whatever is said")
    number = ("n_routed_experts", "num_local_experts")
    return experts(number=number, shared=shared_experts(), shared_bias="mlp_bias")(config, layer)


def hyper_connections(config: Config, outputs: int, scales: int) -> tuple[Weight, ...]:
    """Return what mixes the residual streams around attention and around the experts."""
    hidden, streams = config.integer("hidden_size"), config.integer("hc_mult")
    return (
        vector("hc.fn", outputs, streams * hidden, count=2),
        vector("hc.base", outputs, count=2),
        vector("hc.scale", scales, count=2),
    )


def hyper_head(config: Config) -> tuple[Weight, ...]:
    """Return what sums the residual streams before the head."""
    hidden, streams = config.integer("hidden_size"), config.integer("hc_mult")
    return (
        vector("hc_head.fn", streams, streams * hidden),
        vector("hc_head.base", streams),
        vector("hc_head.scale", 1),
    )


def _streams(config: Config, layer: int) -> tuple[Weight, ...]:
    """Return V4's connections: to read, to write, and a square matrix between the streams."""
    streams = config.integer("hc_mult")
    return hyper_connections(config, (2 + streams) * streams, 3)


DEEPSEEK_V4 = Family(
    mixers=_mixers,
    ffns=_ffns,
    layer_extras=_streams,
    final_extras=hyper_head,
    # One key serves all heads whatever num_key_value_heads says; MTP blocks run only when speculating.
    meaningless=frozenset(
        {
            "attention_bias",
            "num_hash_layers",
            "num_key_value_heads",
            "num_nextn_predict_layers",
            "qk_rope_head_dim",
        }
    ),
)

FAMILIES = {"deepseek_ref": DEEPSEEK_V4, "deepseek_v4": DEEPSEEK_V4}
