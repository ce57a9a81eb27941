"""A discrete-event simulator: requests, one by one, through the schedules that a real engine runs.

What it adds to `kvroof.schedule` is a clock. The seconds of a step are given as a function, arrivals as
requests; nothing is random, so the same input gives the same output to the last bit.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from kvroof.ground.errors import BadInput
from kvroof.ground.record import record, static
from kvroof.serving.demand.requests import Request, arrival_rate, check_requests
from kvroof.serving.simulation.event_loop import EventLoop
from kvroof.serving.simulation.instances import Link, Pool
from kvroof.serving.simulation.metrics import Served, Summary, summarise
from kvroof.serving.simulation.schedule_trace import Span


@record
class Simulation:
    """A run: its requests, all gaps between tokens with how often each occurred, and its schedule.

    `rejected` are requests whose tokens never fit into the cache. `spans` is empty unless asked for.
    `arrival_rps` is the rate at which requests arrived, None in a closed loop or where all come at once.
    """

    requests: int
    arrival_rps: float | None = None
    served: tuple[Served, ...]
    rejected: tuple[int, ...] = static()
    gaps_s: array[float] = static()
    gap_counts: array[int] = static()
    rounds: int
    preemptions: int
    requested_tokens: int
    hit_tokens: int
    spans: tuple[Span, ...]

    def summary(self, *, ttft_s: float | None = None, tpot_s: float | None = None) -> Summary:
        """Return the run's figures; goodput counts the requests that keep the times given."""
        return summarise(
            self.served,
            requests=self.requests,
            gaps_s=self.gaps_s,
            gap_counts=self.gap_counts,
            preemptions=self.preemptions,
            prefix_hit_rate=self.hit_tokens / self.requested_tokens if self.requested_tokens else 0.0,
            arrival_rps=self.arrival_rps,
            ttft_s=ttft_s,
            tpot_s=tpot_s,
        )


def simulate(
    requests: Sequence[Request],
    pool: Pool,
    *,
    decode: Pool | None = None,
    link: Link | None = None,
    concurrency: int | None = None,
    trace: bool = False,
) -> Simulation:
    """Return how the requests are served.

    With `decode` the two phases are split: `pool` runs the prompts, which gives the first token, and keeps
    their KV until a decode instance has blocks for it and `link` has carried it over.

    Args:
        requests: In any order; they arrive at their times.
        pool: What serves them.
        decode: The pool that runs the decodes, where the phases are split.
        link: What carries the KV between the two; given together with `decode`.
        concurrency: Requests that are in the system at a time, in their order, the next one when one is
            finished: a closed loop, which leaves the arrival times out. None takes those.
        trace: Whether to keep the schedule, a span per step or per run of equal steps.

    Raises:
        BadInput: A request, pool, link or step time that cannot be.
    """
    check_requests(requests)
    if (decode is None) != (link is None):
        raise BadInput("a decode pool and a link go together", where="simulate")
    if concurrency is not None and concurrency < 1:
        raise BadInput(f"{concurrency} requests at a time", where="--concurrency")
    loop = EventLoop(requests, pool, decode, link, concurrency, trace)
    loop.run()
    schedulers = loop.schedulers()
    trees = [s.tree for s in schedulers if s.tree is not None]
    return Simulation(
        requests=len(requests),
        arrival_rps=None if concurrency is not None else arrival_rate(requests),
        served=loop.served(),
        rejected=tuple(sorted(loop.rejected)),
        gaps_s=loop.gaps,
        gap_counts=loop.counts,
        rounds=loop.rounds,
        preemptions=sum(s.preemptions for s in schedulers),
        requested_tokens=sum(tree.requested_tokens for tree in trees),
        hit_tokens=sum(tree.hit_tokens for tree in trees),
        spans=tuple(sorted(loop.spans, key=lambda span: (span.start_s, span.pool, span.instance))),
    )
