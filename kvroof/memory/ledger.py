"""The memory ledger of one device: what stands in the budget, what is left, what would make it fit."""

from __future__ import annotations

from dataclasses import replace

from kvroof.ground.errors import BadInput
from kvroof.ground.record import record, static
from kvroof.memory.allocators import Allocator
from kvroof.memory.budget import (
    Budget,
    Draft,
    capacity_tokens,
    max_seqs,
    max_tokens,
)
from kvroof.memory.budget import check_utilization as check_utilization
from kvroof.memory.demand import Demand, equal_lengths
from kvroof.memory.engines.engine import Question
from kvroof.memory.kv import assumptions, check_demand, check_served, engine_formats
from kvroof.memory.pipeline import STAGE_FLAGS, fullest
from kvroof.memory.terms import PROFILED_SEQS, Term, given
from kvroof.memory.ways_out import WayOut as WayOut
from kvroof.memory.ways_out import ways_out
from kvroof.spec.architecture import Architecture
from kvroof.spec.parallel import Layout, check_layout
from kvroof.spec.precision import BF16_KV, HF_STATE, KVFormat, StateFormat
from kvroof.spec.stages import stage_models
from kvroof.spec.weights import WeightFormats


@record
class Ledger:
    """What one device must hold against what it may use, in bytes; the fullest rank's under TP.

    `headroom_bytes` is signed. `max_seqs` is at the asked length, `max_tokens` at the asked number of
    sequences; `kv_capacity_tokens` are the tokens cached when sequences of that length fill the budget.
    `terms` are what `reserve_bytes` consists of. `flags` run this deployment on the engine, which admits
    `admitted_seqs` requests: those that were asked for, or as many as can all grow to the asked length, or
    as are expected to fit. An engine is told of no more than its terms are counted for.
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
    devices: int = 1
    host_bytes: int = 0
    tokens: int
    seqs: int
    max_seqs: int
    max_tokens: int
    kv_capacity_tokens: int
    ways_out: tuple[WayOut, ...]
    terms: tuple[Term, ...] = ()
    engine: str | None = static(default=None)
    admitted_seqs: int
    flags: tuple[str, ...] = static(default=())
    assumptions: tuple[str, ...] = static()


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
    terms: tuple[Term, ...] = (),
    draft: Draft | None = None,
    typical_tokens: int | None = None,
    adapters: tuple[int, int] = (0, 0),
    admit_all: bool = True,
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
        terms: What else stands beside weights and cache, by name.
        draft: A draft model, whose cache grows with the model's.
        typical_tokens: Admit requests as if they stayed this short, and preempt when they do not; None
            reserves the asked length for each.
        adapters: How many LoRA adapters of which rank the engine is told of; their bytes are a term.
        admit_all: Whether the engine's flags admit as many as fit, or just `seqs`.

    Raises:
        BadInput: A question that cannot be: no capacity, a share outside (0, 1], an impossible layout.
    """
    if capacity_bytes < 1:
        raise BadInput(f"{capacity_bytes} is not a positive number of bytes", where="--capacity")
    check_utilization(utilization)
    for option, size in (("--reserve", reserve_bytes), ("--weights", weights_bytes)):
        if size is not None and size < 0:
            raise BadInput(f"{size} is a negative number of bytes", where=option)
    for option, length in (("--tokens", tokens), ("--typical-tokens", typical_tokens)):
        if length is not None and length < 1:
            raise BadInput(f"{length} is not a positive number of tokens", where=option)
    check_layout(model, layout)
    demand = equal_lengths(tokens, seqs, encoder_tokens=encoder_tokens)
    check_demand(demand)
    check_served(demand, allocator)
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
        terms=terms,
        draft=draft,
    )
    if layout.pp == 1:
        ledger = _ledger(budget, demand, typical_tokens)
    else:
        stages = (replace(budget, model=s, layout=layout.stage) for s in stage_models(model, layout.pp))
        ledgers = tuple(_ledger(stage, demand, typical_tokens) for stage in stages)
        ledger = fullest(ledgers, model.name, layout.devices)
    if allocator.engine is None:
        return ledger
    admitted = min(ledger.admitted_seqs, max(seqs, PROFILED_SEQS)) if admit_all else seqs
    return replace(ledger, admitted_seqs=admitted, flags=_flags(budget, tokens, admitted, adapters))


