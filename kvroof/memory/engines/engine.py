"""What every engine answers: what it stores, what it sets aside, what its log says, what its flags are."""

from __future__ import annotations

from fractions import Fraction
from typing import Protocol, TypeAlias

from kvroof.ground.dtypes import DTYPES
from kvroof.ground.record import record, static
from kvroof.memory.demand import Demand
from kvroof.memory.layers import caches
from kvroof.spec.architecture import Architecture
from kvroof.spec.precision import FP8_PACKED, INDEX_ROW, KVFormat, StateFormat
from kvroof.spec.reach import Encoder

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


class Engine(Protocol):
    """One engine with its flags; a record in a module of its own."""

    @property
    def name(self) -> str:
        """The engine's name."""
        ...

    @property
    def block_size(self) -> int:
        """Tokens in the smallest piece that it sets aside."""
        ...

    def formats(self, model: Architecture, kv: KVFormat, state: StateFormat) -> Formats:
        """Return how the engine stores what was asked for in these formats."""
        ...

    def hold(
        self, model: Architecture, demand: Demand, kv: KVFormat, state: StateFormat, tp: int = 1
    ) -> Held:
        """Return what the engine sets aside for `demand` on one of `tp` ranks."""
        ...

    def figures(
        self, model: Architecture, available_bytes: int, kv: KVFormat, state: StateFormat, tp: int = 1
    ) -> Figures:
        """Return what the engine logs when a rank has `available_bytes` for its cache."""
        ...

    def budget_bytes(self, capacity: int, share: Fraction, weights: int, loaded: int, running: int) -> int:
        """Return what weights, terms (loaded with them, or taken while steps run) and cache may take."""
        ...

    def flags(self, question: Question) -> tuple[str, ...]:
        """Return the command-line flags of this deployment in the engine's own names."""
        ...

    def sentences(self, model: Architecture) -> tuple[str, ...]:
        """Return what the engine takes for granted."""
        ...


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
