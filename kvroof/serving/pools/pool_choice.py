"""One pool or two: the verdict between the best of either, against the model's own error.

The two are compared by the ratio of their goodputs, whose error is found by solving again with prefill, or
decode, slower and faster by the error of the step times: what both have in common cancels. A ratio within
that error is a tie.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

from kvroof.ground.errors import BadInput
from kvroof.ground.record import record, static
from kvroof.serving.pools.best_pools import (
    BestSplit,
    OnePool,
    Question,
    best_one_pool,
    best_split,
    solved_exactly,
)
from kvroof.serving.pools.goodput import Replica

Verdict: TypeAlias = Literal["aggregate", "disaggregate", "tie"]

FORM_ERROR = 0.1
"""Log error of a ratio that the queueing forms themselves may have: they are within 10 % of simulation."""


@record
class Choice:
    """The best of either way, None where it keeps the limits at no rate, and the verdict: a tie if both are.

    `log_ratio` is of split over one pool and `log_error` its standard deviation. `compared` is the question
    as it was answered, with the devices that prices allow.
    """

    compared: Question
    aggregated: OnePool | None
    disaggregated: BestSplit | None
    verdict: Verdict = static()
    log_ratio: float
    log_error: float


def choose(question: Question, prices: Mapping[str, float] | None = None) -> Choice:
    """Return the best of either way, and whether they differ by more than the model's error.

    Args:
        question: What is compared.
        prices: Of a device of each chip, per hour: one pool then gets the devices that the two pools' cost
            pays for, instead of as many.

    Raises:
        BadInput: Fewer than two devices, or a chip without a price.
    """
    if question.devices < 2:
        raise BadInput("two pools need at least 2 devices", where="--max-devices")
    two = best_split(question)
    if prices is not None and two is not None:
        question = replace(question, budget=_budget(two, question, prices))
    one = best_one_pool(question)
    if one is not None:
        one = solved_exactly(question, one)
    ratio = log_ratio(one, two)
    error = 0.0 if one is None or two is None else _log_error(question, one, ratio)
    better: Verdict = "disaggregate" if ratio > 0 else "aggregate"
    return Choice(
        compared=question,
        aggregated=one,
        disaggregated=two,
        verdict="tie" if abs(ratio) <= error else better,
        log_ratio=ratio,
        log_error=error,
    )


def _budget(two: BestSplit, question: Question, prices: Mapping[str, float]) -> dict[str, int]:
    """Return the devices of each chip that the two pools' cost pays for."""
    chips = {server.hardware for server in question.aggregated}
    pools = two.pools
    for chip in (*chips, pools.prefill.hardware, pools.decode.hardware):
        if not prices.get(chip, 0) > 0:
            raise BadInput(f"{chip} has no price", where="--price", way_out=f"--price {chip}=USD_PER_HOUR")
    cost = pools.prefill_devices * prices[pools.prefill.hardware]
    cost += (pools.devices - pools.prefill_devices) * prices[pools.decode.hardware]
    return {chip: int(cost / prices[chip] + 1e-9) for chip in chips}


def log_ratio(one: OnePool | None, two: BestSplit | None) -> float:
    """Return the log of split goodput over one pool's; infinite where only one of them works."""
    if one is None:
        return 0.0 if two is None else math.inf
    return -math.inf if two is None else math.log(two.goodput_rps / one.goodput_rps)


def _log_error(question: Question, best: OnePool, ratio: float) -> float:
    """Return by how much the ratio moves when the step times err, prefill and decode apart."""
    error = max(server.error for server in (*question.aggregated, *question.prefill, *question.decode))
    moved = []
    for factors in ((error, 0.0), (0.0, error)):
        others = [_ratio_with(question, best, [math.exp(sign * f) for f in factors]) for sign in (-1, 1)]
        moved.append(max(abs(other - ratio) for other in others))
    return math.hypot(FORM_ERROR, *moved)


def _ratio_with(question: Question, best: OnePool, factors: Sequence[float]) -> float:
    """Return the ratio with prefill and decode slower by two factors."""

    def slower(servers: Sequence[Replica]) -> tuple[Replica, ...]:
        return tuple(server.scaled(*factors) for server in servers)

    changed = replace(
        question,
        aggregated=slower(question.aggregated),
        prefill=slower(question.prefill),
        decode=slower(question.decode),
    )
    return log_ratio(best_one_pool(changed, best), best_split(changed))
