"""Partial offload: layers, routed experts or the cache in host memory, as llama.cpp users run it."""

from __future__ import annotations

from dataclasses import replace

from kvroof.ground.errors import BadInput
from kvroof.spec.architecture import Architecture, HostPart, Layer, stack
from kvroof.spec.parallel import ALONE, Layout
from kvroof.spec.params import layer_bytes
from kvroof.spec.weights import WeightFormats


def offload(model: Architecture, *, layers: int = 0, experts: bool = False, kv: bool = False) -> Architecture:
    """Return `model` with its first `layers`, all routed experts, or the whole cache in host memory.

    Raises:
        BadInput: More layers than there are.
    """
    if not 0 <= layers <= model.num_layers:
        raise BadInput(f"{layers} is not between 0 and {model.num_layers} layers", where="--offload-layers")
    asked: tuple[tuple[HostPart, bool], ...] = (("experts", experts), ("kv", kv))
    parts = tuple(part for part, wanted in asked if wanted)
    marked: list[Layer] = []
    for index, group in enumerate(model.order):
        layer = model.layers[group].layer
        marked.append(replace(layer, on_host=("layer",) if index < layers else parts))
    groups, order = stack(marked)
    return replace(model, layers=groups, order=order)


def host_weight_bytes(
    model: Architecture, formats: WeightFormats | None = None, layout: Layout = ALONE
) -> int:
    """Return the bytes of one rank's weights that live in host memory."""
    return sum(
        group.count
        * layer_bytes(model, group.layer, formats, layout, experts_only="layer" not in group.layer.on_host)
        for group in model.layers
        if "layer" in group.layer.on_host or "experts" in group.layer.on_host
    )


def cached_on_device(model: Architecture) -> Architecture:
    """Return `model` with only the layers whose cache lives in device memory."""
    return _layers_where(model, on_host=False)


def cached_on_host(model: Architecture) -> Architecture:
    """Return `model` with only the layers whose cache lives in host memory."""
    return _layers_where(model, on_host=True)


def _layers_where(model: Architecture, on_host: bool) -> Architecture:
    kept = tuple(
        group
        for group in model.layers
        if ("layer" in group.layer.on_host or "kv" in group.layer.on_host) is on_host
    )
    return model if len(kept) == len(model.layers) else replace(model, layers=kept)