def _flags(budget: Budget, tokens: int, seqs: int, adapters: tuple[int, int]) -> tuple[str, ...]:
    """Return the engine's flags for so many requests."""
    allocator, layout = budget.allocator, budget.layout
    engine = allocator.engine
    assert engine is not None
    question = Question(
        tokens=tokens,
        seqs=max(seqs, 1),
        utilization=budget.utilization,
        kv_dtype=engine_formats(budget.model, allocator, budget.kv_format, budget.state_format)[0].name,
        tp=layout.tp,
        dp=layout.dp,
        ep=layout.ep,
        adapters=adapters[0],
        adapter_rank=adapters[1],
    )
    flags = engine.flags(question)
    if layout.pp > 1 and engine.name in STAGE_FLAGS:
        flags = (*flags, f"{STAGE_FLAGS[engine.name]} {layout.pp}")
    return flags


def _ledger(budget: Budget, demand: Demand, typical_tokens: int | None) -> Ledger:
    """Return the ledger of one stage, of equal sequences."""
    model, allocator, layout = budget.model, budget.allocator, budget.layout
    ((tokens, seqs),) = demand.lengths
    kv_bytes, stored = budget.kv_bytes(demand), budget.stored_weights_bytes
    total, known = stored + kv_bytes + budget.reserved_bytes, replace(budget, weights_bytes=stored)
    most, longest = max_seqs(known, tokens), max_tokens(known, seqs)
    admitted = most if typical_tokens is None else max_seqs(known, typical_tokens)
    holds, may_use = kv_bytes <= known.available_bytes, known.budget_bytes
    in_all = capacity_tokens(known, tokens, most)
    engine = allocator.engine
    return Ledger(
        model=model.name,
        fits=holds,
        capacity_bytes=budget.capacity_bytes,
        budget_bytes=may_use,
        weights_bytes=stored,
        kv_bytes=kv_bytes,
        reserve_bytes=budget.reserved_bytes,
        total_bytes=total,
        devices=layout.devices,
        headroom_bytes=may_use - total,
        host_bytes=budget.host_weights_bytes + budget.host_kv_bytes(demand),
        tokens=tokens,
        seqs=seqs,
        max_seqs=most,
        max_tokens=longest,
        kv_capacity_tokens=in_all,
        ways_out=() if holds else tuple(ways_out(budget, demand)),
        terms=_terms(budget),
        engine=None if engine is None else engine.name,
        admitted_seqs=admitted,
        assumptions=_assumptions(budget, demand, longest, in_all),
    )


def _terms(budget: Budget) -> tuple[Term, ...]:
    """Return what the reserve consists of."""
    if not budget.reserve_bytes:
        return budget.terms
    return (*budget.terms, given("reserve", budget.reserve_bytes))


def _assumptions(budget: Budget, demand: Demand, longest: int, in_all: int) -> tuple[str, ...]:
    said = list(
        assumptions(
            budget.model,
            demand,
            budget.allocator,
            budget.kv_format,
            budget.state_format,
            budget.layout,
        )
    )
    if budget.weights_bytes is None and (budget.formats or budget.model.checkpoint_bytes is None):
        name = (budget.formats or budget.model.formats).name
        said.append(f"weights in {name}, counted tensor by tensor")
    if longest * demand.seqs > in_all:
        said.append(
            f"sequences of {demand.longest:,} tokens cache {in_all:,} in all, fewer than longer ones: each"
            " has its own state, window and last block"
        )
    limit = budget.model.max_position_embeddings
    if limit is not None and longest > limit:
        said.append(f"the longest context that fits is beyond max_position_embeddings = {limit}")
    if budget.model.checkpoint_bytes is not None and budget.formats is None:
        said.append("weight bytes are the headers' of the checkpoint's files")
    if not budget.reserved_bytes:
        said.append("nothing is reserved for activations, graphs or the runtime; add --reserve")
    for term in budget.terms:
        said.append(f"{term.name}: {term.arithmetic}")
    if budget.allocator.engine is not None and not any(t.name == "CUDA graphs" for t in budget.terms):
        said.append(
            "CUDA graphs are not counted: add --cuda-graphs with what the engine's log says they took"
        )
    if budget.draft is not None:
        whole = budget.draft.layout.tp < budget.layout.tp
        said.append(
            f"the draft model {budget.draft.model.name} caches the same tokens"
            + (f", whole on one rank: it is not split over {budget.layout.tp}" if whole else "")
        )
    if budget.host_weights_bytes or budget.host_kv_bytes(demand):
        said.append("what is offloaded must fit into host memory, which is not checked")
        if not budget.kv_bytes(demand):
            said.append("the cache takes nothing of the device, which bounds neither sequences nor tokens")
    if budget.layout.stage_ranks > 1:
        said.append("the ledger is one device's, of the fullest rank")
    return tuple(said)
