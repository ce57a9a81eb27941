"""Which dtype keys and values are cached in, and how many bytes that makes of a token."""

from __future__ import annotations

from kvroof.ground.dtypes import DTYPES, Dtype, parse_dtype
from kvroof.ground.numeric import exact_div, maximum, minimum
from kvroof.ground.record import record
from kvroof.spec.architecture import Architecture
from kvroof.spec.cache import Cache, State


@record
class KVFormat:
    """The dtypes of cached keys and values, which llama.cpp lets differ."""

    k: Dtype
    v: Dtype

    @property
    def name(self) -> str:
        """The dtype's name, or the pair `K/V`."""
        return self.k.name if self.k.name == self.v.name else f"{self.k.name}/{self.v.name}"

    def token_bytes(self, cache: Cache, tp: int = 1) -> int:
        """Return the bytes of one token's entry in one layer, on one of `tp` ranks.

        KV heads shard over the ranks; with fewer heads than ranks each head is held more than once.
        """
        shards = minimum(tp, cache.split)
        k, v = exact_div(cache.k_width, shards), exact_div(cache.v_width, shards)
        return self.k.row_bytes(k) + self.v.row_bytes(v) + self.k.row_bytes(cache.index_width)


@record
class StateFormat:
    """The dtypes of a fixed state, and whether a convolution keeps all its columns.

    Hugging Face keeps `d_conv` columns in the model's dtype and the recurrence in fp32; engines keep one
    column fewer (`dropped_columns` 1).
    """

    conv: Dtype = DTYPES["bf16"]
    recurrent: Dtype = DTYPES["fp32"]
    dropped_columns: int = 0

    def columns(self, state: State) -> int:
        """Return the columns that a convolution keeps."""
        return maximum(state.conv_kernel - maximum(self.dropped_columns, state.dropped_columns), 0)

    def state_bytes(self, state: State, tp: int = 1) -> int:
        """Return the bytes that one sequence holds in one layer, on one of `tp` ranks."""
        shards = minimum(tp, state.split)
        channels = exact_div(state.conv_channels - state.conv_replicated, shards) + state.conv_replicated
        recurrent = self.conv if state.in_model_dtype else self.recurrent
        return self.conv.row_bytes(channels * self.columns(state)) + recurrent.row_bytes(
            exact_div(state.recurrent_elements, shards)
        )


def parse_kv_format(text: str, model: Architecture, where: str = "--kv-dtype") -> KVFormat:
    """Return the KV format called `text`: a dtype, a pair `K/V`, or `auto`.

    `auto` follows what the checkpoint says of its KV cache, and only that, else bf16: fp8 weights do
    not make an fp8 cache.

    Raises:
        BadInput: No such dtype.
    """
    if text == "auto":
        text = model.kv_dtype or "bf16"
    k, _, v = text.partition("/")
    first = parse_dtype(k, where)
    return KVFormat(k=first, v=parse_dtype(v, where) if v else first)


HF_STATE = StateFormat()
BF16_KV = KVFormat(k=DTYPES["bf16"], v=DTYPES["bf16"])
