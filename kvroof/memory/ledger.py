"""The memory ledger of one device: what stands in the budget, what is left, what would make it fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

from kvroof.ground.dtypes import DTYPES
from kvroof.ground.errors import BadInput, KvroofError
from kvroof.ground.record import record, static
from kvroof.memory.allocators import Allocator, Demand, equal_lengths
from kvroof.memory.kv import MAX_SEQS, MAX_TOKENS, assumptions, cache_bytes, check_demand
from kvroof.spec.architecture import Architecture, Mixer
from kvroof.spec.attention import GroupedAttention
from kvroof.spec.parallel import Layout, check_layout
from kvroof.spec.params import weight_bytes
from kvroof.spec.precision import BF16_KV, HF_STATE, KVFormat, StateFormat
from kvroof.spec.weights import WeightFormats, stored_as


@record
class WayOut:
    """One change that makes it fit, by itself: `option` is how to ask for it."""

    change: str = static()
    from_: Any = static()
    to: Any = static()
    option: str = static()


@record
class Ledger:
    """What one device must hold against what it may use, in bytes; the fullest rank's under TP.

    `headroom_bytes` is signed. `max_seqs` is at the asked length, `max_tokens` at the asked number of
    sequences; `kv_capacity_tokens` are the tokens cached when sequences of that length fill the budget.
    """

    model: str = static()
    fits: bool = static()
    capacity_bytes: int
    budget_bytes: int
    weights_bytes: int
    kv_bytes: int
    reserve_bytes: int
    total_bytes: int
    headroom_bytes: int
    tokens: int
    seqs: int
    max_seqs: int
    max_tokens: int
    kv_capacity_tokens: int
    ways_out: tuple[WayOut, ...]
    assumptions: tuple[str, ...] = static()


@record
class Budget:
    """A question to the ledger: a model, how it is stored and laid out, and what it may use."""

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

    @property
    def budget_bytes(self) -> int:
        """The share of the capacity that may be used, rounded down to whole bytes."""
        return int(self.capacity_bytes * Fraction(str(self.utilization)))

    @property
    def stored_weights_bytes(self) -> int:
        """The weights on the fullest rank: as given, else counted."""
        if self.weights_bytes is not None:
            return self.weights_bytes
        return weight_bytes(self.model, self.formats, self.layout.tp)

    @property
    def available_bytes(self) -> int:
        """What the budget leaves for the cache; negative when the weights alone do not fit."""
        return self.budget_bytes - self.stored_weights_bytes - self.reserve_bytes

    def kv_bytes(self, demand: Demand) -> int:
        """Return what is allocated for `demand` on the fullest rank, the encoder's tokens beside it."""
        demand = replace(demand, encoder_tokens=self.encoder_tokens)
        return cache_bytes(
            self.model, demand, self.allocator, self.kv_format, self.state_format, self.layout.tp
        )

    def holds(self, demand: Demand) -> bool:
        """Return whether weights, reserve and `demand` stay within the budget."""
        return self.kv_bytes(demand) <= self.available_bytes


