"""Which dtype keys and values are cached in, and how many bytes that makes of a token."""

from __future__ import annotations

from kvroof.ground.dtypes import DTYPES, Dtype, parse_dtype
from kvroof.ground.errors import Unsupported
from kvroof.ground.numeric import exact_div, maximum, minimum, shared_by
from kvroof.ground.record import record, static
from kvroof.spec.architecture import Architecture
from kvroof.spec.cache import Cache, State

PACKED_ROWS = {576: 656, 512: 584}
"""Bytes of a packed fp8 row by the elements of a latent entry, as the sparse-attention kernels lay it out.

576 (DeepSeek-V3.2): 512 fp8, four fp32 scales, 64 bf16 rotary. 512 (DeepSeek-V4): 448 fp8, 64 bf16
rotary, seven one-byte scales and a byte of padding. Source: FlashMLA's and vLLM's `fp8_ds_mla`.
"""


@record
class KVFormat:
    """The dtypes of cached keys and values, which llama.cpp lets differ.

    Beside each head's row stand `k_scale_bytes` and `v_scale_bytes`. An index key is stored like a key
    unless `index` names its dtype. `packed` rows mix dtypes and exist for latent attention only.
    """

    k: Dtype
    v: Dtype
    k_scale_bytes: int = 0
    v_scale_bytes: int = 0
    index: Dtype | None = None
    packed: bool = static(default=False)

    @property
    def name(self) -> str:
        """The dtype's name, or the pair `K/V`."""
        return self.k.name if self.k.name == self.v.name else f"{self.k.name}/{self.v.name}"

    def token_bytes(self, cache: Cache, tp: int = 1) -> int:
        """Return the bytes of one token's entry in one layer, on one of `tp` ranks.

        KV heads shard over the ranks; with fewer heads than ranks each head is held more than once.

        Raises:
            Unsupported: A packed row of a width that no kernel has.
        """
        index = self.index_bytes(cache)
        if self.packed:
            return _packed_row(self.k.name, cache) + index
        shards = shared_by(tp, cache.split)
        k, v = exact_div(cache.k_width, shards), exact_div(cache.v_width, shards)
        return self.k.row_bytes(k) + self.v.row_bytes(v) + index + self._scales(cache, shards)

    def index_bytes(self, cache: Cache) -> int:
        """Return the bytes of the index key in a token's entry; every rank holds it whole."""
        return (self.k if self.index is None else self.index).row_bytes(cache.index_width)

    def _scales(self, cache: Cache, shards: int) -> int:
        """Return the bytes of the scales that stand beside each head's row; 0 for most formats."""
        each = self.k_scale_bytes + self.v_scale_bytes * minimum(cache.v_width, 1)
        return exact_div(cache.split, shards) * each


def _packed_row(name: str, cache: Cache) -> int:
    if cache.v_width or cache.k_width not in PACKED_ROWS:
        raise Unsupported(
            f"{name} rows exist for latents of {' and '.join(map(str, sorted(PACKED_ROWS)))} elements, not"
            f" for {cache.kind} layers of {cache.k_width + cache.v_width}",
            where="--kv-dtype",
            way_out="use fp8 or bf16",
        )
    return PACKED_ROWS[cache.k_width]


@record
class StateFormat:
    """The dtypes of a fixed state, and whether a convolution keeps all its columns.

    Hugging Face keeps `d_conv` columns in the model's dtype and the recurrence in fp32; engines keep one
    column fewer (`dropped_columns` 1), and one more for each token they draft (`drafted_columns`).
    """

    conv: Dtype = DTYPES["bf16"]
    recurrent: Dtype = DTYPES["fp32"]
    dropped_columns: int = 0
    drafted_columns: int = 0

    def columns(self, state: State) -> int:
        """Return the columns that a convolution keeps."""
        kept = state.conv_kernel - maximum(self.dropped_columns, state.dropped_columns)
        return maximum(kept, 0) + self.drafted_columns

    def state_bytes(self, state: State, tp: int = 1) -> int:
        """Return the bytes that one sequence holds in one layer, on one of `tp` ranks."""
        shards = shared_by(tp, state.split)
        channels = exact_div(state.conv_channels - state.conv_replicated, shards) + state.conv_replicated
        recurrent = self.conv if state.in_model_dtype else self.recurrent
        return self.conv.row_bytes(channels * self.columns(state)) + recurrent.row_bytes(
            exact_div(state.recurrent_elements, shards)
        )


def parse_kv_format(text: str, model: Architecture, where: str = "--kv-dtype") -> KVFormat:
    """Return the KV format called `text`: a dtype, a pair `K/V`, an engine's own format, or `auto`.

    `auto` follows what the checkpoint says of its KV cache, and only that, else bf16: fp8 weights do
    not make an fp8 cache.

    Raises:
        BadInput: No such dtype.
    """
    if text == "auto":
        text = model.kv_dtype or "bf16"
    if text.strip().lower() == FP8_PACKED.name:
        return FP8_PACKED
    k, slash, v = text.partition("/")
    first = _scaled(k, where)
    second = _scaled(v, where) if slash else first
    return KVFormat(k=first[0], v=second[0], k_scale_bytes=first[1], v_scale_bytes=second[1])


def _scaled(text: str, where: str) -> tuple[Dtype, int]:
    """Return the dtype of `text`, and the bytes of the scale beside each head's row."""
    name = text.strip().lower()
    if name in HEAD_SCALED:
        return Dtype(name=name, block_elements=1, block_bytes=1), HEAD_SCALED[name]
    return parse_dtype(text, where), 0


HEAD_SCALED = {"int8_per_token_head": 4, "fp8_per_token_head": 4, "q8_kv": 8}
"""One byte per value and one scale per token and head: vLLM's formats with fp32 scales, ik_llama.cpp's."""

HF_STATE = StateFormat()
BF16_KV = KVFormat(k=DTYPES["bf16"], v=DTYPES["bf16"])
INDEX_ROW = Dtype(name="fp8+scale", block_elements=128, block_bytes=132)
"""An index key as engines store it: 128 fp8 values and one fp32 scale."""
_PACKED = Dtype(name="fp8_ds_mla", block_elements=1, block_bytes=1)
FP8_PACKED = KVFormat(k=_PACKED, v=_PACKED, index=INDEX_ROW, packed=True)
