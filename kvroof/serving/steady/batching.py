"""One pool that prefills and decodes, at an open-loop rate: TTFT, TPOT and ITL by scheduling policy.

Prompts wait in a queue of their own (`prefilling.py`), decodes share the steps that are left
(`occupancy.py`). Each slows the other: more decodes make a step longer, which lets prompts wait longer, and
prompts stall decodes. The two are solved together, by the mean number of sequences that decode. Where no
such number exists, or the memory does not admit it, there is no steady state and no number is given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvroof.ground.errors import BadInput
from kvroof.ground.record import record, static
from kvroof.schedule.policies import Policy
from kvroof.serving.demand.requests import check_arrival_rate
from kvroof.serving.demand.traffic import Traffic
from kvroof.serving.steady.distribution import SHARES, Distribution, lognormal, mixture
from kvroof.serving.steady.gated import arrivals
from kvroof.serving.steady.mixed_steps import chunked
from kvroof.serving.steady.occupancy import Occupancy, occupancy
from kvroof.serving.steady.prefill_first import continuous
from kvroof.serving.steady.prefilling import Prefilling
from kvroof.serving.steady.queueing import NoSteadyState
from kvroof.serving.steady.static_batching import static_batches
from kvroof.serving.step_times import StepTimes

ROUNDS = 60
CLOSE, STEEPEST = 2e-4, 0.95
"""Relative change of the mean batch below which prefill and decode agree, and the slope of it beyond which no
line is followed."""

RARE = 1e-4
"""Share of the time below which a state of the pool is not told apart."""


@record
class SteadyState:
    """A pool's steady state at a rate.

    TTFT and TPOT are distributions over requests, ITL over gaps. `seqs` decode on average, `prefilling` is
    the share of time in steps that hold prompt tokens, `admission_s` the mean wait for a slot, which is
    part of TTFT; `queue_s` is the mean wait before the own prefill, that included.
    """

    policy: str = static()
    requests_per_s: float
    tokens_per_s: float
    ttft_s: Distribution
    tpot_s: Distribution
    itl_s: Distribution
    queue_s: float
    admission_s: float
    e2e_s: float
    seqs: float
    prefilling: float


def one_pool(
    times: StepTimes, asked: Traffic, rate_per_s: float, policy: Policy
) -> SteadyState | NoSteadyState:
    """Return how a pool serves requests that arrive at a rate, or that it reaches no steady state.

    Args:
        times: Seconds of a step.
        asked: The requests' lengths.
        rate_per_s: Arrivals per second.
        policy: The schedule and its limits; `max_num_seqs` is also what the KV memory admits.

    Raises:
        BadInput: A rate that is not positive, or no room for a single sequence.
    """
    check_rate(rate_per_s, policy.max_num_seqs)
    if policy.name == "static":
        return _static(times, asked, rate_per_s, policy)
    settled = _settled(times, asked, rate_per_s, policy)
    if isinstance(settled, NoSteadyState):
        return settled
    ttft, tpot = _ttft(settled), _tpot(asked, rate_per_s, settled)
    return SteadyState(
        policy=policy.name,
        requests_per_s=rate_per_s,
        tokens_per_s=rate_per_s * asked.osl.mean,
        ttft_s=ttft,
        tpot_s=tpot,
        itl_s=settled.prefill.gaps(settled.pool.seen, settled.decode_s, max(asked.decode_tokens, 1.0)),
        queue_s=max(ttft.mean - settled.prefill.own_s, 0.0),
        admission_s=settled.pool.wait_s.mean,
        e2e_s=ttft.mean + asked.decode_tokens * tpot.mean,
        seqs=settled.pool.seqs,
        prefilling=settled.prefill.busy,
    )


def first_and_later(
    times: StepTimes, asked: Traffic, rate_per_s: float, policy: Policy
) -> tuple[Callable[[], Distribution], Callable[[], Distribution]] | NoSteadyState:
    """Return what gives TTFT and TPOT of `one_pool`, for those who ask often and may need only one."""
    if policy.name == "static":
        found = static_batches(times, asked, rate_per_s, policy)
        return found if isinstance(found, NoSteadyState) else (lambda: found.ttft_s, lambda: found.tpot_s)
    settled = _settled(times, asked, rate_per_s, policy)
    if isinstance(settled, NoSteadyState):
        return settled
    return lambda: _ttft(settled), lambda: _tpot(asked, rate_per_s, settled)


def check_rate(rate_per_s: float, max_seqs: int) -> None:
    """Check that a pool can be asked.

    Raises:
        BadInput: A rate that is not positive, or no room for a single sequence.
    """
    check_arrival_rate(rate_per_s)
    if max_seqs < 1:
        raise BadInput("no sequence fits the memory", where="--max-num-seqs", way_out="see kvroof fit")


def decode_times(times: StepTimes, asked: Traffic, most: int) -> Any:
    """Return the bare decode step with 1, 2, ... `most` sequences at their mean context."""
    import numpy as np

    return np.broadcast_to(times.decode_s(np.arange(1.0, most + 1), asked.context), most)


@record
class _Settled:
    """Prefill and decode in agreement, and what gives prefill while nothing decodes."""

    decode_s: Any
    prefill: Prefilling
    idle: Callable[[], Prefilling | NoSteadyState] = static()
    pool: Occupancy


def _settled(times: StepTimes, asked: Traffic, rate: float, policy: Policy) -> _Settled | NoSteadyState:
    """Return the agreement, sought from below, so that the least loaded one is found.

    What a number of decodes leads to is a convex function of it: the line through two of its points meets
    the diagonal below the agreement. Where a step along it finds no steady state, a plain one is taken.
    """
    import numpy as np

    work = continuous if policy.name == "continuous" else chunked
    decode_s = decode_times(times, asked, policy.max_num_seqs)
    most, sizes = len(decode_s), np.arange(1.0, len(decode_s) + 1)
    seqs = min(rate * asked.decode_tokens * float(decode_s[0]), most)
    found: _Settled | NoSteadyState = NoSteadyState(what="the pool", load=1.0)
    last: tuple[float, float] | None = None
    for _ in range(ROUNDS):
        step = float(np.interp(seqs, sizes, decode_s)) if asked.decode_tokens > 0 else 0.0
        prefill = work(times, asked, rate, policy, seqs, step)
        if isinstance(prefill, NoSteadyState):
            if last is None or seqs <= last[1]:
                return prefill
            seqs, last = last[1], None
            continue
        beside = np.interp(sizes + asked.overlap * prefill.mates, sizes, decode_s)
        pool = occupancy(
            rate, asked.decode_tokens, beside * prefill.slowdown, asked.decode_cv2, asked.crowding
        )
        if isinstance(pool, NoSteadyState):
            if seqs >= most:
                return pool
            found, seqs, last = pool, min(2 * seqs + 1, most), None
            continue
        found = _Settled(
            decode_s=beside,
            prefill=prefill,
            idle=lambda: work(times, asked, rate, policy, 0.0, 0.0),
            pool=pool,
        )
        if abs(pool.seqs - seqs) <= CLOSE * (seqs + 0.01):
            break
        seqs, last = _ahead(last, (seqs, pool.seqs), most), (seqs, pool.seqs)
    return found


def _ahead(last: tuple[float, float] | None, now: tuple[float, float], most: float) -> float:
    """Return where the line through two points meets the diagonal, or the last value where it is far off."""
    if last is None or last[0] == now[0]:
        return now[1]
    slope = (now[1] - last[1]) / (now[0] - last[0])
    if not 0 < slope < STEEPEST:
        return now[1]
    return min((now[1] - slope * now[0]) / (1 - slope), most)


def _ttft(settled: _Settled) -> Distribution:
    empty = settled.pool.empty
    parts = [(1 - empty, settled.prefill.response())] if empty < 1 - RARE else []
    if empty > RARE:
        idle = settled.idle()
        if not isinstance(idle, NoSteadyState):
            parts.append((empty, idle.response()))
    return mixture(parts).plus(settled.pool.wait_s)


def _tpot(asked: Traffic, rate: float, settled: _Settled) -> Distribution:
    return token_times(asked, rate, settled.decode_s, settled.pool, settled.prefill)


def token_times(
    asked: Traffic, rate: float, decode_s: Any, pool: Occupancy, prefill: Prefilling | None = None
) -> Distribution:
    """Return TPOT over requests, by an estimate of how it spreads around its mean.

    The batch changes as fast as requests come and go, so a request sees an average of it: with equal
    outputs 2/3 of its variance. Requests that are prefilled together come together, which multiplies it.
    Prompts stall it, more of them the longer it is stalled, but where they share its steps no token waits for
    more than the longest of those. All come with the same arrivals, so requests are
    taken to be slow in all or in none.
    """
    import numpy as np

    tokens = asked.decode_tokens
    if tokens <= 0:
        return lognormal(0.0, 0.0)
    mean = pool.seqs / (rate * tokens)
    step, start, deviation, each, square = mean, 0.0, pool.deviation, 0.0, 1.0
    slowdown = 1.0 if prefill is None else prefill.slowdown
    longest = float("inf") if prefill is None else prefill.longest_gap_s
    if prefill is not None:
        step, start = mean / slowdown, prefill.start_s
        each = (mean - step) / (rate * mean)
        square = max(prefill.stall_square_s2 / each**2, 1.0) if each > 0 else 1.0
        square += asked.arrival_cv2 - 1
        deviation = float(np.hypot(deviation, np.sqrt(pool.seqs * asked.overlap * prefill.mates)))
    ends = np.interp([pool.seqs, pool.seqs + 1], np.arange(1.0, len(decode_s) + 1), decode_s)
    spread = float(np.diff(ends)[0]) * slowdown * deviation
    parts = []
    for length, share in zip(asked.osl.values, asked.osl.shares, strict=True):
        own = max(length - 1, 1.0)
        bare = lognormal(step, spread * _seen(asked, own)).quantiles(SHARES)
        behind = start / each if each > 0 else 0.0
        stalls = _counts(rate * mean * own, behind, square, slowdown) * each / own
        times = np.minimum(bare + stalls, longest)
        parts.append((share, Distribution(times, [*SHARES[:-1], 1.0], mean + start / own)))
    return mixture(parts).with_mean(mean + start / tokens)


def _counts(during: float, before: float, square: float, slowdown: float) -> Any:
    """Return, at the quantiles, how many prompts stall a request, those that come and those before it.

    A stall lets further prompts come: what comes in a time t stalls for `t` busy periods of M/G/1, whose mean
    square is `E[S**2] / (1 - rho)**3`, and those who waited begin one together. `slowdown` is 1 / (1 - rho),
    `square` is E[S**2] / E[S]**2. The number is taken as negative binomial.
    """
    import numpy as np

    mean, waited, busy = during + before, before / slowdown, 1 - 1 / slowdown
    variance = during * square * slowdown**2
    variance += (waited + waited**2) * slowdown**2 + waited * busy * square * slowdown**3
    most = int(mean + 12 * np.sqrt(variance + 1)) + 8
    upto = np.cumsum(arrivals(1.0, [mean], [max(variance - mean, 0.0)], most)[0])
    found = np.searchsorted(upto, SHARES).astype(float)
    return found * (mean / found.mean() if found.mean() > 0 else 1.0)


def _seen(asked: Traffic, length: float) -> float:
    """Return the share of the batch's deviation that a request of some length sees.

    Two moments s tokens apart see the same sequences with probability `1 - E[min(output, s)] / E[output]`;
    the average over a request of length n has `2 / n x integral of (1 - s / n)` of the variance.
    """
    import numpy as np

    at = (np.arange(32) + 0.5) / 32
    outputs, shares = np.array(asked.osl.values) - 1, np.array(asked.osl.shares)
    same = 1 - np.minimum(outputs[:, None], at * length).T @ shares / asked.decode_tokens
    return float(np.sqrt(max(np.mean(2 * (1 - at) * same), 0.0)))


def _static(times: StepTimes, asked: Traffic, rate: float, policy: Policy) -> SteadyState | NoSteadyState:
    found = static_batches(times, asked, rate, policy)
    if isinstance(found, NoSteadyState):
        return found
    return SteadyState(
        policy=policy.name,
        requests_per_s=rate,
        tokens_per_s=rate * asked.osl.mean,
        ttft_s=found.ttft_s,
        tpot_s=found.tpot_s,
        itl_s=found.tpot_s,
        queue_s=found.queue_s,
        admission_s=0.0,
        e2e_s=found.ttft_s.mean + asked.decode_tokens * found.tpot_s.mean,
        seqs=found.seqs,
        prefilling=found.prefilling,
    )
