"""Replicas, the limits they have to keep, and the highest rate at which they keep them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from kvroof.ground.errors import BadInput
from kvroof.ground.record import record, static
from kvroof.roofline.plan import Plan
from kvroof.schedule.policies import Policy
from kvroof.serving.demand.traffic import Traffic
from kvroof.serving.pools.transfer import layers_sent, transferred_bytes
from kvroof.serving.room import room
from kvroof.serving.spread import log_spread
from kvroof.serving.steady.batching import first_and_later
from kvroof.serving.steady.closed_loop import TPOT_ERROR
from kvroof.serving.steady.distribution import Distribution
from kvroof.serving.steady.queueing import NoSteadyState
from kvroof.serving.steady.tabled import TabledTimes
from kvroof.serving.step_times import PlanTimes, ScaledTimes, StepTimes
from kvroof.spec.parallel import ALONE, Layout, shared_axes
from kvroof.spec.workload import decode, prefill

PRECISION = 0.005
"""Relative precision of a highest rate."""
FARTHEST = 1e6
"""How far from the guess a highest rate is looked for, as a factor."""
BOUND_ERROR = math.log(2)
"""Log error of a time without a calibration: engines take about twice the bound."""
BUDGETS = (512, 2048, 8192)
"""Token budgets of a mixed step that are tried."""
MAX_SEQS = 2048
"""Sequences of a replica beyond which none is told apart."""


@record
class Limits:
    """What has to be kept (SLO), by `percentile` of the requests; None sets no limit."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    percentile: float = 0.9

    def kept_by(self, ttft: Distribution, tpot: Distribution) -> bool:
        """Return whether enough requests stay within each limit."""
        return self.first_kept(ttft) and self.later_kept(tpot)

    def excess(self, ttft: Distribution, tpot: Distribution) -> float:
        """Return how many times a limit the worse of the two is at the percentile; 0 without limits."""
        limits = ((self.ttft_s, ttft), (self.tpot_s, tpot))
        return max(
            (d.quantile(self.percentile) / most for most, d in limits if most is not None), default=0.0
        )

    def first_kept(self, ttft: Distribution) -> bool:
        """Return whether enough requests stay within the TTFT limit."""
        return self.ttft_s is None or ttft.below(self.ttft_s) >= self.percentile

    def later_kept(self, tpot: Distribution) -> bool:
        """Return whether enough requests stay within the TPOT limit."""
        return self.tpot_s is None or tpot.below(self.tpot_s) >= self.percentile


def limits(ttft_s: float | None, tpot_s: float | None, percentile: float = 0.9) -> Limits:
    """Return the limits, checked.

    Raises:
        BadInput: A time that is not positive, or a percentile that is not a share between 0 and 1.
    """
    for option, value in (("--ttft", ttft_s), ("--tpot", tpot_s)):
        if value is not None and not 0 < value < math.inf:
            raise BadInput(f"{value} s is not a limit", where=option, way_out="write it like 1s or 50ms")
    if not 0 < percentile < 1:
        raise BadInput(f"{percentile:.0%} of the requests", where="--slo-percentile", way_out="give 1 to 99")
    return Limits(ttft_s=ttft_s, tpot_s=tpot_s, percentile=percentile)


@record
class Replica:
    """Devices that hold the model once. Its memory admits `max_seqs` sequences beside the weights.

    `kv_bytes` is what a transfer of so many tokens to it carries, in `layers` parts. `error` is the standard
    deviation of the log of its step times, `calibration` the name of what they are from, None for bounds.
    Where `times` are interpolated, for searches, `exact` are not.
    """

    name: str = static()
    hardware: str = static()
    times: StepTimes = static()
    devices: int
    max_seqs: int
    kv_bytes: Callable[[float], float] = static()
    layers: int = 1
    layout: Layout = static(default=ALONE)
    error: float = BOUND_ERROR
    calibration: str | None = static(default=None)
    exact: StepTimes | None = static(default=None)

    def scaled(self, prefill_factor: float, decode_factor: float) -> Replica:
        """Return the replica with each phase slower or faster by a factor."""
        return replace(self, times=ScaledTimes(self.times, prefill_factor, decode_factor), exact=None)

    def exactly(self) -> Replica:
        """Return the replica with nothing interpolated."""
        return self if self.exact is None else replace(self, times=self.exact, exact=None)


