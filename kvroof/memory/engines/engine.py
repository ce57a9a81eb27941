"""What engines are asked and answer: what they set aside, what they log; what several store alike."""

from __future__ import annotations

from typing import TypeAlias

from kvroof.ground.dtypes import DTYPES
from kvroof.ground.errors import Unsupported
from kvroof.ground.record import record, static
from kvroof.memory.demand import Demand
from kvroof.memory.layers import caches
from kvroof.spec.architecture import Architecture
from kvroof.spec.precision import FP8_PACKED, INDEX_ROW, KVFormat, StateFormat
from kvroof.spec.reach import Encoder, Strided

Formats: TypeAlias = tuple[KVFormat, StateFormat]


@record
class Held:
    """What an engine sets aside on one rank.

    `slots` are the tokens that the layers which keep the most have room for, `used` those they hold.
    """

    held_bytes: int
    blocks: int
    slots: int
    used: int


@record
class Figures:
    """What an engine logs of a pool of `available_bytes` on its smallest rank; None where it says nothing.

    `kv_cache_tokens` follows the newest releases. vLLM's up to v0.20 is `kv_cache_tokens_old`: the
    blocks of one group times the smallest block. `max_concurrency` is for requests of `max_model_len`.
    `lines` are the log's own lines.
    """

    name: str = static()
    available_bytes: int
    num_blocks: int
    block_size: int
    block_bytes: int
    kv_cache_tokens: int | None = None
    kv_cache_tokens_old: int | None = None
    max_model_len: int | None = None
    max_concurrency: float | None = None
    max_requests: int | None = None
    lines: tuple[str, ...] = static(default=())


@record
class Question:
    """What an engine's flags are made of: a served model, the lengths and the number of its requests."""

    tokens: int
    seqs: int
    utilization: float
    kv_dtype: str = static()
    tp: int
    dp: int = 1
    ep: int = 1
    adapters: int = 0
    adapter_rank: int = 0


def check_modelled(model: Architecture, engine: str, indexed: bool = True) -> None:
    """Refuse caches that are not modelled for an engine: compressed ones, and index keys unless `indexed`.

    Raises:
        Unsupported: The model has such a cache.
    """
    if any(isinstance(c.reach, Strided) or (c.index_width and not indexed) for c, _ in caches(model)):
        raise Unsupported(
            f"{'compressed' if indexed else 'sparse and compressed'} caches are not modelled for {engine}",
            where=model.name,
            way_out="use --allocator paged",
        )


def fp8_as_kernels_store_it(model: Architecture, kv: KVFormat) -> KVFormat:
    """Return the format of a GPU engine: index keys in fp8 with a scale, and fp8 latents packed.

    vLLM and SGLang turn fp8 into `fp8_ds_mla` for sparse latent attention, where the kernel has no other.
    """
    indexed = any(cache.index_width for cache, _ in caches(model))
    if not indexed or kv.packed:
        return kv
    if kv.k.name == DTYPES["fp8"].name:
        return FP8_PACKED
    return KVFormat(
        k=kv.k, v=kv.v, k_scale_bytes=kv.k_scale_bytes, v_scale_bytes=kv.v_scale_bytes, index=INDEX_ROW
    )


def cached_tokens(demand: Demand, cross: bool) -> tuple[tuple[int, int], ...]:
    """Return `(tokens, how many)` of a layer's sequences: the encoder's tokens for cross-attention."""
    return ((demand.encoder_tokens, demand.seqs),) if cross else demand.lengths


def is_cross(reach: object) -> bool:
    """Return whether a layer caches the encoder's tokens."""
    return isinstance(reach, Encoder)
