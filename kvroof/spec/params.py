"""Sums over a model's weights: the parameter count, the bytes, the active share. One list for all three."""

from __future__ import annotations

from collections.abc import Iterator

from kvroof.ground.dtypes import DTYPES, parse_dtype
from kvroof.ground.numeric import ceil_div
from kvroof.spec.architecture import Architecture, Layer
from kvroof.spec.ffn import MoE
from kvroof.spec.weights import Weight, WeightFormats, stored_as


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


def weight_bytes(model: Architecture, formats: WeightFormats | None = None, tp: int = 1) -> int:
    """Return the bytes of all weights on the fullest of `tp` ranks; each rank holds the towers whole.

    Args:
        model: The model.
        formats: Storage by role; the checkpoint's own where None.
        tp: Tensor-parallel ranks.
    """
    if formats is None and model.checkpoint_bytes is not None:
        return model.checkpoint_bytes if tp == 1 else _scaled(model, model.checkpoint_bytes, tp)
    return _counted(model, formats, tp)


def layer_bytes(
    model: Architecture, layer: Layer, formats: WeightFormats | None, tp: int, *, experts_only: bool
) -> int:
    """Return the weight bytes of one layer on one of `tp` ranks, or of its routed experts alone."""
    chosen = formats or layer.formats or model.formats
    return sum(
        chosen.of(weight).stored_bytes(weight, tp)
        for weight in layer.own_weights
        if weight.role == "expert" or not experts_only
    )


def _counted(model: Architecture, formats: WeightFormats | None, tp: int) -> int:
    decoder = sum(
        (formats or own).of(weight).stored_bytes(weight, tp) * layers
        for weight, layers, own in stored_weights(model)
    )
    return decoder + sum(DTYPES[model.dtype].row_bytes(tower.params) for tower in model.towers)


def _scaled(model: Architecture, checkpoint_bytes: int, tp: int) -> int:
    """Return the rank's share of a checkpoint: by headers in all, divided as the count divides."""
    return ceil_div(checkpoint_bytes * _counted(model, None, tp), _counted(model, None, 1))


def parse_formats(text: str, model: Architecture, where: str = "--weights-dtype") -> WeightFormats | None:
    """Return the storage of the weights that a dtype asks for, None for `auto`: the checkpoint's own.

    Raises:
        BadInput: No such dtype.
    """
    if text == "auto":
        return None
    return stored_as(parse_dtype(text, where), DTYPES[model.dtype])