def fit(
    model: Architecture,
    capacity_bytes: int,
    *,
    tokens: int = 8192,
    seqs: int = 1,
    utilization: float = 0.9,
    reserve_bytes: int = 0,
    weights_bytes: int | None = None,
    formats: WeightFormats | None = None,
    kv_format: KVFormat = BF16_KV,
    state_format: StateFormat = HF_STATE,
    allocator: Allocator = Allocator(),  # noqa: B008 - a frozen record
    layout: Layout = Layout(),  # noqa: B008 - a frozen record
    encoder_tokens: int = 0,
) -> Ledger:
    """Return whether `seqs` sequences of `tokens` fit, by how much, how far it goes, and the ways out.

    Args:
        model: The architecture.
        capacity_bytes: Memory of one device.
        tokens: Cached tokens per sequence.
        seqs: Sequences at once.
        utilization: Share of the capacity that may be used, above 0 and at most 1.
        reserve_bytes: Activations, graphs and everything else that is not weights or cache.
        weights_bytes: Weights on one device, where they are known better than the count.
        formats: Storage of the weights; the checkpoint's own where None.
        kv_format: Dtypes of keys and values.
        state_format: Dtypes of a fixed state.
        allocator: What is set aside for the sequences.
        layout: Parallelism; the ledger is the fullest rank's.
        encoder_tokens: Tokens of the encoder's output per sequence, for cross-attention.

    Raises:
        BadInput: A question that cannot be: no capacity, a share outside (0, 1], an impossible layout.
    """
    if capacity_bytes < 1:
        raise BadInput(f"{capacity_bytes} is not a positive number of bytes", where="--capacity")
    check_utilization(utilization)
    if tokens < 1:
        raise BadInput(f"{tokens} is not a positive number of tokens", where="--tokens")
    check_layout(model, layout)
    demand = equal_lengths(tokens, seqs, encoder_tokens=encoder_tokens)
    check_demand(demand)
    budget = Budget(
        model=model,
        capacity_bytes=capacity_bytes,
        utilization=utilization,
        reserve_bytes=reserve_bytes,
        weights_bytes=weights_bytes,
        formats=formats,
        kv_format=kv_format,
        state_format=state_format,
        allocator=allocator,
        layout=layout,
        encoder_tokens=encoder_tokens,
    )
    kv_bytes, stored = budget.kv_bytes(demand), budget.stored_weights_bytes
    total = stored + kv_bytes + reserve_bytes
    most = max_seqs(budget, tokens)
    return Ledger(
        model=model.name,
        fits=budget.holds(demand),
        capacity_bytes=capacity_bytes,
        budget_bytes=budget.budget_bytes,
        weights_bytes=stored,
        kv_bytes=kv_bytes,
        reserve_bytes=reserve_bytes,
        total_bytes=total,
        headroom_bytes=budget.budget_bytes - total,
        tokens=tokens,
        seqs=seqs,
        max_seqs=most,
        max_tokens=max_tokens(budget, seqs),
        kv_capacity_tokens=capacity_tokens(budget, tokens, most),
        ways_out=() if budget.holds(demand) else tuple(ways_out(budget, demand)),
        assumptions=_assumptions(budget, demand),
    )


def check_utilization(utilization: float) -> None:
    """Refuse a share of the memory that is not above 0 and at most 1.

    Raises:
        BadInput: Such a share.
    """
    if not 0 < utilization <= 1:
        raise BadInput(f"{utilization} is not above 0 and at most 1", where="--utilization")


