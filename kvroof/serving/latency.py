"""One batch from prompt to last token: TTFT, TPOT, throughput, and what bounds them.

Definitions. TTFT is the prefill of the whole batch, which gives every sequence its first token. TPOT is
the mean over the remaining decode steps, `(e2e - TTFT) / (osl - 1)`. Queueing is not in them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from kvroof.ground.errors import BadInput
from kvroof.ground.record import record, static
from kvroof.memory.budget import Draft
from kvroof.memory.ledger import Ledger
from kvroof.memory.terms import Term, budget_terms
from kvroof.roofline.plan import Plan
from kvroof.roofline.roofline import (
    bound_of,
    compulsory_hbm_s,
    overlapped_s,
    peak_compute_s,
    serial_s,
)
from kvroof.serving.assumptions import assumptions
from kvroof.serving.demand.lengths import MAX_LENGTH
from kvroof.serving.op_times import OpTime, mean_over_steps
from kvroof.serving.op_times import op_times as op_times
from kvroof.serving.room import room
from kvroof.serving.speculation import speculation
from kvroof.serving.spread import around, log_spread
from kvroof.spec.workload import Sequences, Step, decode, prefill

MAX_BATCH = 2**24
MAX_POINTS = 4096
"""Decode steps that are evaluated one by one; longer outputs are sampled evenly, ends included."""


@record
class Phases:
    """A figure of each phase."""

    prefill: Any
    decode: Any


@record
class Calibration:
    """The calibration an estimate used, with its error on points it was not fitted to."""

    name: str = static()
    held_out_mape: float | None


@record
class Interval:
    """`(low, high)` of each time at one sigma."""

    ttft_s: tuple[float, float]
    tpot_s: tuple[float, float]


@record
class Estimate:
    """Times and rates of one batch. Without a `calibration` each time is a bound, not a prediction."""

    model: str = static()
    hardware: str = static()
    isl: int
    osl: int
    batch: int
    devices: int
    prefill_s: float
    ttft_s: float
    tpot_s: float
    e2e_s: float
    tokens_per_s: float
    tokens_per_s_per_device: float
    bound: Phases
    mfu: Phases
    mbu: Phases
    lower_bound_s: Phases
    calibration: Calibration | None
    interval: Interval | None = None
    prefill_ops: tuple[OpTime, ...]
    decode_ops: tuple[OpTime, ...]
    fits: bool = static()
    memory: Ledger
    assumptions: tuple[str, ...] = static()


def estimate(
    plan: Plan,
    *,
    isl: int = 2048,
    osl: int = 256,
    batch: int = 8,
    chunk: int | None = None,
    cached_prefix: int = 0,
    encoder_tokens: int = 0,
    patches: int = 0,
    spec_tokens: int = 0,
    acceptance: float = 0.7,
    draft: Plan | None = None,
    utilization: float = 0.9,
    reserve_bytes: int = 0,
) -> Estimate:
    """Return the times of `batch` requests of `isl` prompt and `osl` output tokens that start together.

    Args:
        plan: The deployment.
        isl: Prompt tokens of each request.
        osl: Output tokens of each request.
        batch: Requests at once.
        chunk: Tokens of a prompt run per step; None runs it whole.
        cached_prefix: Prompt tokens whose KV is already in cache.
        encoder_tokens: Tokens of the encoder's output per request, for cross-attention.
        patches: Patches of images (or frames of sound) in each prompt that the towers encode; the tokens
            they become are part of `isl`.
        spec_tokens: Tokens drafted per step; 0 drafts none.
        acceptance: Probability that a drafted token is accepted if those before it are.
        draft: The plan of a draft model, which runs in each of the `dp` groups; without one a model drafts
            with its own prediction layers, or looks tokens up in the prompt, which costs nothing.
        utilization: Share of the memory that may be used, for `fits`.
        reserve_bytes: Memory that is neither weights nor cache, for `fits`.

    Raises:
        BadInput: A length, batch, chunk or prefix that cannot be.
        Unsupported: A peak or link of the machine that is not known.
    """
    _check(isl, osl, batch, chunk, cached_prefix)
    if not 0 <= patches <= MAX_LENGTH:
        raise BadInput(f"{patches} is not between 0 and {MAX_LENGTH}", where="--patches")
    steps = _chunks(batch, isl, chunk, cached_prefix, encoder_tokens)
    if draft is not None:
        draft = replace(draft, layout=replace(draft.layout, dp=plan.layout.dp))
    drafting = speculation(plan, spec_tokens, acceptance, draft)
    first = tuple(t for step in steps for t in plan.cheaper(step))
    if patches:
        first = (*plan.encode(batch * patches), *first)
    lengths = _lengths(isl, osl)
    if drafting is None:
        later = mean_over_steps(plan.time(decode(batch, lengths, encoder_tokens)))
    else:
        first += drafting.prefill_ops(batch, isl, cached_prefix, encoder_tokens)
        later = mean_over_steps(drafting.decode_ops(plan, batch, lengths, encoder_tokens))
    ttft, tpot = serial_s(first), serial_s(later)
    e2e = ttft + (osl - 1) * tpot
    memory = room(
        plan,
        isl + osl - 1,
        seqs=batch,
        utilization=utilization,
        reserve_bytes=reserve_bytes,
        encoder_tokens=encoder_tokens,
        terms=_beside(plan, batch, draft),
        draft=None if draft is None else _draft(draft),
    )
    efficiency, machine = plan.efficiency, plan.hardware
    calibrated = (
        Calibration(name=efficiency.name, held_out_mape=efficiency.held_out_mape) if efficiency.name else None
    )
    return Estimate(
        model=plan.model.name,
        hardware=machine.name,
        isl=isl,
        osl=osl,
        batch=batch,
        devices=plan.layout.devices,
        prefill_s=ttft,
        ttft_s=ttft,
        tpot_s=tpot,
        e2e_s=e2e,
        tokens_per_s=batch * osl / e2e,
        tokens_per_s_per_device=batch * osl / e2e / plan.layout.devices,
        bound=Phases(prefill=bound_of(first), decode=bound_of(later)),
        mfu=Phases(
            prefill=peak_compute_s(first, machine) / ttft, decode=peak_compute_s(later, machine) / tpot
        ),
        mbu=Phases(
            prefill=compulsory_hbm_s(first, machine) / ttft, decode=compulsory_hbm_s(later, machine) / tpot
        ),
        lower_bound_s=Phases(prefill=overlapped_s(first, machine), decode=overlapped_s(later, machine)),
        calibration=calibrated,
        interval=None
        if calibrated is None
        else Interval(
            ttft_s=around(ttft, log_spread(efficiency, first)),
            tpot_s=around(tpot, log_spread(efficiency, later)),
        ),
        prefill_ops=op_times(first),
        decode_ops=op_times(later),
        fits=memory.fits,
        memory=memory,
        assumptions=assumptions(plan, first, later, batch, cached_prefix, patches, memory, drafting),
    )


def _check(isl: int, osl: int, batch: int, chunk: int | None, cached_prefix: int) -> None:
    for name, value, most in (
        ("--isl", isl, MAX_LENGTH),
        ("--osl", osl, MAX_LENGTH),
        ("--batch", batch, MAX_BATCH),
    ):
        if not 1 <= value <= most:
            raise BadInput(f"{value} is not between 1 and {most}", where=name)
    if chunk is not None and chunk < 1:
        raise BadInput(f"{chunk} is not a positive number of tokens", where="--chunk")
    if not 0 <= cached_prefix < isl:
        raise BadInput(
            f"{cached_prefix} cached tokens leave none of {isl} to run",
            where="--cached-prefix",
            way_out="the last token is always run",
        )


def _chunks(batch: int, isl: int, chunk: int | None, cached: int, encoder_tokens: int) -> Iterable[Step]:
    """Return the prefill steps; only the last one samples."""
    if chunk is None or chunk >= isl - cached:
        return [prefill(batch, isl, cached, encoder_tokens)]
    if (isl - cached) / chunk > MAX_POINTS:
        raise BadInput(
            f"{chunk} tokens make more than {MAX_POINTS} chunks",
            where="--chunk",
            way_out="take larger chunks",
        )
    ends = [*range(cached + chunk, isl, chunk), isl]
    starts = [cached, *ends[:-1]]
    return [
        Step(
            groups=(
                Sequences(
                    count=batch,
                    query_len=end - start,
                    kv_len=end,
                    sampled=int(end == isl),
                    encoder_len=encoder_tokens,
                    phase="prefill",
                ),
            )
        )
        for start, end in zip(starts, ends, strict=True)
    ]


def _lengths(isl: int, osl: int) -> Any:
    """Return the cached tokens of every decode step at once: isl + 1 ... isl + osl - 1 as an array."""
    import numpy as np

    last = max(isl + osl - 1, isl + 1)
    return np.linspace(isl + 1, last, min(last - isl, MAX_POINTS))


def _beside(plan: Plan, batch: int, draft: Plan | None) -> tuple[Term, ...]:
    """Return what adapters and a draft model take beside weights and cache."""
    return budget_terms(
        plan.model,
        plan.allocator,
        batch,
        plan.layout.tp,
        lora=(plan.adapters, plan.adapter_rank) if plan.adapters else None,
        draft=None if draft is None else (draft.model, draft.layout),
    )


def _draft(draft: Plan) -> Draft:
    """Return a plan that drafts as the ledger counts it."""
    return Draft(model=draft.model, kv_format=draft.kv_format, layout=draft.layout)
