"""How a checkpoint stores its weights, read from `quantization_config`.

Sources: vLLM's and transformers' quantizer configs (`fp8` with `weight_block_size`, `mxfp4`); one
fp32 scale per fp8 block, one 8-bit scale per 32 mxfp4 elements.
"""

from __future__ import annotations

from kvroof.catalog.config import Config
from kvroof.ground.dtypes import DTYPES, Dtype, parse_dtype
from kvroof.ground.errors import Unsupported
from kvroof.spec.weights import LAYER_MATRICES, Format, WeightFormats, quantised, unquantised

FP32_BYTES = 4


def read_formats(root: Config, dtype: Dtype) -> WeightFormats:
    """Return the storage format of each role of weight; `dtype` is what is not quantised.

    Raises:
        Unsupported: A method that is not known; its bytes are not guessed.
    """
    config = root.child("quantization_config")
    if config is None:
        return unquantised(dtype)
    method = config.text("quant_method")
    if method == "fp8":
        block = config.array("weight_block_size", int)
        scale = (block[0], block[1]) if block and len(block) == 2 else None
        fp8 = Format(dtype=DTYPES["fp8"], scale_block=scale, scale_bytes=FP32_BYTES if scale else 0)
        return quantised("fp8", fp8, dtype, LAYER_MATRICES)
    if method == "mxfp4":
        return quantised("mxfp4", Format(dtype=DTYPES["mxfp4"]), dtype, ("expert",))
    raise Unsupported(
        f"quantization method {method!r} is not understood",
        where=root.where,
        key="quantization_config.quant_method",
        way_out="give the storage by hand with --weights-dtype and --ignore-key quantization_config",
    )


def stored_dtype(root: Config, text: Config) -> Dtype:
    """Return the dtype of what is not quantised: the config's, else bf16."""
    name = root.text("torch_dtype", "") or text.text("torch_dtype", "") or "bf16"
    return parse_dtype(name, root.where)
