"""Prefill that goes first: a step is either whole prompts or decodes, and decodes wait for all prompts."""

from __future__ import annotations

from kvroof.schedule.policies import Policy
from kvroof.serving.demand.traffic import Traffic
from kvroof.serving.steady.gated import gated
from kvroof.serving.steady.prefilling import MAX_TOGETHER, Prefilling, batch_times, mates, prompt_service
from kvroof.serving.steady.queueing import NoSteadyState, Service, burstiness, mean_wait_s
from kvroof.serving.step_times import StepTimes


def continuous(
    times: StepTimes, asked: Traffic, rate_per_s: float, policy: Policy, seqs: float, decode_s: float
) -> Prefilling | NoSteadyState:
    """Return the prefill side beside decodes whose step takes `decode_s`; 0 where there are none."""
    work = prompt_service(times, asked)
    together = min(policy.max_num_batched_tokens // asked.run_tokens, policy.max_num_seqs, MAX_TOGETHER)
    if together < 2:
        return _one_at_a_time(asked, rate_per_s, work, decode_s)
    batches = batch_times(times, asked, work, int(together))
    variance = max(work.square_s2 - work.mean_s**2, 0.0)
    queue = gated(rate_per_s, batches, variance_s2=variance, other_s=decode_s)
    if isinstance(queue, NoSteadyState):
        return queue
    each = queue.serving / rate_per_s
    return Prefilling(
        slowdown=1.0 if decode_s == 0 else 1 / (queue.others_per_s * decode_s),
        start_s=queue.until_other_s,
        mates=queue.mates * burstiness(asked.arrival_cv2, work.cv2),
        busy=queue.serving,
        stall_square_s2=each**2 + variance,
        rate_per_s=rate_per_s,
        arrival_cv2=asked.arrival_cv2,
        other_s=decode_s,
        work=work,
        own=work,
        queue=queue,
    )


def _one_at_a_time(
    asked: Traffic, rate_per_s: float, work: Service, decode_s: float
) -> Prefilling | NoSteadyState:
    """Return prompts that each take a step of their own."""
    wait = mean_wait_s(rate_per_s, work)
    if isinstance(wait, NoSteadyState):
        return NoSteadyState(what="prefill", load=wait.load)
    busy = rate_per_s * work.mean_s
    behind = rate_per_s * (wait + decode_s / 2 + work.mean_s)
    return Prefilling(
        slowdown=1 / (1 - busy),
        start_s=behind * work.mean_s / (1 - busy),
        mates=mates(rate_per_s, work, decode_s, asked.arrival_cv2),
        busy=busy,
        stall_square_s2=work.square_s2,
        rate_per_s=rate_per_s,
        arrival_cv2=asked.arrival_cv2,
        other_s=decode_s,
        work=work,
        own=work,
        queue=None,
    )
