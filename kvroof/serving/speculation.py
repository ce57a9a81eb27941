"""Speculative decoding: drafted tokens, their verification, and the tokens a step gives on average."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvroof.ground.errors import BadInput
from kvroof.ground.record import record
from kvroof.roofline.plan import Plan
from kvroof.roofline.roofline import Timed, repeated
from kvroof.spec.stages import mtp_model
from kvroof.spec.workload import decode, prefill, verify

MAX_DRAFTED = 64


@record
class Speculation:
    """`tokens` drafted per step, each accepted with probability `acceptance` if those before it are.

    `draft` is who drafts: a plan of its own, or None where a look-up in the prompt costs nothing.
    """

    tokens: int
    acceptance: float
    draft: Plan | None = None

    @property
    def tokens_per_step(self) -> float:
        """Tokens that a step is expected to give, `(1 - a^(k+1)) / (1 - a)`: the accepted and one more.

        Source: Leviathan et al. 2023, eq. 1.
        """
        return float(sum(self.acceptance**i for i in range(self.tokens + 1)))

    def prefill_ops(self, batch: int, isl: int, cached: int, encoder_len: int) -> tuple[Timed, ...]:
        """Return what the drafter does with the prompts; a drafter that crosses an encoder has its tokens."""
        return () if self.draft is None else self.draft.cheaper(prefill(batch, isl, cached, encoder_len))

    def decode_ops(self, plan: Plan, batch: int, kv_len: Any, encoder_len: int) -> tuple[Timed, ...]:
        """Return the operations per token given: drafting and verification, shared by those tokens."""
        each = 1 / self.tokens_per_step
        checked = plan.time(verify(batch, kv_len + self.tokens, self.tokens, encoder_len))
        drafted = () if self.draft is None else self.draft.time(decode(batch, kv_len, encoder_len))
        return (
            *(repeated(_drafting(t), self.tokens * each) for t in drafted),
            *(repeated(t, each) for t in checked),
        )


def speculation(plan: Plan, tokens: int, acceptance: float, draft: Plan | None) -> Speculation | None:
    """Return how `plan` speculates; None where it drafts nothing.

    Without a `draft` a model drafts with its own multi-token prediction layers if it has some, else tokens
    are looked up in the prompt.

    Raises:
        BadInput: A number of tokens or a share that cannot be, or a draft that drafts nothing.
    """
    if tokens == 0:
        if draft is not None:
            raise BadInput("a draft model drafts no token", where="--draft", way_out="add --spec-tokens 3")
        return None
    if not 1 <= tokens <= MAX_DRAFTED:
        raise BadInput(f"{tokens} is not between 0 and {MAX_DRAFTED}", where="--spec-tokens")
    if not 0 <= acceptance <= 1:
        raise BadInput(f"{acceptance} is not between 0 and 1", where="--acceptance")
    if draft is None and plan.model.mtp_layers:
        draft = replace(plan, model=mtp_model(plan.model), layout=replace(plan.layout, pp=1))
    return Speculation(tokens=tokens, acceptance=acceptance, draft=draft)


def _drafting(timed: Timed) -> Timed:
    """Return an operation of the drafter under a name that says so."""
    return replace(timed, op=replace(timed.op, name=f"draft.{timed.op.name}"))
