"""Which family a `model_type` belongs to. A new one is declared in a module here, in its `FAMILIES`."""

from __future__ import annotations

from kvroof.catalog.families import (
    classic,
    encoder_decoder,
    gemma,
    linear_attention,
    llama_like,
    mla,
    moe,
    nested,
    per_layer,
    recurrent_only,
    remote,
    state_space,
    zamba,
)
from kvroof.catalog.families.family import Decoder, Family, build

FAMILIES: dict[str, Family] = {
    **classic.FAMILIES,
    **encoder_decoder.FAMILIES,
    **gemma.FAMILIES,
    **linear_attention.FAMILIES,
    **llama_like.FAMILIES,
    **mla.FAMILIES,
    **moe.FAMILIES,
    **nested.FAMILIES,
    **per_layer.FAMILIES,
    **recurrent_only.FAMILIES,
    **remote.FAMILIES,
    **state_space.FAMILIES,
    **zamba.FAMILIES,
}

__all__ = ["FAMILIES", "Decoder", "Family", "build"]
