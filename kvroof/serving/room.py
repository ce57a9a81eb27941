"""What a deployment has room for: the ledger of a plan's model in its machine's memory."""

from __future__ import annotations

from typing import TypeAlias

from kvroof.memory.budget import Budget, Draft
from kvroof.memory.ledger import Ledger, fit
from kvroof.memory.terms import Term
from kvroof.roofline.plan import Plan
from kvroof.spec.architecture import Architecture
from kvroof.spec.params import weight_bytes
from kvroof.spec.stages import stage_models

Stages: TypeAlias = tuple[tuple[Architecture, int], ...]
"""The parts of a model that the stages of a pipeline hold, with the weights on the fullest rank of each."""


def room(
    plan: Plan,
    tokens: int,
    *,
    seqs: int = 1,
    utilization: float = 0.9,
    reserve_bytes: int = 0,
    encoder_tokens: int = 0,
    terms: tuple[Term, ...] = (),
    draft: Draft | None = None,
) -> Ledger:
    """Return whether `seqs` sequences of `tokens` fit a plan's machine, and how far it goes.

    Args:
        plan: The deployment; its formats, allocator and layout are those of the ledger.
        tokens: Tokens of a sequence.
        seqs: Sequences at once, of the whole deployment.
        utilization: Share of the memory that may be used.
        reserve_bytes: Memory that is neither weights nor cache.
        encoder_tokens: Tokens of a sequence that an encoder has read.
        terms: What else lies in the memory.
        draft: A model that drafts, with a cache of its own.
    """
    return fit(
        plan.model,
        plan.hardware.capacity_bytes,
        tokens=tokens,
        seqs=seqs,
        utilization=utilization,
        reserve_bytes=reserve_bytes,
        formats=plan.formats,
        kv_format=plan.kv_format,
        allocator=plan.allocator,
        layout=plan.layout,
        encoder_tokens=encoder_tokens,
        terms=terms,
        draft=draft,
    )


def stages_of(plan: Plan) -> Stages:
    """Return the stages of a plan."""
    stages = stage_models(plan.model, plan.layout.pp)
    return tuple((stage, weight_bytes(stage, plan.formats, plan.layout.stage)) for stage in stages)


def budgets(
    plan: Plan, stages: Stages | None = None, utilization: float = 0.9, reserve_bytes: int = 0
) -> tuple[Budget, ...]:
    """Return the budget of the fullest rank of each stage, for questions of many lengths.

    Args:
        plan: The deployment.
        stages: Its stages, where they are known already.
        utilization: Share of the memory that may be used.
        reserve_bytes: Memory that is neither weights nor cache.
    """
    return tuple(
        Budget(
            model=stage,
            capacity_bytes=plan.hardware.capacity_bytes,
            utilization=utilization,
            reserve_bytes=reserve_bytes,
            weights_bytes=weights,
            formats=plan.formats,
            kv_format=plan.kv_format,
            allocator=plan.allocator,
            layout=plan.layout.stage,
        )
        for stage, weights in (stages_of(plan) if stages is None else stages)
    )
