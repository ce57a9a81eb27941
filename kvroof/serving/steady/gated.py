"""A server that takes several waiting requests at once, as prefill steps do, and does other work between.

At the start of every step the server takes what waits, at most `len(batch_s)` requests, and serves them
together in `batch_s[k - 1]` seconds for k of them. When nothing waits it spends `other_s` on other work (a
decode step) and looks again; with `other_s` 0 it idles until the next arrival. The number waiting at the
starts of steps is a Markov chain: its stationary distribution gives all means exactly for Poisson arrivals
and equal requests (by Little's law for the mean response). Requests that differ make a step's length
random; arrivals in it are then negative binomial with the right mean and variance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from kvroof.ground.record import record
from kvroof.serving.steady.distribution import Distribution, pieces
from kvroof.serving.steady.queueing import NoSteadyState

MAX_STATES = 1024
"""Waiting requests beyond which a queue is called endless."""
LOST = 1e-6
"""Probability in the last state above which more states are taken."""
_HERMITE_Z = (-2.856970, -1.355626, 0.0, 1.355626, 2.856970)
_HERMITE_WEIGHTS = (0.011257, 0.222076, 0.533333, 0.222076, 0.011257)
"""Five points that stand for a normal distribution: its first nine moments are theirs."""
MANY, STRATA = 6.0, 12
"""Mean arrivals in a step above which they are not counted out, and parts of the step then told apart."""
RARE = 1e-5
"""Probability below which the rest of a run of batches is not followed."""


@record
class Gated:
    """A gated server's steady state; arrays are by the number waiting at the start of a step.

    `serving` is the share of time spent serving, `mean_batch` requests per batch, `others_per_s` the steps
    of other work. `mean_response_s` is from arrival until the request's batch is served, `until_other_s` the
    mean time from then until other work goes on. `mates` are the others that a request shares its run of
    batches with, between two steps of other work.
    """

    rate_per_s: float
    batch_s: Any
    varies_s2: Any
    other_s: float
    shares: Any
    taken: Any
    length_s: Any
    seen: Any
    serving: float
    others_per_s: float
    mean_batch: float
    mean_response_s: float
    until_other_s: float
    mates: float

    def responses(self, own_s: Any = None) -> Distribution:
        """Return the time from arrival until the own batch is done, or `own_s` after its start.

        Of `n` others that arrive in the same step, a request comes after j with equal chance and has then
        j / (n + 1) of the step behind it; long steps see more arrivals. Those who arrive later and still
        join its batch are left out where the batch is bounded.
        """
        import numpy as np

        own_s = self.batch_s if own_s is None else np.asarray(own_s, float)
        most, idles = len(self.batch_s), self.other_s == 0
        low, width, weight = [own_s[:1]], [np.zeros(1)], [self.seen[:1] if idles else np.zeros(1)]
        busy = np.flatnonzero(self.seen > RARE / 10)
        for taken in np.unique(self.taken[busy]):
            if taken == 0 and idles:
                continue
            states = busy[self.taken[busy] == taken]
            left, seen = (states - taken)[:, None], self.seen[states][:, None]
            for step, chance in self._lengths(int(states[0])):
                before, after, start, part, came = _fellows(self.rate_per_s * step)
                place = left + before
                own = np.minimum(most, place % most + 1 + after)
                low.append(
                    (step * (1 - start - part) + place // most * self.batch_s[-1] + own_s[own - 1]).ravel()
                )
                width.append(np.broadcast_to(step * part, place.shape).ravel())
                weight.append((seen * chance * came).ravel())
        spread = pieces(np.concatenate(low), np.concatenate(width), np.concatenate(weight))
        return spread.with_mean(self.mean_response_s if own_s is self.batch_s else spread.mean)

    def _lengths(self, state: int) -> list[tuple[float, float]]:
        """Return lengths of a step as a request sees them that arrives in it, with their shares."""
        step, variance = float(self.length_s[state]), float(self.varies_s2[self.taken[state]])
        if variance <= 0:
            return [(step, 1.0)]
        spread = math.log1p(variance / step**2)
        factors = [math.exp(math.sqrt(spread) * z - spread / 2) for z in _HERMITE_Z]
        return [(step * f, w * f) for f, w in zip(factors, _HERMITE_WEIGHTS, strict=True)]

    def runs(self) -> tuple[list[float], list[float]]:
        """Return the times served between two steps of other work, 0 where nothing came, and their shares."""
        import numpy as np

        most, done = len(self.batch_s), {0.0: 0.0}
        after = arrivals(self.rate_per_s, [self.other_s, *self.batch_s], [0.0] * (most + 1), 64)
        open_ = {(int(n), 0.0): float(after[0, n]) for n in np.flatnonzero(after[0] > RARE)}
        while open_:
            found: dict[tuple[int, float], float] = {}
            for (waiting, spent), chance in open_.items():
                if waiting == 0 or chance < RARE:
                    done[spent] = done.get(spent, 0.0) + chance
                    continue
                taken = min(waiting, most)
                then = float(f"{spent + self.batch_s[taken - 1]:.3g}")
                for more in np.flatnonzero(after[taken] > RARE):
                    key = (waiting - taken + int(more), then)
                    found[key] = found.get(key, 0.0) + chance * float(after[taken, more])
            open_ = found
        return list(done), list(done.values())


def _fellows(mean: float) -> tuple[Any, Any, Any, Any, Any]:
    """Return who comes in the same step as a request: numbers before and after it, and its place in the step.

    That is `(before, after, start, part, chance)`: the request comes within `[start, start + part]` of the
    step. Few are counted out; many are taken as what is expected before and after, give or take their
    deviation.
    """
    import numpy as np

    if mean <= MANY:
        count = np.arange(int(mean + 6 * np.sqrt(mean + 1)) + 2)
        chance = arrivals(1.0, [mean], [0.0], len(count))[0]
        total, before = np.meshgrid(count, count, indexing="ij")
        total, before = total[before <= total], before[before <= total]
        part = 1 / (total + 1)
        return before, total - before, before * part, part, chance[total] * part
    start = np.repeat(np.arange(STRATA) / STRATA, 9)
    middle = start + 0.5 / STRATA
    off = np.sqrt(3) * np.array([-1.0, 0.0, 1.0])
    weight = np.array([1.0, 4.0, 1.0]) / 6
    early, late = (np.tile(d.ravel(), STRATA) for d in np.meshgrid(off, off, indexing="ij"))
    chance = np.tile(np.outer(weight, weight).ravel(), STRATA) / STRATA
    before = np.maximum(np.rint(mean * middle + early * np.sqrt(mean * middle)), 0).astype(int)
    after = np.maximum(np.rint(mean * (1 - middle) + late * np.sqrt(mean * (1 - middle))), 0).astype(int)
    return before, after, start, np.full(len(start), 1 / STRATA), chance


def gated(
    rate_per_s: float,
    batch_s: Sequence[float] | Any,
    *,
    variance_s2: float = 0.0,
    batch_variance_s2: Any = None,
    other_s: float = 0.0,
) -> Gated | NoSteadyState:
    """Return the steady state of a gated server.

    Args:
        rate_per_s: Arrivals per second.
        batch_s: Mean seconds to serve 1, 2, ... requests together; the server takes at most that many.
        variance_s2: What each request adds to the variance of its batch's time.
        batch_variance_s2: The variance of the time of 1, 2, ... requests, where it is not a sum over them.
        other_s: Seconds of a step of other work; 0 idles.
    """
    import numpy as np

    times, most = np.asarray(batch_s, float), len(batch_s)
    varies = variance_s2 * np.arange(1, most + 1) if batch_variance_s2 is None else batch_variance_s2
    varies = np.concatenate([[0.0], varies])
    load = rate_per_s * float(times[-1]) / most
    if load >= 1:
        return NoSteadyState(what="prefill", load=load)
    states = int(2 * rate_per_s * max(float(times[0]), other_s) + most * load**4 / (1 - load)) + 24
    states = min(states, MAX_STATES)
    while states <= MAX_STATES:
        taken = np.minimum(np.arange(states), most)
        length = np.where(taken > 0, times[np.maximum(taken, 1) - 1], other_s)
        moves = _moves(rate_per_s, length, taken, varies[taken])
        shares = _stationary(moves)
        if shares[-1] < LOST:
            break
        states *= 2
    else:
        return NoSteadyState(what="prefill", load=load)
    spent = np.where(taken > 0, length, other_s if other_s > 0 else 1 / rate_per_s)
    cycle, batches = float(shares @ spent), float(shares[1:].sum())
    joined = np.where(
        (taken > 0) | (other_s > 0), rate_per_s * (length**2 + varies[taken]) / 2, 0.0
    )  # request-seconds that those who arrive in a step wait until it ends
    present = float(shares @ (np.arange(states) * length + joined)) / cycle
    until, mates = _runs(moves, length, taken, shares) if other_s > 0 else (0.0, 0.0)
    return Gated(
        rate_per_s=rate_per_s,
        batch_s=times,
        varies_s2=varies,
        other_s=other_s,
        shares=shares,
        taken=taken,
        length_s=length,
        seen=shares * spent / cycle,
        serving=float(shares[1:] @ length[1:]) / cycle,
        others_per_s=float(shares[0]) / cycle if other_s > 0 else 0.0,
        mean_batch=rate_per_s * cycle / batches,
        mean_response_s=present / rate_per_s,
        until_other_s=until,
        mates=mates,
    )


def _moves(rate: float, length: Any, taken: Any, variance: Any) -> Any:
    """Return the chances of how many wait after a step, by those before: the left behind and the new."""
    import numpy as np

    states = len(length)
    came = arrivals(rate, length, variance, states)
    moves = np.zeros((states, states))
    for state in range(states):
        left = state - int(taken[state])
        moves[state, left:] = came[state, : states - left]
    moves[:, -1] += 1 - moves.sum(axis=1)
    if length[0] == 0:
        moves[0] = np.eye(states)[1]
    return moves


def _stationary(moves: Any) -> Any:
    """Return the shares of steps that start with 0, 1, ... waiting."""
    import numpy as np

    states = len(moves)
    system = moves.T - np.eye(states)
    system[-1] = 1.0
    return np.maximum(np.linalg.solve(system, np.eye(states)[-1]), 0)


def _runs(moves: Any, length: Any, taken: Any, shares: Any) -> tuple[float, float]:
    """Return the mean time from a request's batch until other work, and the others in its run.

    First-step equations of the time and the requests that are served until nothing waits.
    """
    import numpy as np

    inside = moves[1:, 1:]
    system = np.eye(len(inside)) - inside
    spent, served = np.linalg.solve(system, np.column_stack([length[1:], taken[1:]])).T
    squares = np.linalg.solve(system, taken[1:] ** 2 + 2 * taken[1:] * (inside @ served))
    weights = shares[1:] * taken[1:]
    until = float(weights @ (inside @ spent) / weights.sum())
    begins = moves[0, 1:]
    return until, float(begins @ squares / (begins @ served)) - 1


def arrivals(rate: float, length: Any, variance: Any, states: int) -> Any:
    """Return, per row, the probabilities of 0, 1, ... arrivals in a time of some mean and variance."""
    import numpy as np

    mean = np.maximum(rate * np.asarray(length, float), 1e-30)[:, None]
    extra = rate**2 * np.asarray(variance, float)[:, None]
    count = np.arange(1, states)
    shape = mean**2 / np.where(extra > 0, extra, 1.0)
    grouped = np.log((count - 1 + shape) / count * (mean / (shape + mean)))
    start = np.where(extra > 0, -shape * np.log1p(mean / shape), -mean)
    steps = np.where(extra > 0, grouped, np.log(mean / count))
    return np.exp(np.concatenate([start, start + np.cumsum(steps, axis=1)], axis=1))
