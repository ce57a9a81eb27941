"""Sparse latent attention with an output gate: A.X-K2's gated norms, Hunyuan-V4's residual streams."""

from __future__ import annotations

from dataclasses import replace

from kvroof.catalog.config import Config
from kvroof.catalog.families.deepseek_v4 import hyper_connections, hyper_head
from kvroof.catalog.families.family import Family
from kvroof.catalog.families.mla import DECOYS, DEEPSEEK_EXPERTS, low_rank, scored_by, sparse_layer
from kvroof.catalog.families.schedule import after, listed_mlps, mixed
from kvroof.spec.attention import LatentAttention
from kvroof.spec.weights import Weight, vector

_SPARSE = listed_mlps(after(1))


def _axk2_mixers(config: Config, layer: int) -> tuple[LatentAttention, ...]:
    """Return A.X-K2's attention: one fused matrix reads the query's latent twice and adds a gate."""
    (mixer,) = sparse_layer(config, layer, full=True)
    n, rank = mixer.num_heads, config.integer("q_lora_rank")
    queries = n * (mixer.qk_nope_head_dim + mixer.qk_rope_head_dim)
    gate = (
        Weight(name="q_gate_proj.residual", shape=(rank, queries), split=n, role="attention"),
        Weight(name="q_gate_proj.gate", shape=(2 * rank, n * mixer.v_head_dim), split=n, role="attention"),
    )
    return (replace(mixer, extras=mixer.extras + gate),)


def _axk2_norms(config: Config, layer: int) -> tuple[Weight, ...]:
    """Return the low-rank gates of the norms: before attention, and before experts."""
    hidden, rank = config.integer("hidden_size"), config.integer("gated_norm_rank")
    count = 2 if _SPARSE(config, layer) else 1
    return (
        Weight(name="norm_gate.fc1", shape=(hidden, rank), count=count, role="attention"),
        Weight(name="norm_gate.fc2", shape=(rank, hidden), count=count, role="attention"),
    )


AXK2 = Family(
    mixers=_axk2_mixers,
    ffns=mixed(_SPARSE, DEEPSEEK_EXPERTS),
    layer_extras=_axk2_norms,
    meaningless=DECOYS,
)


def _hunyuan_index(config: Config, layer: int) -> bool:
    """Return whether a layer has an indexer: listed, else the first and every fourth after it."""
    types = config.array("indexer_types", str, config.integer("num_hidden_layers"))
    if types is None:
        return layer == 0 or (layer - 1) % 4 == 0
    if types[layer] not in ("full", "shared") or types[0] != "full":
        config.fail("indexer_types", "is not a list of full and shared layers that starts with a full one")
    return bool(types[layer] == "full")


def _hunyuan_mixers(config: Config, layer: int) -> tuple[LatentAttention, ...]:
    """Return Hunyuan-V4's attention, with a gate on its output and one sink per head."""
    (mixer,) = low_rank(config, layer)
    n = mixer.num_heads
    gate = Weight(
        name="gate_proj", shape=(mixer.hidden_size, n * mixer.v_head_dim), split=n, role="attention"
    )
    extras = (*mixer.extras, gate, vector("sinks", n, split=n))
    return (scored_by(replace(mixer, extras=extras), config, _hunyuan_index(config, layer)),)


def _hunyuan_streams(config: Config, layer: int) -> tuple[Weight, ...]:
    """Return Hunyuan-V4's connections: to read the residual streams and to write them."""
    return hyper_connections(config, 2 * config.integer("hc_mult"), 2)


HY_V4 = Family(
    mixers=_hunyuan_mixers,
    ffns=mixed(_SPARSE, DEEPSEEK_EXPERTS),
    layer_extras=_hunyuan_streams,
    final_extras=hyper_head,
    meaningless=DECOYS | {"layer_types"},
)

FAMILIES = {"axk2": AXK2, "hy_v4": HY_V4}
