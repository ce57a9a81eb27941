"""Chunked prefill: every decode gets its token first, prompt tokens fill the rest of the step's budget."""

from __future__ import annotations

from typing import Any

from kvroof.schedule.policies import Policy
from kvroof.serving.gated import gated
from kvroof.serving.prefilling import MAX_TOGETHER, Prefilling, as_service, mates
from kvroof.serving.queueing import NoSteadyState, Service, mean_wait_s, service
from kvroof.serving.step_times import StepTimes
from kvroof.serving.traffic import Traffic


def chunked(
    times: StepTimes, asked: Traffic, rate_per_s: float, policy: Policy, seqs: float, decode_s: float
) -> Prefilling | NoSteadyState:
    """Return the prefill side beside `seqs` decodes, a bare step of which takes `decode_s`."""
    budget = policy.max_num_batched_tokens - seqs
    if budget < 1:
        return NoSteadyState(what="the token budget", load=seqs / policy.max_num_batched_tokens)
    together = int(min(budget // asked.run_tokens, policy.max_num_seqs, MAX_TOGETHER))
    if together >= 2:
        return _whole(times, asked, rate_per_s, together, seqs, decode_s)
    return _in_chunks(times, asked, rate_per_s, budget, seqs, decode_s)


def _in_chunks(
    times: StepTimes, asked: Traffic, rate: float, budget: float, seqs: float, decode_s: float
) -> Prefilling | NoSteadyState:
    """Return prompts that each take a step or more; under load the last chunk shares its step with the next.

    A chunk reads the cache of those before it: full ones are priced at the middle of the prompt. Alone, a
    prompt takes its whole steps; packed, it takes its share of full ones. The pool is in between, by how
    often a prompt finds another before it; how often it has one behind it that fills its own last step is
    about the square of that.
    """
    import numpy as np

    tokens, context = np.array(asked.prompts.values), asked.context
    cached = np.broadcast_to(asked.cached_of(tokens), tokens.shape)
    whole = np.ceil(tokens / budget) - 1
    middle = cached + whole * budget / 2
    full_s = times.mixed_s(budget, middle, 1, seqs, context)
    last_s = times.mixed_s(tokens - whole * budget, cached + whole * budget, 1, seqs, context)
    alone_s, share = whole * full_s + last_s, tokens / budget
    packed = min(1.0, rate * as_service(alone_s, asked).mean_s)
    steps = whole + 1 + packed * (share - whole - 1)
    spent = alone_s + packed * (np.minimum(share * full_s, alone_s) - alone_s)
    work = as_service(spent, asked)
    wait = mean_wait_s(rate, work)
    if isinstance(wait, NoSteadyState):
        return NoSteadyState(what="prefill", load=wait.load)
    shares, busy = np.array(asked.prompts.shares), rate * work.mean_s
    mixed_per_s = rate * float(shares @ steps)
    return _beside(
        asked,
        rate,
        decode_s,
        work=work,
        own=as_service(alone_s + packed**2 * ((whole + 1) * full_s - alone_s), asked),
        busy=busy,
        mixed_per_s=mixed_per_s,
        others_per_s=(1 - busy) / decode_s if decode_s > 0 else 0.0,
        behind=rate * (wait + decode_s / 2 + work.mean_s),
        with_it=mates(rate, work, decode_s),
        stall_square_s2=float(shares @ np.maximum(spent - steps * decode_s, 0) ** 2),
        mixed_s=service([float(t) for t in spent / steps], [float(s) for s in shares * steps]),
    )


def _whole(
    times: StepTimes, asked: Traffic, rate: float, together: int, seqs: float, decode_s: float
) -> Prefilling | NoSteadyState:
    """Return prefill where several whole prompts fit one mixed step."""
    import numpy as np

    tokens, mean, context = np.array(asked.prompts.values), asked.run_tokens, asked.context
    work = as_service(times.mixed_s(tokens, asked.cached_of(tokens), 1, seqs, context), asked)
    count = np.arange(1.0, together + 1)
    curve = np.broadcast_to(times.mixed_s(mean, asked.cached_of(mean), count, seqs, context), together)
    batches = curve * (work.mean_s / curve[0])
    variance = max(work.square_s2 - work.mean_s**2, 0.0)
    queue = gated(rate, batches, variance_s2=variance, other_s=decode_s)
    if isinstance(queue, NoSteadyState):
        return queue
    sizes = np.bincount(queue.taken, queue.shares, together + 1)[1:]
    added = max((queue.serving - queue.batches_per_s * decode_s) / rate, 0.0)
    return _beside(
        asked,
        rate,
        decode_s,
        work=work,
        own=work,
        busy=queue.serving,
        mixed_per_s=queue.batches_per_s,
        others_per_s=queue.others_per_s,
        behind=rate * queue.mean_response_s,
        with_it=queue.mates,
        stall_square_s2=added**2 + variance,
        mixed_s=service([float(t) for t in batches], [float(s) for s in sizes]),
        queue=queue,
    )


def _beside(
    asked: Traffic,
    rate: float,
    decode_s: float,
    *,
    work: Service,
    own: Service,
    busy: float,
    mixed_per_s: float,
    others_per_s: float,
    behind: float,
    with_it: float,
    stall_square_s2: float,
    mixed_s: Service,
    queue: Any = None,
) -> Prefilling:
    """Return what steps of both kinds make of the decodes: each of either kind gives all of them a token.

    A request that begins to decode has `behind` prompts after it, of which the mean step sees only a part:
    mixed steps are a larger share of the time than of the steps.
    """
    in_mixed = mixed_per_s / (mixed_per_s + others_per_s)
    slowdown = 1.0 if decode_s == 0 else 1 / ((mixed_per_s + others_per_s) * decode_s)
    added = max(busy - mixed_per_s * decode_s, 0.0) / rate
    unseen = behind * (1 - min(in_mixed / busy, 1.0))
    more = unseen * mixed_per_s / rate / max(asked.decode_tokens, 1.0)
    return Prefilling(
        slowdown=slowdown,
        start_s=unseen * added * slowdown,
        mates=with_it,
        busy=busy,
        stall_square_s2=stall_square_s2,
        rate_per_s=rate,
        arrival_cv2=asked.arrival_cv2,
        other_s=decode_s,
        work=work,
        own=own,
        queue=queue,
        mixed=min(in_mixed + more, 1.0),
        mixed_s=mixed_s,
    )
