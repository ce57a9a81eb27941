"""How many sequences decode at a time, when each new one slows all others down.

A decode pool of n sequences gives each of them a token every `token_s[n - 1]` seconds. For Poisson arrivals
that is processor sharing with a speed that depends on n: the share of time with n sequences is proportional
to the product over k <= n of `rate x tokens x token_s[k - 1] / k`, whatever the distribution of lengths
with that mean (Kelly 1979, symmetric queues are insensitive). With `token_s = a + b n` and no limit it is a
negative binomial, and the mean time per token is `(a + b) / (1 - rate x tokens x b)`.

Arrivals that come more evenly crowd less. A pool that is one of n, among which sequences are shared out
evenly, is 1/n of a pool with n times the rate and speed: its sequences vary by 1/n of the variance. Any
`crowding` is taken so, as if there were 1 / crowding of them.
"""

from __future__ import annotations

from typing import Any

from kvroof.ground.record import record
from kvroof.serving.steady.distribution import Distribution, certain
from kvroof.serving.steady.queueing import NoSteadyState

EVENEST = 1 / 16
"""The least crowding that is told apart."""


@record
class Occupancy:
    """A decode pool's steady state.

    `load` is the share of what a full pool could do. `seqs` and `deviation` are the mean and spread of the
    sequences that run, `empty` the share of time without any, `waits` the share of requests that find all
    slots taken, `wait_s` how long a request waits for one. `seen` are the shares of tokens that are made with
    1, 2, ... sequences running.
    """

    load: float
    seqs: float
    deviation: float
    empty: float
    waits: float
    wait_s: Distribution
    seen: Any


def occupancy(
    rate_per_s: float, tokens: float, token_s: Any, tokens_cv2: float = 0.0, crowding: float = 1.0
) -> Occupancy | NoSteadyState:
    """Return the steady state of a pool of at most `len(token_s)` sequences.

    Args:
        rate_per_s: Arrivals per second.
        tokens: Mean tokens that a request decodes.
        token_s: Seconds per token of each sequence with 1, 2, ... of them running.
        tokens_cv2: Squared coefficient of variation of the tokens: it scales the wait for a slot by
            (1 + cv2) / 2, as Lee and Longton (1959) do for M/G/c.
        crowding: Variance over mean of the sequences, were they not to slow each other; 1 for Poisson.
    """
    import numpy as np

    most, part = len(token_s), min(max(crowding, EVENEST), 1.0)
    count = part * np.arange(1, int(most / part + 1e-9) + 1)
    each_s = np.interp(count, np.arange(1, most + 1), np.asarray(token_s, float))
    factors = rate_per_s * tokens * each_s / count
    beyond = float(factors[-1])
    if beyond >= 1:
        return NoSteadyState(what="decode", load=beyond)
    if tokens <= 0:
        return Occupancy(
            load=0.0, seqs=0.0, deviation=0.0, empty=1.0, waits=0.0, wait_s=certain(0.0), seen=np.eye(most)[0]
        )
    logs = np.concatenate([[0.0], np.cumsum(np.log(factors))])
    weights = np.exp(logs - logs.max())
    total = weights.sum() + weights[-1] * beyond / (1 - beyond)
    full = weights[-1] / (1 - beyond) / total
    shares = weights / total
    shares[-1] = full
    mean = float(shares[1:] @ count)
    deviation = float(np.sqrt(max(shares[1:] @ count**2 - mean**2, 0.0)))
    queued = part * float(full * beyond / (1 - beyond)) * (1 + tokens_cv2) / 2
    made = np.bincount(np.ceil(count - 1e-9).astype(int), shares[1:] * count / each_s, most + 1)[1:]
    return Occupancy(
        load=beyond,
        seqs=mean,
        deviation=deviation,
        empty=float(shares[0]),
        waits=float(full),
        wait_s=_wait(float(full), queued / rate_per_s),
        seen=made / made.sum(),
    )


def _wait(share: float, mean: float) -> Distribution:
    """Return a wait that is exponential for the `share` that waits at all."""
    import numpy as np

    if share < 1e-6 or mean <= 0:
        return certain(0.0)
    tail = np.concatenate([np.linspace(0, 0.98, 50), 1 - np.logspace(-2, -6, 20)])
    points = -np.log1p(-tail) * mean / share
    return Distribution(points, [*(1 - share * (1 - tail))[:-1], 1.0], mean)
