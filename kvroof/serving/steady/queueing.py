"""One server and a queue: how long requests wait before it, on average and at every percentile.

Arrivals are Poisson unless an inter-arrival variance says otherwise; the server takes one request at a time
(`gated.py` has servers that take several). Where the server cannot keep up there is no steady state: that
is an answer of its own, `NoSteadyState`, and no number stands in for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from kvroof.ground.errors import BadInput
from kvroof.ground.record import record, static
from kvroof.serving.steady.distribution import Distribution, pieces

LATTICE = 4096
"""Points on which a waiting time is computed: 1/4096 of its longest is the resolution."""
TAIL = 20.0
"""Means of the conditional wait that the lattice covers; beyond lies about exp(-20)."""


@record
class NoSteadyState:
    """There is no steady state at this rate, and why: `load` of `what` is asked for, below 1 is needed."""

    what: str = static()
    load: float

    @property
    def reason(self) -> str:
        """One sentence for people."""
        return f"no steady state: {self.what} is asked for {self.load:.0%} of what it can do"


@record
class Service:
    """The time a request occupies the server: values with their shares."""

    times_s: tuple[float, ...]
    shares: tuple[float, ...]

    @property
    def mean_s(self) -> float:
        """E[S]."""
        return sum(t * p for t, p in zip(self.times_s, self.shares, strict=True))

    @property
    def square_s2(self) -> float:
        """E[S**2]."""
        return sum(t * t * p for t, p in zip(self.times_s, self.shares, strict=True))

    @property
    def cv2(self) -> float:
        """Squared coefficient of variation, Var[S] / E[S]**2."""
        return self.square_s2 / self.mean_s**2 - 1

    def distribution(self) -> Distribution:
        """Return the service times as a distribution."""
        return pieces(self.times_s, 0.0, self.shares)


def service(times_s: float | Sequence[float], shares: Sequence[float] | None = None) -> Service:
    """Return a service time: one for all, or values with their shares (equal where none are given).

    Raises:
        BadInput: A time that is not positive, or shares that do not fit.
    """
    values = (float(times_s),) if isinstance(times_s, int | float) else tuple(float(t) for t in times_s)
    weights = tuple(shares) if shares is not None else (1.0,) * len(values)
    total = sum(weights)
    positive = bool(values) and all(0 < value < math.inf for value in values)
    if not positive or len(weights) != len(values) or not 0 < total < math.inf or min(weights) < 0:
        raise BadInput("service times are positive, each with a share", where="service")
    return Service(times_s=values, shares=tuple(w / total for w in weights))


def burstiness(arrival_cv2: float, service_cv2: float) -> float:
    """Return by how much arrivals that are not Poisson lengthen the wait, `(ca2 + cs2) / (1 + cs2)`.

    Source: Kingman 1962 (heavy traffic, an upper estimate), Allen and Cunneen's form.
    """
    return (arrival_cv2 + service_cv2) / (1 + service_cv2)


def mean_wait_s(rate_per_s: float, work: Service, arrival_cv2: float = 1.0) -> float | NoSteadyState:
    """Return the mean wait `lambda E[S**2] / (2 (1 - rho))`, times the burstiness of the arrivals.

    Exact for Poisson arrivals (M/G/1); with equal service times it is M/D/1's.

    Source: Pollaczek and Khinchine.
    """
    busy = rate_per_s * work.mean_s
    if busy >= 1:
        return NoSteadyState(what="the server", load=busy)
    wait = rate_per_s * work.square_s2 / (2 * (1 - busy))
    return wait * (1.0 if arrival_cv2 == 1 else burstiness(arrival_cv2, work.cv2))


def waiting(rate_per_s: float, work: Service, arrival_cv2: float = 1.0) -> Distribution | NoSteadyState:
    """Return the distribution of the wait, for service times of any shape.

    A wait is the sum of a geometric number of residual services (Pollaczek and Khinchine's transform),
    inverted on a lattice; for Poisson arrivals that is exact but for the lattice. Other arrivals stretch it
    by their burstiness, an approximation that is exact in no case but keeps the mean's.
    """
    mean = mean_wait_s(rate_per_s, work)
    if isinstance(mean, NoSteadyState):
        return mean
    busy = rate_per_s * work.mean_s
    import numpy as np

    shares, step = _lattice(busy, mean, work)
    upto = np.minimum(1 - busy + np.cumsum(shares), 1.0)
    points = (np.arange(len(upto)) + 0.5) * step
    found = Distribution([0.0, 0.0, *points], [0.0, 1 - busy, *upto[:-1], 1.0], mean)
    return found if arrival_cv2 == 1 else found.stretched(burstiness(arrival_cv2, work.cv2))


def _lattice(busy: float, mean: float, work: Service) -> tuple[Any, float]:
    """Return the shares of positive waits at multiples of a step, and the step."""
    import numpy as np

    times, weights = np.array(work.times_s), np.array(work.shares)
    step = (TAIL * mean / max(busy, 1e-12) + 2 * times.max()) / LATTICE
    edges = np.maximum(np.arange(LATTICE + 1) - 0.5, 0) * step
    residual = np.diff(np.minimum(edges[:, None], times) @ weights) / work.mean_s
    transform = np.fft.rfft(residual, 2 * LATTICE)
    compound = (1 - busy) / (1 - busy * transform)
    shares = np.fft.irfft(compound, 2 * LATTICE)[:LATTICE]
    shares[0] -= 1 - busy
    return np.maximum(shares, 0), step


def two_way_inter_op_ttft_s(rate_per_s: float, prefill_s: float) -> float | NoSteadyState:
    """Return mean TTFT with two pipeline stages, `D + R D**2 / (4 (2 - R D))`, D the time on one device.

    Source: DistServe (OSDI 2024, arXiv 2401.09670), eq. 2.
    """
    load = rate_per_s * prefill_s / 2
    if load >= 1:
        return NoSteadyState(what="prefill", load=load)
    return prefill_s + rate_per_s * prefill_s**2 / (4 * (2 - rate_per_s * prefill_s))


def two_way_intra_op_ttft_s(rate_per_s: float, prefill_s: float, speedup: float) -> float | NoSteadyState:
    """Return mean TTFT with two tensor-parallel devices, `D/K + R D**2 / (2 K (K - R D))`, K the speed-up.

    Source: DistServe (OSDI 2024, arXiv 2401.09670), eq. 3.
    """
    shorter = prefill_s / speedup
    waits = mean_wait_s(rate_per_s, service(shorter))
    return waits if isinstance(waits, NoSteadyState) else shorter + waits