def largest(holds: Callable[[int], bool], limit: int) -> int:
    """Return the largest n in 0..limit for which `holds`, which is monotone; 0 when none does.

    An exact inverse by bisection, so that it is right also where growth is not linear.
    """
    if not holds(1):
        return 0
    low, high = 1, 2
    while high <= limit and holds(high):
        low, high = high, high * 2
    high = min(high, limit + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def max_seqs(budget: Budget, tokens: int) -> int:
    """Return how many sequences of `tokens` fit."""
    return largest(lambda n: budget.holds(equal_lengths(tokens, n)), MAX_SEQS)


def max_tokens(budget: Budget, seqs: int) -> int:
    """Return how long `seqs` equal sequences can be."""
    reserved = budget.allocator.max_model_len if budget.allocator.name == "reserved" else None
    return largest(lambda n: budget.holds(equal_lengths(n, seqs)), reserved or MAX_TOKENS)


def capacity_tokens(budget: Budget, tokens: int, whole: int) -> int:
    """Return the tokens cached when `whole` sequences of `tokens` and one shorter one fill the budget."""
    held = ((tokens, whole),) if whole else ()
    if whole >= MAX_SEQS:
        return whole * tokens
    rest = largest(lambda n: budget.holds(Demand(lengths=(*held, (n, 1)))), tokens)
    return whole * tokens + rest


def ways_out(budget: Budget, demand: Demand) -> Iterator[WayOut]:
    """Yield changes each of which, alone, makes `demand` fit; every one is tried before it is offered."""
    (tokens, seqs) = demand.lengths[0]
    fewer = max_seqs(budget, tokens)
    if fewer:
        yield WayOut(change="seqs", from_=seqs, to=fewer, option=f"--seqs {fewer}")
    shorter = max_tokens(budget, seqs)
    if shorter:
        yield WayOut(change="tokens", from_=tokens, to=shorter, option=f"--tokens {shorter}")
    for name in ("fp8", "q4_0"):
        kv_format = KVFormat(k=DTYPES[name], v=DTYPES[name])
        if replace(budget, kv_format=kv_format).holds(demand):
            yield WayOut(change="kv_dtype", from_=budget.kv_format.name, to=name, option=f"--kv-dtype {name}")
            break
    if budget.weights_bytes is None:
        stored = (budget.formats or budget.model.formats).name
        for name in ("fp8", "int4"):
            formats = stored_as(DTYPES[name], DTYPES[budget.model.dtype])
            if replace(budget, formats=formats).holds(demand):
                yield WayOut(change="weights_dtype", from_=stored, to=name, option=f"--weights-dtype {name}")
                break
    yield from _fewer_heads(budget, demand)
    if budget.weights_bytes is None:
        yield from _more_ranks(budget, demand)
    total = budget.budget_bytes - budget.available_bytes + budget.kv_bytes(demand)
    needed = -int(-(total / Fraction(str(budget.utilization))) // 1)
    if replace(budget, capacity_bytes=needed).holds(demand):
        yield WayOut(
            change="capacity_bytes", from_=budget.capacity_bytes, to=needed, option=f"--capacity {needed}"
        )


def _fewer_heads(budget: Budget, demand: Demand) -> Iterator[WayOut]:
    """Yield the most KV heads that would fit: another model, which researchers may choose."""
    heads = [
        m.num_kv_heads for g in budget.model.layers for m in g.layer.mixers if isinstance(m, GroupedAttention)
    ]
    if not heads or len(set(heads)) > 1:
        return
    for fewer in range(heads[0] - 1, 0, -1):
        if heads[0] % fewer == 0 and replace(budget, model=_with_kv_heads(budget.model, fewer)).holds(demand):
            option = f'"num_key_value_heads": {fewer}'
            yield WayOut(change="num_kv_heads", from_=heads[0], to=fewer, option=option)
            return


def _with_kv_heads(model: Architecture, heads: int) -> Architecture:
    groups = tuple(
        replace(
            group,
            layer=replace(
                group.layer,
                mixers=tuple(_thinner(m, heads) for m in group.layer.mixers),
            ),
        )
        for group in model.layers
    )
    return replace(model, layers=groups)


def _thinner(mixer: Mixer, heads: int) -> Mixer:
    """Return `mixer` with fewer KV heads; biases, whose width would change, are left out."""
    if not isinstance(mixer, GroupedAttention):
        return mixer
    return replace(mixer, num_kv_heads=heads, extras=())


def _more_ranks(budget: Budget, demand: Demand) -> Iterator[WayOut]:
    tp = budget.layout.tp * 2
    while tp <= 64:
        layout = Layout(tp=tp)
        try:
            check_layout(budget.model, layout)
        except KvroofError:
            return
        if replace(budget, layout=layout).holds(demand):
            yield WayOut(change="tp", from_=budget.layout.tp, to=tp, option=f"--tp {tp}")
            return
        tp *= 2


def _assumptions(budget: Budget, demand: Demand) -> tuple[str, ...]:
    said = list(assumptions(budget.model, demand, budget.allocator, budget.kv_format, budget.layout))
    if budget.weights_bytes is None:
        name = (budget.formats or budget.model.formats).name
        said.append(f"weights in {name}, counted tensor by tensor")
    if not budget.reserve_bytes:
        said.append("nothing is reserved for activations, graphs or the runtime; add --reserve")
    if budget.layout.tp > 1:
        said.append("the ledger is one device's, of the fullest rank")
    return tuple(said)
