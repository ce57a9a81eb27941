"""Static batching: a batch prefills and decodes to the end of its longest output before the next begins."""

from __future__ import annotations

from typing import Any

from kvroof.ground.record import record
from kvroof.schedule.policies import Policy
from kvroof.serving.distribution import Distribution, pieces
from kvroof.serving.gated import gated
from kvroof.serving.prefilling import MAX_TOGETHER, batch_times, prompt_service
from kvroof.serving.queueing import NoSteadyState
from kvroof.serving.step_times import StepTimes
from kvroof.serving.traffic import Traffic


@record
class Batches:
    """Static batches at a rate: times over requests, `prefilling` the share of time in their prefills."""

    ttft_s: Distribution
    tpot_s: Distribution
    queue_s: float
    seqs: float
    prefilling: float


def static_batches(
    times: StepTimes, asked: Traffic, rate_per_s: float, policy: Policy
) -> Batches | NoSteadyState:
    """Return how requests are served in batches of what waits when the last batch ends.

    A batch of k takes its prefill and as many decode steps as the longest of k outputs has; every step is
    padded to the whole batch.
    """
    import numpy as np

    most = min(policy.max_num_seqs, MAX_TOGETHER)
    count = np.arange(1.0, most + 1)
    first = batch_times(times, asked, prompt_service(times, asked), most)
    longest = _longest(asked, count)
    token = np.broadcast_to(times.decode_s(count, asked.isl.mean + (longest + 1) / 2), most)
    queue = gated(rate_per_s, first + longest * token)
    if isinstance(queue, NoSteadyState):
        return NoSteadyState(what="the pool", load=queue.load)
    in_size = np.bincount(queue.taken, queue.shares, most + 1)[1:] * count
    in_size = in_size / in_size.sum()
    after = float(in_size @ (longest * token))
    ttft = queue.responses(own_s=first).with_mean(queue.mean_response_s - after)
    return Batches(
        ttft_s=ttft,
        tpot_s=pieces(token, 0.0, in_size),
        queue_s=ttft.mean - float(in_size @ first),
        seqs=float(in_size @ count) * queue.serving,
        prefilling=rate_per_s * float(in_size @ (first / count)),
    )


def _longest(asked: Traffic, count: Any) -> Any:
    """Return the mean decode steps of the longest of 1, 2, ... outputs."""
    import numpy as np

    values, shares = np.array(asked.osl.values), np.array(asked.osl.shares)
    upto = np.minimum(np.cumsum(shares), 1.0)
    reached = upto[:, None] ** count
    chance = np.diff(np.concatenate([np.zeros((1, len(count))), reached]), axis=0)
    return np.maximum(values @ chance - 1, 0)
