"""Which dtype keys and values are cached in, and how many bytes that makes of a token."""

from __future__ import annotations

from kvroof.ground.dtypes import DTYPES, Dtype, parse_dtype
from kvroof.ground.numeric import exact_div, minimum
from kvroof.ground.record import record
from kvroof.spec.architecture import Architecture
from kvroof.spec.attention import Attention


@record
class KVFormat:
    """The dtypes of cached keys and values, which llama.cpp lets differ."""

    k: Dtype
    v: Dtype

    @property
    def name(self) -> str:
        """The dtype's name, or the pair `K/V`."""
        return self.k.name if self.k.name == self.v.name else f"{self.k.name}/{self.v.name}"

    def token_bytes(self, mixer: Attention, tp: int = 1) -> int:
        """Return the bytes of one token's entry in one layer, on one of `tp` ranks.

        KV heads shard over the ranks; with fewer heads than ranks each head is held more than once.
        """
        shards = minimum(tp, mixer.kv_split)
        k, v = exact_div(mixer.k_width, shards), exact_div(mixer.v_width, shards)
        return self.k.row_bytes(k) + self.v.row_bytes(v)


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


BF16_KV = KVFormat(k=DTYPES["bf16"], v=DTYPES["bf16"])
