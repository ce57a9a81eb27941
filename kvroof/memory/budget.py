"""A budget and its exact inverse: what it leaves for the cache, and how many sequences and tokens that is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from kvroof.ground.errors import BadInput
from kvroof.ground.numeric import largest, minimum
from kvroof.ground.record import record, static
from kvroof.memory.allocators import Allocator
from kvroof.memory.demand import Demand, equal_lengths
from kvroof.memory.kv import MAX_SEQS, MAX_TOKENS, cache_bytes, engine_formats
from kvroof.memory.terms import Term
from kvroof.spec.architecture import Architecture
from kvroof.spec.offload import cached_on_device, cached_on_host, host_weight_bytes
from kvroof.spec.parallel import Layout
from kvroof.spec.params import weight_bytes
from kvroof.spec.precision import BF16_KV, HF_STATE, KVFormat, StateFormat
from kvroof.spec.weights import WeightFormats

USUAL_TOKENS = 8192
"""A length from which the longest one that fits is guessed."""


@record
class Draft:
    """A small model that drafts tokens for the large one, with the format of its cache and its layout."""

    model: Architecture
    kv_format: KVFormat = BF16_KV
    layout: Layout = Layout()


@record
class Budget:
    """A question to the ledger: a model, how it is stored and laid out, and what it may use.

    `reserve_bytes` and `terms` stand beside weights and cache. A `draft` model's cache grows with the
    model's own; its weights are one of the terms.
    """

    model: Architecture
    capacity_bytes: int
    utilization: float = 0.9
    reserve_bytes: int = 0
    weights_bytes: int | None = None
    formats: WeightFormats | None = None
    kv_format: KVFormat = BF16_KV
    state_format: StateFormat = HF_STATE
    allocator: Allocator = Allocator()
    layout: Layout = Layout()
    encoder_tokens: int = static(default=0)
    terms: tuple[Term, ...] = ()
    draft: Draft | None = None

    @property
    def budget_bytes(self) -> int:
        """What may be used in all: the share of the capacity, or what the engine makes of that share."""
        share = Fraction(str(self.utilization))
        if self.allocator.engine is None:
            return int(self.capacity_bytes * share)
        loaded = sum(term.term_bytes for term in self.terms if term.loaded)
        return self.allocator.engine.budget_bytes(
            self.capacity_bytes, share, self.stored_weights_bytes, loaded, self.reserved_bytes - loaded
        )

    @property
    def reserved_bytes(self) -> int:
        """Everything that is neither weights nor cache."""
        return self.reserve_bytes + sum(term.term_bytes for term in self.terms)

    @property
    def stored_weights_bytes(self) -> int:
        """The weights on the fullest rank: as given, else counted."""
        if self.weights_bytes is not None:
            return self.weights_bytes
        return weight_bytes(self.model, self.formats, self.layout) - self.host_weights_bytes

    @property
    def host_weights_bytes(self) -> int:
        """The weights of one rank that live in host memory."""
        return host_weight_bytes(self.model, self.formats, self.layout)

    @property
    def available_bytes(self) -> int:
        """What the budget leaves for the cache; negative when the weights alone do not fit."""
        return self.budget_bytes - self.stored_weights_bytes - self.reserved_bytes

    def kv_bytes(self, demand: Demand) -> int:
        """Return what is allocated for `demand` on the fullest rank, the encoder's tokens beside it."""
        demand = replace(demand, encoder_tokens=self.encoder_tokens)
        size = self._cache_bytes(cached_on_device(self.model), demand, self.kv_format, self.layout)
        if self.draft is None:
            return size
        return size + self._cache_bytes(self.draft.model, demand, self.draft.kv_format, self.draft.layout)

    def host_kv_bytes(self, demand: Demand) -> int:
        """Return the cache of one rank that lives in host memory."""
        away = cached_on_host(self.model)
        return self._cache_bytes(away, demand, self.kv_format, self.layout)

    def _cache_bytes(self, model: Architecture, demand: Demand, kv_format: KVFormat, layout: Layout) -> int:
        if not model.layers:
            return 0
        kv, state = engine_formats(model, self.allocator, kv_format, self.state_format)
        return cache_bytes(model, demand, self.allocator, kv, state, layout)

    def holds(self, demand: Demand) -> bool:
        """Return whether weights, reserve and `demand` stay within the budget."""
        return self.kv_bytes(demand) <= self.available_bytes


def check_utilization(utilization: float) -> None:
    """Refuse a share of the memory that is not above 0 and at most 1.

    Raises:
        BadInput: Such a share.
    """
    if not 0 < utilization <= 1:
        raise BadInput(f"{utilization} is not above 0 and at most 1", where="--utilization")


def max_seqs(budget: Budget, tokens: int) -> int:
    """Return how many sequences of `tokens` fit."""
    return _most(budget, lambda n: equal_lengths(tokens, n), MAX_SEQS, 1)


def max_tokens(budget: Budget, seqs: int) -> int:
    """Return how long `seqs` equal sequences can be."""
    reserved = budget.allocator.max_model_len if budget.allocator.name == "reserved" else None
    return _most(budget, lambda n: equal_lengths(n, seqs), reserved or MAX_TOKENS, USUAL_TOKENS)


def capacity_tokens(budget: Budget, tokens: int, whole: int) -> int:
    """Return the tokens cached when `whole` sequences of `tokens` and one shorter one fill the budget."""
    held = ((tokens, whole),) if whole else ()
    if whole >= MAX_SEQS:
        return whole * tokens
    rest = _most(budget, lambda n: Demand(lengths=(*held, (n, 1))), tokens, tokens)
    return whole * tokens + rest


def _most(budget: Budget, asked: Callable[[int], Demand], limit: int, usual: int) -> int:
    """Return the largest n whose demand fits: guessed from the size of a usual one, found exactly."""
    available, usual = budget.available_bytes, minimum(usual, limit)
    if available < 0:
        return 0
    size = budget.kv_bytes(asked(usual))
    guess = limit if size == 0 else available * usual // size
    return largest(lambda n: budget.kv_bytes(asked(n)) <= available, limit, guess)
