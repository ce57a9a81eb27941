"""Chunked prefill: every decode gets its token first, prompt tokens fill the rest of the step's budget."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvroof.schedule.policies import Policy
from kvroof.serving.demand.traffic import Traffic
from kvroof.serving.steady.backlog import Backlog, backlog
from kvroof.serving.steady.prefilling import Prefilling, as_service, mates
from kvroof.serving.steady.queueing import NoSteadyState, Service, mean_wait_s, service
from kvroof.serving.step_times import StepTimes


def chunked(
    times: StepTimes, asked: Traffic, rate_per_s: float, policy: Policy, seqs: float, decode_s: float
) -> Prefilling | NoSteadyState:
    """Return the prefill side beside `seqs` decodes, a bare step of which takes `decode_s`."""
    import numpy as np

    budget = policy.max_num_batched_tokens - seqs
    if budget < 1:
        return NoSteadyState(what="the token budget", load=seqs / policy.max_num_batched_tokens)
    lengths = step_lengths(times, asked, seqs, decode_s)
    queue = backlog(rate_per_s, asked.prompts, lengths, budget)
    if isinstance(queue, NoSteadyState):
        return queue
    if queue is None:
        return _many_chunks(asked, rate_per_s, budget, float(lengths(np.array([0.0, budget]))[1]), decode_s)
    tokens = np.array(asked.prompts.values)
    return _beside(
        asked,
        rate_per_s,
        decode_s,
        busy=queue.serving,
        mixed_per_s=queue.mixed_per_s,
        others_per_s=queue.others_per_s,
        behind=queue.behind,
        work=as_service(tokens * (float(queue.length_s[-1]) / budget), asked),
        own=None,
        mixed_s=service([float(t) for t in queue.length_s[1:]], [float(s) for s in queue.taken_shares]),
        queue=queue,
    )


def _many_chunks(
    asked: Traffic, rate: float, budget: float, full_s: float, decode_s: float
) -> Prefilling | NoSteadyState:
    """Return prompts of so many chunks, alone or together, that all steps with prompt tokens are full ones.

    They are served one after another, and the last step of each is half somebody else's.
    """
    import numpy as np

    tokens = np.array(asked.prompts.values)
    work = as_service(tokens * (full_s / budget), asked)
    wait = mean_wait_s(rate, work)
    if isinstance(wait, NoSteadyState):
        return NoSteadyState(what="prefill", load=wait.load)
    busy = rate * work.mean_s
    return _beside(
        asked,
        rate,
        decode_s,
        busy=busy,
        mixed_per_s=busy / full_s,
        others_per_s=(1 - busy) / decode_s if decode_s > 0 else 0.0,
        behind=rate * (wait + decode_s / 2 + work.mean_s),
        work=work,
        own=as_service((tokens / budget + 0.5) * full_s, asked),
        mixed_s=service(full_s),
        queue=None,
    )


def _beside(
    asked: Traffic,
    rate: float,
    decode_s: float,
    *,
    busy: float,
    mixed_per_s: float,
    others_per_s: float,
    behind: float,
    work: Service,
    own: Service | None,
    mixed_s: Service,
    queue: Backlog | None,
) -> Prefilling:
    """Return what steps of both kinds make of the decodes: each of either kind gives all of them a token.

    Counted in decode steps, prompts come in bursts: while those are run that came during a step, more come.
    A prompt is as long in this as what it adds to the decode steps that it shares. A request that begins to
    decode has `behind` prompts after it, of which the mean step sees only a part: mixed steps are a larger
    share of the time than of the steps.
    """
    import numpy as np

    tokens = np.array(asked.prompts.values)
    step_s = 1 / (mixed_per_s + others_per_s)
    added = max(busy - mixed_per_s * decode_s, 0.0) / rate
    slowdown = 1.0 if decode_s == 0 else step_s / decode_s
    adds = as_service(np.maximum(tokens * (added / asked.run_tokens), 1e-12), asked)
    unseen = behind * (1 - min(mixed_per_s * step_s / busy, 1.0))
    more = unseen * mixed_per_s / rate / max(asked.decode_tokens, 1.0)
    return Prefilling(
        slowdown=slowdown,
        start_s=unseen * added * slowdown,
        mates=mates(rate, adds, decode_s, asked.arrival_cv2),
        busy=busy,
        stall_square_s2=adds.square_s2,
        rate_per_s=rate,
        arrival_cv2=asked.arrival_cv2,
        other_s=decode_s,
        work=work,
        own=own or work,
        queue=queue,
        mixed=min(mixed_per_s * step_s + more, 1.0),
        mixed_s=mixed_s,
    )


def step_lengths(times: StepTimes, asked: Traffic, seqs: float, decode_s: float) -> Callable[[Any], Any]:
    """Return the seconds of a step by the prompt tokens it takes beside `seqs` decodes; `decode_s` for none.

    The tokens are those of as many mean prompts as they make. What stands before them is such that the pairs
    of a query and a key are, per token, those of whole prompts.
    """
    import numpy as np

    values, shares = np.array(asked.prompts.values), np.array(asked.prompts.shares)
    pairs = float(shares @ (values * (values / 2 + asked.cached_of(values)))) / asked.run_tokens

    def seconds(taken: Any) -> Any:
        run = taken[1:]
        prompts = np.ceil(run / asked.run_tokens)
        each = run / prompts
        before = np.maximum(pairs - each / 2, 0.0)
        found = times.mixed_s(each, before, prompts, seqs, asked.context)
        return np.concatenate([[decode_s], np.broadcast_to(found, run.shape)])

    return seconds
