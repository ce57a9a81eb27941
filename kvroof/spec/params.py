"""Sums over a model's weights: the parameter count, the bytes, the active share. One list for all three."""

from __future__ import annotations

from collections.abc import Iterator

from kvroof.ground.dtypes import DTYPES, parse_dtype
from kvroof.ground.numeric import ceil_div
from kvroof.spec.architecture import Architecture, Layer
from kvroof.spec.ffn import MoE
from kvroof.spec.gguf import GGUF_TYPES, gguf_formats
from kvroof.spec.parallel import ALONE, Layout
from kvroof.spec.weights import (
    ADAPTED,
    Weight,
    WeightFormats,
    in_features,
    out_features,
    stored_as,
)


def stored_weights(model: Architecture) -> Iterator[tuple[Weight, int, WeightFormats]]:
    """Yield each weight of the decoder, how many layers hold one like it, and how it is stored.

    A tied head stores none.
    """
    for weight in (*model.embedding, *model.final, *model.shared):
        yield weight, 1, model.formats
    if not model.tied:
        yield model.lm_head, 1, model.formats
    for group in model.layers:
        formats = group.layer.formats or model.formats
        for weight in group.layer.own_weights:
            yield weight, group.count, formats


def params_total(model: Architecture) -> int:
    """Return every parameter that occupies memory: decoder and towers; a tied head counts once."""
    decoder = sum(weight.elements * layers for weight, layers, _ in stored_weights(model))
    return decoder + sum(tower.params for tower in model.towers)


def params_embedding(model: Architecture) -> int:
    """Return the parameters of the input embedding, which a token looks up instead of multiplying."""
    return sum(weight.elements for weight in model.embedding)


def params_active(model: Architecture) -> int:
    """Return the parameters one text token runs through.

    Convention: routed experts by `num_experts_per_tok`, everything else of the decoder whole, the
    input embedding included; towers are not. The idle experts of a mixture of attentions are not.
    """
    idle = sum(
        group.count * (sum(w.elements for w in ffn.weights) - ffn.active_elements)
        for group in model.layers
        for ffn in group.layer.ffns
        if isinstance(ffn, MoE)
    )
    idle += sum(
        group.count * weight.elements
        for group in model.layers
        for mixer in group.layer.mixers
        for weight in mixer.weights
        if weight.role == "expert"
    )
    return params_total(model) - sum(tower.params for tower in model.towers) - idle


def weight_bytes(model: Architecture, formats: WeightFormats | None = None, layout: Layout = ALONE) -> int:
    """Return the bytes of all weights of a stage on its fullest rank; each rank holds the towers whole.

    Args:
        model: The model.
        formats: Storage by role; the checkpoint's own where None.
        layout: Ranks that divide the weights among themselves.
    """
    if formats is None and model.checkpoint_bytes is not None:
        whole = layout.stage_ranks == 1
        return model.checkpoint_bytes if whole else _scaled(model, model.checkpoint_bytes, layout)
    return _counted(model, formats, layout)


def layer_bytes(
    model: Architecture, layer: Layer, formats: WeightFormats | None, layout: Layout, *, experts_only: bool
) -> int:
    """Return the weight bytes of one layer on its fullest rank, or of its routed experts alone."""
    chosen = formats or layer.formats or model.formats
    return sum(
        layout.stored_bytes(weight, chosen.of(weight))
        for weight in layer.own_weights
        if weight.role == "expert" or not experts_only
    )


def _counted(model: Architecture, formats: WeightFormats | None, layout: Layout) -> int:
    decoder = sum(
        layout.stored_bytes(weight, (formats or own).of(weight)) * layers
        for weight, layers, own in stored_weights(model)
    )
    return decoder + sum(DTYPES[model.dtype].row_bytes(tower.params) for tower in model.towers)


def _scaled(model: Architecture, checkpoint_bytes: int, layout: Layout) -> int:
    """Return the rank's share of a checkpoint: by headers in all, divided as the count divides."""
    return ceil_div(checkpoint_bytes * _counted(model, None, layout), _counted(model, None, ALONE))


def adapted_weights(layer: Layer) -> tuple[Weight, ...]:
    """Return the matrices of a layer that have a LoRA adapter each."""
    parts = (*layer.mixers, *layer.ffns)
    every = (weight for part in parts for weight in part.weights)
    return tuple(w for w in every if w.role in ADAPTED and len(w.shape) == 2 and w.count == 1)


def adapter_sides(layer: Layer, tp: int = 1) -> int:
    """Return the features in and out of a layer's adapted matrices on one rank, `rank` parameters each.

    An adapter's matrix beside a divided side is divided with it, the other one is whole. Gate and up matrix
    have an adapter each.
    """
    return sum(
        in_features(w, tp) * (2 if w.name.endswith("gate_up_proj") else 1) + out_features(w, tp)
        for w in adapted_weights(layer)
    )


def parse_formats(text: str, model: Architecture, where: str = "--weights-dtype") -> WeightFormats | None:
    """Return the storage of the weights that a dtype asks for, None for `auto`: the checkpoint's own.

    Raises:
        BadInput: No such dtype.
    """
    if text == "auto":
        return None
    dtype = parse_dtype(text, where)
    return gguf_formats(dtype, model) if dtype.name in GGUF_TYPES else stored_as(dtype, DTYPES[model.dtype])
