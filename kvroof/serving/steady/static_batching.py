"""Static batching: a batch prefills and decodes to the end of its longest output before the next begins."""

from __future__ import annotations

from typing import Any

from kvroof.ground.record import record
from kvroof.schedule.policies import Policy
from kvroof.serving.demand.traffic import Traffic
from kvroof.serving.steady.distribution import Distribution, pieces
from kvroof.serving.steady.gated import gated
from kvroof.serving.steady.prefilling import MAX_TOGETHER, batch_times, prompt_service
from kvroof.serving.steady.queueing import NoSteadyState
from kvroof.serving.step_times import StepTimes


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

    A batch of k takes its prefill and as many decode steps as the longest of k outputs has; a sequence that
    is finished is in no further step, but its slot stays empty until the last one is.
    """
    import numpy as np

    most = min(policy.max_num_seqs, MAX_TOGETHER)
    count = np.arange(1.0, most + 1)
    work = prompt_service(times, asked)
    first = batch_times(times, asked, work, most)
    after_first, variance, token = _decodes(times, asked, count)
    prompts = count * max(work.square_s2 - work.mean_s**2, 0.0)
    queue = gated(rate_per_s, first + after_first, batch_variance_s2=prompts + variance)
    if isinstance(queue, NoSteadyState):
        return NoSteadyState(what="the pool", load=queue.load)
    in_size = np.bincount(queue.taken, queue.shares, most + 1)[1:] * count
    in_size = in_size / in_size.sum()
    after = float(in_size @ after_first)
    ttft = queue.responses(own_s=first).with_mean(queue.mean_response_s - after)
    return Batches(
        ttft_s=ttft,
        tpot_s=pieces(token, 0.0, in_size),
        queue_s=ttft.mean - float(in_size @ first),
        seqs=float(in_size @ count) * queue.serving,
        prefilling=rate_per_s * float(in_size @ (first / count)),
    )


def _decodes(times: StepTimes, asked: Traffic, count: Any) -> tuple[Any, Any, Any]:
    """Return the mean and the variance of the seconds that batches of 1, 2, ... decode, and their mean TPOT.

    Steps are taken between two lengths of outputs at a time: all of them run with what is then left of the
    batch, on average, if anything is.
    """
    import numpy as np

    values, shares = np.array(asked.osl.values), np.array(asked.osl.shares)
    ends = np.maximum(values - 1, 0.0)
    steps = np.diff(ends, prepend=0.0)
    longer = np.maximum(1 - np.cumsum(shares) + shares, 0.0)[:, None]
    any_left = 1 - (1 - np.minimum(longer, 1.0)) ** count
    left = np.maximum(count * longer / np.maximum(any_left, 1e-12), 1.0)
    context = np.broadcast_to((asked.isl.mean + ends + 1 - steps / 2)[:, None], left.shape)
    flat = times.decode_s(left.ravel(), context.ravel())
    spent = np.cumsum(steps[:, None] * np.broadcast_to(flat, left.size).reshape(left.shape), axis=0)
    ending = any_left - np.concatenate([any_left[1:], np.zeros((1, len(count)))])
    mean = (ending * spent).sum(axis=0)
    variance = np.maximum((ending * spent**2).sum(axis=0) - mean**2, 0.0)
    own = np.where(ends > 0, ends, 1.0)[:, None]
    several = shares[ends > 0].sum()
    tpot = shares @ (spent / own) / several if several > 0 else np.zeros(len(count))
    return mean, variance, tpot
