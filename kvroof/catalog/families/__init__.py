"""Which family a `model_type` belongs to. A new one is declared in a module here, in its `FAMILIES`."""

from __future__ import annotations

from kvroof.catalog.families import (
    classic,
    deepseek_v4,
    encoder_decoder,
    gated_mla,
    gemma,
    linear_attention,
    llama_like,
    mla,
    moe,
    moe_remote,
    nested,
    per_layer,
    recurrent_only,
    remote,
    sparse,
    state_space,
    zamba,
)
from kvroof.catalog.families.family import Decoder, Family, build

FAMILIES: dict[str, Family] = {
    **classic.FAMILIES,
    **deepseek_v4.FAMILIES,
    **encoder_decoder.FAMILIES,
    **gated_mla.FAMILIES,
    **gemma.FAMILIES,
    **linear_attention.FAMILIES,
    **llama_like.FAMILIES,
    **mla.FAMILIES,
    **moe.FAMILIES,
    **moe_remote.FAMILIES,
    **nested.FAMILIES,
    **per_layer.FAMILIES,
    **recurrent_only.FAMILIES,
    **remote.FAMILIES,
    **sparse.FAMILIES,
    **state_space.FAMILIES,
    **zamba.FAMILIES,
}

__all__ = ["FAMILIES", "Decoder", "Family", "build"]
