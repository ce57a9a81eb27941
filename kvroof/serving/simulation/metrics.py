"""What a deployment's users see, defined once.

TTFT: from a request's arrival to its first token: queue, prefill, and whatever lies between.
TPOT: the mean gap between a request's tokens after the first, (finish - first token) / (output - 1).
ITL: every single gap between two tokens of a request; its percentiles are over gaps, not over requests.
Queue: from arrival to the start of the first step that runs any token of the request.
E2E: from arrival to the last token.
Goodput: requests per second that finish and keep both the TTFT and the TPOT asked for. Where requests come by
themselves and a TTFT is asked for, which no backlog keeps, that is their share of the rate at which requests
arrive; else they are counted over the makespan, with the time in which the last ones drain.
Makespan: from the first arrival to the last token.

A percentile is the smallest value that at least this share of the values do not exceed. A request of one
token has no TPOT: it is in no percentile of it, and breaks no promise about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from kvroof.ground.record import record, static

Over: TypeAlias = Literal["arrivals", "makespan"]
"""The time over which goodput is counted."""


@record
class Percentiles:
    """The distribution of a time in seconds."""

    mean: float
    p50: float
    p90: float
    p99: float


@record
class Served:
    """One request as it was served. Times are on the simulation's clock."""

    request: int
    arrival_s: float
    admitted_s: float
    first_token_s: float
    finish_s: float
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    preemptions: int
    instance: int
    decode_instance: int | None = None

    @property
    def queue_s(self) -> float:
        """Wait before its first step."""
        return self.admitted_s - self.arrival_s

    @property
    def ttft_s(self) -> float:
        """Time to the first token."""
        return self.first_token_s - self.arrival_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time per token after the first; None where there is one token."""
        if self.output_tokens == 1:
            return None
        return (self.finish_s - self.first_token_s) / (self.output_tokens - 1)

    @property
    def e2e_s(self) -> float:
        """Time to the last token."""
        return self.finish_s - self.arrival_s

    def keeps(self, ttft_s: float | None, tpot_s: float | None) -> bool:
        """Return whether the request kept what was asked; None asks nothing."""
        own = self.tpot_s
        return (ttft_s is None or self.ttft_s <= ttft_s) and (tpot_s is None or own is None or own <= tpot_s)


@record
class Summary:
    """A run in figures. `itl_s` is None where no request has a second token, `tpot_s` likewise.

    `kept` requests keep what was asked of TTFT and TPOT, all that finish where nothing was.
    """

    requests: int
    completed: int
    ttft_s: Percentiles | None
    tpot_s: Percentiles | None
    itl_s: Percentiles | None
    queue_s: Percentiles | None
    e2e_s: Percentiles | None
    kept: int
    goodput_rps: float
    goodput_over: Over = static()
    tokens_per_s: float
    preemptions: int
    prefix_hit_rate: float
    makespan_s: float


def percentiles(values: Sequence[float], counts: Sequence[int] | None = None) -> Percentiles | None:
    """Return the distribution of `values`, each `counts` times; None where there are none.

    Args:
        values: Seconds, a list or an array.
        counts: How often each occurs; None once each.
    """
    import numpy as np

    if not len(values):
        return None
    times: Any = np.asarray(values, float)
    often: Any = np.ones(len(times), int) if counts is None else np.asarray(counts, int)
    order = np.argsort(times, kind="stable")
    times, often = times[order], often[order]
    upto = np.cumsum(often)
    ranks = [-(-int(upto[-1]) * share // 100) for share in (50, 90, 99)]
    p50, p90, p99 = (float(times[np.searchsorted(upto, rank)]) for rank in ranks)
    return Percentiles(mean=float(times @ often / upto[-1]), p50=p50, p90=p90, p99=p99)


def summarise(
    served: Sequence[Served],
    *,
    requests: int,
    gaps_s: Sequence[float],
    gap_counts: Sequence[int],
    preemptions: int,
    prefix_hit_rate: float,
    arrival_rps: float | None = None,
    ttft_s: float | None = None,
    tpot_s: float | None = None,
) -> Summary:
    """Return the figures of a run.

    Args:
        served: The requests that were finished.
        requests: How many were asked.
        gaps_s: Gaps between tokens.
        gap_counts: How often each occurred.
        preemptions: How often a request lost its place.
        prefix_hit_rate: Share of prompt tokens found in the cache.
        arrival_rps: The rate at which requests arrived by themselves, None where they waited for others.
        ttft_s: What goodput asks of the TTFT; None asks nothing.
        tpot_s: What it asks of the TPOT.
    """
    start = min((s.arrival_s for s in served), default=0.0)
    makespan = max((s.finish_s for s in served), default=0.0) - start
    kept = sum(s.keeps(ttft_s, tpot_s) for s in served)
    over: Over = "makespan" if arrival_rps is None or ttft_s is None else "arrivals"
    goodput = kept / makespan if makespan else 0.0
    if arrival_rps is not None and over == "arrivals":
        goodput = kept / requests * arrival_rps
    tokens = sum(s.output_tokens for s in served)
    return Summary(
        requests=requests,
        completed=len(served),
        ttft_s=percentiles([s.ttft_s for s in served]),
        tpot_s=percentiles([s.tpot_s for s in served if s.tpot_s is not None]),
        itl_s=percentiles(gaps_s, gap_counts),
        queue_s=percentiles([s.queue_s for s in served]),
        e2e_s=percentiles([s.e2e_s for s in served]),
        kept=kept,
        goodput_rps=goodput,
        goodput_over=over,
        tokens_per_s=tokens / makespan if makespan else 0.0,
        preemptions=preemptions,
        prefix_hit_rate=prefix_hit_rate,
        makespan_s=makespan,
    )