def replica(
    plan: Plan,
    asked: Traffic,
    *,
    utilization: float = 0.9,
    reserve_bytes: int = 0,
    most_tokens: int = max(BUDGETS),
) -> Replica:
    """Return a deployment as a replica. Its memory holds sequences of their mean length.

    Engines admit by what a request holds now and preempt when it grows beyond; preemption itself is left
    out here, so the memory should not be the tight limit.

    Args:
        plan: The deployment.
        asked: The requests' lengths.
        utilization: Share of the memory that may be used.
        reserve_bytes: Memory that is neither weights nor cache.
        most_tokens: Tokens of a step at most.
    """
    ledger = room(plan, math.ceil(asked.context), utilization=utilization, reserve_bytes=reserve_bytes)
    layout, seqs, exact = plan.layout, min(ledger.max_seqs, MAX_SEQS), PlanTimes(plan)
    sizes = " ".join(f"{axis}{ranks}" for axis, ranks in shared_axes(layout).items())
    return Replica(
        name=f"{plan.hardware.name} {sizes or 'tp1'}",
        hardware=plan.hardware.name,
        times=TabledTimes(exact, asked, most_tokens, seqs),
        exact=exact,
        devices=layout.devices,
        max_seqs=seqs,
        kv_bytes=lambda tokens: transferred_bytes(plan, tokens),
        layers=layers_sent(plan),
        layout=layout,
        error=step_error(plan, asked),
        calibration=plan.efficiency.name,
    )


def step_error(plan: Plan, asked: Traffic) -> float:
    """Return the log error of the plan's step times: its kernels' spread, or the study's where that is more.

    Kernels that are timed alone err less than a whole engine: no calibration claims less than the 14 %
    that TPOT was off by in the study of `kvroof.serving.steady.closed_loop`.
    """
    if plan.efficiency.name is None:
        return BOUND_ERROR
    first = plan.cheaper(prefill(1, math.ceil(asked.isl.mean)))
    later = plan.time(decode(8, math.ceil(asked.context)))
    return max(TPOT_ERROR, *(log_spread(plan.efficiency, timed) for timed in (first, later)))


def highest_rate(kept: Callable[[float], bool], start: float) -> float:
    """Return the highest rate at which `kept` holds, 0 where it holds at none; `start` is a guess.

    `kept` has to hold below that rate and fail above it.
    """
    low, high, factor = 0.0, start, 1.5
    if kept(start):
        while high < start * FARTHEST and (low == 0.0 or kept(high)):
            low, high = high, high * factor
    else:
        while low == 0.0 and high > start / FARTHEST:
            low, high = (high / factor, high) if kept(high / factor) else (0.0, high / factor)
            factor = min(factor * factor, 16.0)
    while low > 0 and high / low > 1 + PRECISION:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if kept(middle) else (low, middle)
    return low


def one_pool_rate(
    server: Replica,
    asked: Traffic,
    asked_limits: Limits,
    policy: Policy,
    least: float = 0.0,
    guess: float | None = None,
) -> float:
    """Return the highest rate of one replica with one pool; 0 where it is not above `least`."""
    if server.max_seqs < 1:
        return 0.0
    own = replace(policy, max_num_seqs=min(policy.max_num_seqs, server.max_seqs))

    def kept(rate: float) -> bool:
        found = first_and_later(server.times, asked, rate, own)
        if isinstance(found, NoSteadyState):
            return False
        first, later = found
        return asked_limits.later_kept(later()) and asked_limits.first_kept(first())

    if least == 0:
        return highest_rate(kept, guess or start_rate(server, asked))
    above = least * (1 + PRECISION)
    return highest_rate(kept, above) if kept(above) else 0.0


def start_rate(server: Replica, asked: Traffic) -> float:
    """Return a first guess of a rate: half of what prefill alone could take."""
    return float(0.5 / server.times.prefill_s(asked.run_tokens, asked.cached_of(asked.run_tokens)))


def one_pool_policies(budgets: Sequence[int] = BUDGETS, *, whole: bool = True) -> tuple[Policy, ...]:
    """Return the schedules of one pool that are tried: whole prompts first, and mixed steps.

    Args:
        budgets: Token budgets of a mixed step, those of decodes among them.
        whole: Whether prompts may run whole, in steps of their own.
    """
    first = Policy(name="continuous", max_num_seqs=MAX_SEQS, max_num_batched_tokens=8192)
    mixed = (
        Policy(name="chunked", max_num_seqs=min(MAX_SEQS, budget), max_num_batched_tokens=budget)
        for budget in budgets
    )
    return (first, *mixed) if whole else tuple(mixed)
