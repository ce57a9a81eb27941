"""Bytes per element of every storage format, as whole blocks, so that block-scaled formats are exact."""

from __future__ import annotations

import difflib

from kvroof.ground.errors import BadInput
from kvroof.ground.numeric import whole_blocks
from kvroof.ground.record import record, static


@record
class Dtype:
    """A storage format: `block_bytes` for every `block_elements` elements of a row.

    `compute` names the arithmetic in which a matrix of this format is multiplied when the chip has
    it; a weight-only format is de-quantised and computes at the activation's rate (`compute` None).
    """

    name: str = static()
    block_elements: int
    block_bytes: int
    compute: str | None = static(default=None)

    def row_bytes(self, elements: int) -> int:
        """Return the bytes of one contiguous row of `elements`; a part-filled block counts whole."""
        return whole_blocks(elements, self.block_elements) * self.block_bytes


def _plain(name: str, size: int, compute: str | None = None) -> Dtype:
    return Dtype(name=name, block_elements=1, block_bytes=size, compute=compute or name)


def _blocked(name: str, elements: int, size: int, compute: str | None = None) -> Dtype:
    return Dtype(name=name, block_elements=elements, block_bytes=size, compute=compute)


# Source of the block formats: ggml's block_q8_0, block_q4_0, ... structs; OCP MX v1.0 (mxfp4: 32
# elements and one 8-bit scale); NVFP4: 16 elements and one fp8 scale.
_ALL = (
    _plain("fp32", 4),
    _plain("bf16", 2),
    _plain("fp16", 2),
    _plain("fp8", 1),
    _plain("int8", 1),
    _blocked("int4", 2, 1),
    _blocked("fp4", 2, 1, "fp4"),
    _blocked("mxfp4", 32, 17),
    _blocked("nvfp4", 16, 9, "fp4"),
    _blocked("q8_0", 32, 34),
    _blocked("q5_1", 32, 24),
    _blocked("q5_0", 32, 22),
    _blocked("q4_1", 32, 20),
    _blocked("q4_0", 32, 18),
    _blocked("iq4_nl", 32, 18),
)
DTYPES = {dtype.name: dtype for dtype in _ALL}
_ALIASES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "f16": "fp16",
    "float32": "fp32",
    "float": "fp32",
    "f32": "fp32",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    "w8a8": "int8",
}


def parse_dtype(text: str, where: str | None = None) -> Dtype:
    """Return the storage format called `text` in kvroof's, torch's or llama.cpp's spelling.

    Raises:
        BadInput: No such format; the closest names are the way out.
    """
    name = text.strip().lower().removeprefix("torch.")
    name = _ALIASES.get(name, name)
    if name in DTYPES:
        return DTYPES[name]
    near = difflib.get_close_matches(name, [*DTYPES, *_ALIASES], n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(DTYPES)}"
    raise BadInput(f"{text!r} is not a known dtype", where=where, way_out=hint)
