"""Prompts that share a pool with running decodes: how long they wait, and how much they slow the decodes.

`prefill_first.py` and `mixed_steps.py` ask this of their schedules, for a given number of decodes.
"""

from __future__ import annotations

from typing import Any

from kvroof.ground.record import record
from kvroof.serving.demand.traffic import Traffic
from kvroof.serving.steady.backlog import Backlog
from kvroof.serving.steady.distribution import EXPONENTIAL, Distribution, mixture, pieces
from kvroof.serving.steady.gated import Gated, gated
from kvroof.serving.steady.queueing import NoSteadyState, Service, burstiness, service, waiting
from kvroof.serving.step_times import StepTimes

MAX_TOGETHER = 256
"""Prompts of one step that are told apart."""


@record
class Prefilling:
    """The prefill side of a pool with a given number of decodes, a step of which takes `other_s`.

    Decodes get a token every `slowdown` times the bare step. Prompts that came while a request waited still
    stand before its decodes, or slow them: that adds `start_s` to its decodes as a whole. It finds `mates`
    beside it that were prefilled just before or after. `busy` is the share of time in steps with prompt
    tokens. `work` is how long a prompt occupies the pool, `own` how long its prefill takes from its start to
    its end, `stall_square_s2` the mean square of what one prompt adds to the gaps of a sequence that decodes
    beside it. `queue` is None where prompts are served one at a time. A request sees a share `mixed` of its
    tokens come from steps that hold prompt tokens too, which take one of `mixed_s`.
    """

    slowdown: float
    start_s: float
    mates: float
    busy: float
    stall_square_s2: float
    rate_per_s: float
    arrival_cv2: float
    other_s: float
    work: Service
    own: Service
    queue: Gated | Backlog | None
    mixed: float = 0.0
    mixed_s: Service | None = None

    @property
    def own_s(self) -> float:
        """Mean time of a request's own prefill, with those who share its steps."""
        if self.queue is None:
            return self.own.mean_s
        if isinstance(self.queue, Backlog):
            return self.queue.responses().mean - self.queue.wait_s
        import numpy as np

        sizes = np.arange(1, len(self.queue.batch_s) + 1)
        return float(np.interp(self.queue.mean_batch, sizes, self.queue.batch_s))

    @property
    def longest_gap_s(self) -> float:
        """The longest gap between tokens where prompts share the decodes' steps, else infinite."""
        return float("inf") if self.mixed_s is None else max(self.mixed_s.times_s)

    def response(self) -> Distribution:
        """Return the time from arrival until the end of the own prefill.

        One at a time it is the wait of M/G/1, what is left of the step that runs at arrival, and the own
        service: exact, since those three are independent (Fuhrmann and Cooper 1985).
        """
        if self.queue is None:
            wait = waiting(self.rate_per_s, self.work, self.arrival_cv2)
            assert not isinstance(wait, NoSteadyState)
            return wait.plus(pieces(0.0, self.other_s, 1.0)).plus(self.own.distribution())
        found = self.queue.responses()
        if self.arrival_cv2 != 1:
            alone_s = self.own_s if isinstance(self.queue, Backlog) else self.own.mean_s
            factor = burstiness(self.arrival_cv2, self.work.cv2)
            found = found.shifted(-alone_s).stretched(factor).shifted(alone_s)
        if isinstance(self.queue, Backlog):
            return found
        return found.plus(self.own.distribution().shifted(-self.own.mean_s))

    def gaps(self, seen: Any, decode_s: Any, tokens: float) -> Distribution:
        """Return the gaps between tokens.

        Args:
            seen: Shares of the tokens that are made with 1, 2, ... decodes.
            decode_s: The bare step with as many.
            tokens: Gaps of a request.
        """
        kept = seen > 1e-9
        bare = pieces(decode_s[kept], 0.0, seen[kept])
        if self.mixed_s is not None:
            return mixture(((1 - self.mixed, bare), (self.mixed, self.mixed_s.distribution())))
        if self.other_s == 0:
            return bare
        queue = self.queue or gated(self.rate_per_s, [self.work.mean_s], other_s=self.other_s)
        assert isinstance(queue, Gated)
        times_s, shares = queue.runs()
        later = bare
        if len(shares) > 1:
            stalled = pieces([bare.mean + t for t in times_s[1:]], 0.0, shares[1:])
            later = mixture(((shares[0], bare), (sum(shares[1:]), stalled)))
        first = pieces([bare.mean + self.start_s * t for t in EXPONENTIAL], 0.0, [1.0] * len(EXPONENTIAL))
        share = min(1 / tokens, 1.0)
        return mixture(((1 - share, later), (share, first)))


def prompt_service(times: StepTimes, asked: Traffic) -> Service:
    """Return the time of a step that runs one prompt, over the prompts."""
    tokens = _values(asked)
    return as_service(times.prefill_s(tokens, asked.cached_of(tokens)), asked)


def batch_times(times: StepTimes, asked: Traffic, work: Service, most: int) -> Any:
    """Return the mean seconds of a step with 1, 2, ... `most` prompts.

    Prompts of the mean length are run together; where lengths differ the curve is scaled to the mean time
    of one prompt.
    """
    import numpy as np

    tokens, count = asked.run_tokens, np.arange(1.0, most + 1)
    curve = np.broadcast_to(times.prefill_s(tokens, asked.cached_of(tokens), count), most)
    return curve * (work.mean_s / curve[0])


def mates(rate_per_s: float, work: Service, other_s: float, arrival_cv2: float) -> float:
    """Return the others served in the same busy period, which begins with what came in a step of other work.

    A busy period of M/G/1 serves `1 / (1 - rho)` requests with variance
    `(rho (1 - rho) + rate**2 E[S**2]) / (1 - rho)**3`. Other arrivals meet in it by their burstiness.
    """
    idle = 1 - rate_per_s * work.mean_s
    variance = ((1 - idle) * idle + rate_per_s**2 * work.square_s2) / idle**3
    met = (variance + 1 / idle**2) * idle + rate_per_s * other_s / idle - 1
    return met * burstiness(arrival_cv2, work.cv2)


def as_service(times_s: Any, asked: Traffic) -> Service:
    """Return times of the prompts as service times."""
    import numpy as np

    each = np.broadcast_to(times_s, len(asked.prompts.values))
    return service([float(t) for t in each], asked.prompts.shares)


def _values(asked: Traffic) -> Any:
    import numpy as np

    return np.array(asked.prompts.values)
