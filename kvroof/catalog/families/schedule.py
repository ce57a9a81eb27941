"""Which layers of a mixture-of-experts model have experts, and which a dense MLP."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from kvroof.catalog.config import Config
from kvroof.catalog.families.blocks import mlp
from kvroof.catalog.families.family import FFNsOf
from kvroof.spec.ffn import FFN

Sparse: TypeAlias = Callable[[Config, int], bool]

SCHEDULE_KEYS = frozenset(
    {"first_k_dense_replace", "moe_layer_freq", "mlp_only_layers", "decoder_sparse_step", "num_dense_layers"}
)
"""What a list of MLP types overrules."""

EXPERT_KEYS = frozenset(
    """
    moe_intermediate_size moe_k moe_num_experts moe_num_shared_experts moe_topk n_routed_experts
    n_shared_experts num_experts num_experts_per_tok num_local_experts num_shared_experts
    shared_expert_intermediate_size
    """.split()
)
"""What a layer without experts does not read, and a file whose layers all have none still says."""


def every(config: Config, layer: int) -> bool:
    """Return that every layer has experts."""
    return True


def after(first: int | None = None, key: str = "first_k_dense_replace") -> Sparse:
    """Return experts from layer `key` on, `first` where the class says so, on every `moe_layer_freq`-th."""

    def sparse(config: Config, layer: int) -> bool:
        start = config.integer(key, minimum=0) if first is None else config.integer(key, first, minimum=0)
        return _in_frequency(config, layer) and layer >= start

    return sparse


def _in_frequency(config: Config, layer: int) -> bool:
    if isinstance(config.data.get("moe_layer_freq"), list):
        return bool(flags(config, "moe_layer_freq")[layer])
    return layer % config.integer("moe_layer_freq", 1) == 0


def flags(config: Config, key: str) -> list[int]:
    """Return a required list with a 0 or a 1 for each layer."""
    found = config.array(key, int, config.integer("num_hidden_layers"))
    if found is None:
        config.fail(key, "missing, and it decides the size")
    for value in found:
        if value not in (0, 1):
            config.fail(key, f"holds {value}, not 0 or 1")
    return found


def stepped(config: Config, layer: int) -> bool:
    """Return experts every `decoder_sparse_step` layers, except on `mlp_only_layers` (Qwen)."""
    dense = config.array("mlp_only_layers", int) or []
    return layer not in dense and (layer + 1) % config.integer("decoder_sparse_step", 1) == 0


def listed_mlps(default: Sparse) -> Sparse:
    """Return what `mlp_layer_types` lists, or `default` where the file leaves the list out."""

    def sparse(config: Config, layer: int) -> bool:
        types = config.array("mlp_layer_types", str, config.integer("num_hidden_layers"))
        if types is None:
            return default(config, layer)
        config.read_nothing(SCHEDULE_KEYS)
        if types[layer] not in ("dense", "sparse"):
            config.fail("mlp_layer_types", f"{types[layer]!r} is neither dense nor sparse")
        return bool(types[layer] == "sparse")

    return sparse


def mixed(sparse: Sparse, experts: FFNsOf, dense: FFNsOf | None = None) -> FFNsOf:
    """Return `experts` on the layers that are `sparse`, and a dense MLP on the others."""
    otherwise = mlp() if dense is None else dense

    def read(config: Config, layer: int) -> tuple[FFN, ...]:
        config.read_nothing(EXPERT_KEYS)
        return experts(config, layer) if sparse(config, layer) else otherwise(config, layer)

    return read


def shared_experts(count: str = "n_shared_experts", *widths: str) -> Callable[[Config], int | None]:
    """Return the width of the shared experts, which run as one MLP: `count` times the width of one.

    That is the first of the keys `widths` that is there, `moe_intermediate_size` where none are given.
    """
    keys = widths or ("moe_intermediate_size",)

    def read(config: Config) -> int | None:
        number = config.integer(count, 0, minimum=0)
        width = next((key for key in keys if config.has(key)), keys[-1])
        return number * config.integer(width) if number else None

    return read
