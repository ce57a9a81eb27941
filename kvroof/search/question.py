"""What a search is asked: requests, the limits they have to keep, and what is to be made best of."""

from __future__ import annotations

import math
from dataclasses import field, replace
from typing import Literal, TypeAlias, get_args

from kvroof.ground.errors import BadInput
from kvroof.ground.record import record, static
from kvroof.memory.budget import check_utilization
from kvroof.serving.demand.lengths import MAX_LENGTH, Lengths
from kvroof.serving.demand.traffic import Traffic
from kvroof.serving.pools.goodput import Limits

Objective: TypeAlias = Literal["throughput", "latency", "cost", "energy"]
Goal: TypeAlias = Literal["throughput", "context", "batch"]
FrontierKind: TypeAlias = Literal["interactivity", "ttft", "context"]
Chunking: TypeAlias = Literal["auto", "whole"]

MOST_LENGTHS = 16
"""Different prompts that a point is evaluated for; neighbours are taken together by their mean."""


@record
class Question:
    """A search: requests of lengths `isl` and `osl` under `limits`, and what is made best of.

    `objective` is output tokens per second and device, the time of a request, dollars per million tokens,
    or joules per token; `maximize` asks instead for the longest context or the largest batch that keeps the
    limits. `batch` fixes the sequences in the system, `most_batch` bounds them. `chunk` fixes the prompt
    tokens of a step; `auto` chooses them, `whole` never cuts a prompt. Of each prompt `cached` tokens are at
    hand. `prices` are dollars per device and hour by machine.
    """

    isl: Lengths
    osl: Lengths
    cached: int = 0
    limits: Limits = Limits()
    objective: Objective = static(default="throughput")
    maximize: Goal = static(default="throughput")
    batch: int | None = None
    most_batch: int | None = None
    chunk: int | Chunking = static(default="auto")
    utilization: float = 0.9
    reserve_bytes: int = 0
    prices: dict[str, float] = field(default_factory=dict)

    @property
    def traffic(self) -> Traffic:
        """The requests as the serving forms take them; the cached tokens of a prompt are not run."""
        uncached = self.isl.shortened(self.cached) if self.cached else None
        return Traffic(isl=self.isl, osl=self.osl, uncached=uncached)

    @property
    def prompts(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Prompt lengths with their shares, few enough to be evaluated at every point."""
        values, shares = self.isl.values, self.isl.shares
        size = math.ceil(len(values) / MOST_LENGTHS)
        if size == 1:
            return values, shares
        parts = [slice(start, start + size) for start in range(0, len(values), size)]
        weights = tuple(sum(shares[part]) for part in parts)
        sums = [sum(v * s for v, s in zip(values[part], shares[part], strict=True)) for part in parts]
        return tuple(total / weight for total, weight in zip(sums, weights, strict=True)), weights

    @property
    def wants_context(self) -> bool:
        """Whether the prompt's length is what is searched, at a fixed number of sequences."""
        return self.maximize == "context"


def check_question(question: Question) -> Question:
    """Return the question if it can be asked; the longest context is that of one sequence by default.

    Raises:
        BadInput: Lengths, limits, a batch or prices that cannot be.
    """
    _check_choices(question)
    check_utilization(question.utilization)
    if not question.osl.values[0] >= 1:
        raise BadInput("every output is 1 token at least", where="--osl")
    if not question.isl.longest <= MAX_LENGTH:
        raise BadInput(f"a prompt is {MAX_LENGTH} tokens at most", where="--isl")
    if not 0 <= question.cached < question.isl.values[0]:
        raise BadInput(
            f"{question.cached} cached tokens leave none of the shortest prompt to run",
            where="--cached-prefix",
            way_out="the last token is always run",
        )
    for option, count in (("--batch", question.batch), ("--max-batch", question.most_batch)):
        if count is not None and not 1 <= count <= 2**24:
            raise BadInput(f"{count} is not a positive number of sequences", where=option)
    if isinstance(question.chunk, int) and question.chunk < 1:
        raise BadInput(f"{question.chunk} is not a positive number of tokens", where="--chunk")
    for name, price in question.prices.items():
        if not 0 < price < math.inf:
            raise BadInput(f"{price} is not a price", where=f"--price {name}", way_out="dollars per hour")
    if question.objective == "cost" and not question.prices:
        raise BadInput("no price is known", where="--objective cost", way_out="add --price HW=USD_PER_HOUR")
    if question.wants_context and len(question.isl.values) > 1:
        raise BadInput("the prompt's length is what is searched", where="--isl", way_out="give one length")
    return replace(question, batch=1) if question.wants_context and question.batch is None else question


def _check_choices(question: Question) -> None:
    for option, value, known in (
        ("--objective", question.objective, get_args(Objective)),
        ("--maximize", question.maximize, get_args(Goal)),
    ):
        if value not in known:
            raise BadInput(f"{value!r} is none of {', '.join(known)}", where=option)
    if question.maximize != "throughput" and question.objective != "throughput":
        raise BadInput(
            f"{question.maximize} is made largest already",
            where=f"--objective {question.objective}",
            way_out="leave one of --objective and --maximize out",
        )
