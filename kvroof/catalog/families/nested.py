"""Decoders that are only found inside multimodal models, where they are not a known family as it stands."""

from __future__ import annotations

from dataclasses import replace

from kvroof.catalog.config import Config
from kvroof.catalog.families.blocks import head_shape, heads
from kvroof.catalog.families.encoder_decoder import attend
from kvroof.catalog.families.family import Family
from kvroof.catalog.families.moe import QWEN3_VL_MOE, used_window
from kvroof.spec.attention import GroupedAttention
from kvroof.spec.weights import Weight, vector

MLLAMA_IMAGE_ROWS = 8
"""Rows of the token table after the vocabulary, for image tokens; the head has none."""


def _crosses(config: Config, layer: int) -> bool:
    """Return whether a layer looks at the image instead of at earlier tokens."""
    crossing = config.array("cross_attention_layers", int)
    if crossing is None:
        config.fail("cross_attention_layers", "missing, and it decides which layers cache tokens")
    return layer in crossing


def _mllama_mixers(config: Config, layer: int) -> tuple[GroupedAttention, ...]:
    """Return Llama's attention, or a cross-attention with normed queries and keys."""
    if not _crosses(config, layer):
        return heads()(config, layer)
    n, m, width, _ = head_shape(config, None)
    norms = (vector("q_norm", width), vector("k_norm", width))
    return (attend(config, n, width, cross=True, kv_heads=m, extras=norms),)


def _gates(config: Config, layer: int) -> tuple[Weight, ...]:
    """Return the gates of a layer that looks at the image, on its attention and on its MLP."""
    return (vector("cross_attn_gates", 2),) if _crosses(config, layer) else ()


def _image_rows(config: Config) -> tuple[Weight, ...]:
    shape = (MLLAMA_IMAGE_ROWS, config.integer("hidden_size"))
    return (Weight(name="embed_tokens.image", shape=shape, role="embedding"),)


MLLAMA = Family(mixers=_mllama_mixers, layer_extras=_gates, embedding_extras=_image_rows)
GLM4V = Family(mixers=heads(qkv_bias=True), norms=4, meaningless=frozenset({"attention_bias"}))
GLM_OCR = Family(mixers=heads(), norms=4, meaningless=frozenset({"attention_bias"}))
QWEN3_OMNI = replace(
    QWEN3_VL_MOE,
    mixers=heads(qk_norm="head", qkv_bias="attention_bias", o_bias="attention_bias", reach=used_window),
)

FAMILIES = {
    "glm4v_text": GLM4V,
    "glm_ocr_text": GLM_OCR,
    "mllama_text_model": MLLAMA,
    "qwen3_omni_moe_text": QWEN3_OMNI,
}
