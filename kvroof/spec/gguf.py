"""How llama.cpp stores a model in a GGUF file of one type: which tensors it quantises, and into what.

Source: `llama_tensor_get_type` and `llama_model_quantize_impl` of llama.cpp; ggml's `block_q6_K`, 210 bytes
of 256 elements. An importance matrix, and IQ4_NL for a few layers, use some more bits (1 to 2 %).
"""

from __future__ import annotations

from kvroof.ground.dtypes import DTYPES, Dtype
from kvroof.spec.architecture import Architecture
from kvroof.spec.ffn import MoE
from kvroof.spec.weights import Format, StoredAs, WeightFormats

GGUF_TYPES = ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
Q6_K = Dtype(name="q6_k", block_elements=256, block_bytes=210)
_WHOLE = ("vector", "router", "embed_positions")
"""What stays fp32: norms, biases, convolutions, routers, learned positions."""
_WIDER_KV_EXPERTS = 8
"""With as many experts keys' and values' projections are stored in q8_0."""


def gguf_formats(dtype: Dtype, model: Architecture) -> WeightFormats:
    """Return the formats of a file of type `dtype`: all matrices in it, the head in more bits.

    A tied embedding is stored as the head would be.
    """
    stored = dict.fromkeys(_WHOLE, DTYPES["fp32"])
    read_as_head = ("lm_head", "embed_tokens") if model.tied else ("lm_head",)
    stored |= dict.fromkeys(read_as_head, _head(dtype, model))
    ffns = (ffn for group in model.layers for ffn in group.layer.ffns)
    if any(isinstance(ffn, MoE) and ffn.num_experts == _WIDER_KV_EXPERTS for ffn in ffns):
        stored |= dict.fromkeys(("k_proj", "v_proj"), DTYPES["q8_0"])
    return WeightFormats(
        name=dtype.name,
        default=Format(dtype=dtype),
        exceptions=tuple(StoredAs(what=what, format=Format(dtype=kind)) for what, kind in stored.items()),
    )


def _head(dtype: Dtype, model: Architecture) -> Dtype:
    """Return the type of the output matrix: q8_0 for Falcon and where rows do not fill blocks of q6_K."""
    whole = model.lm_head.shape[0] % Q6_K.block_elements == 0
    return Q6_K if dtype.name != "q8_0" and model.model_type != "falcon" and whole else DTYPES["q8_0"]
