"""Step times and requests that tests of the simulator use."""

import random

from kvroof.schedule.policies import Policy
from kvroof.serving.demand.requests import Request
from kvroof.serving.simulation.instances import Link, Pool


def affine(start=0.010, token=1e-4, cached=1e-6, swapped=1e-3):
    """Return a step that takes a start, a time per token and one per token in cache."""

    def seconds(batch):
        kv = batch.decode_kv + sum(kv_len for _, kv_len in batch.prefills)
        return start + token * batch.tokens + cached * kv + swapped * batch.swapped_blocks

    return seconds


def constant(seconds):
    """Return a step that always takes the same time."""
    return lambda batch: seconds


def at_once(count, isl, osl, **more):
    """Return equal requests that arrive together."""
    return [Request(arrival_s=0.0, input_tokens=isl, output_tokens=osl, **more) for _ in range(count)]


def random_pool(source, *, reuse=None):
    """Return a small pool with a random policy, narrow enough to preempt."""
    seqs = source.randint(1, 6)
    policy = Policy(
        name=source.choice(["static", "continuous", "chunked"]),
        max_num_seqs=seqs,
        max_num_batched_tokens=seqs + source.choice([0, 3, 20, 200]),
        reserve=source.choice(["none", "prompt", "output"]),
        preemption=source.choice(["recompute", "swap"]),
    )
    reuse = source.random() < 0.4 if reuse is None else reuse
    return Pool(
        step_s=affine(start=source.choice([0.001, 0.01]), token=source.choice([0, 1e-4])),
        num_blocks=source.randint(10, 40),
        block_size=source.choice([2, 4, 8]),
        instances=source.choice([1, 1, 2, 3]),
        policy=policy,
        prefix_cache=reuse,
        host_blocks=source.choice([0, 8, 40]),
        window=None if reuse else source.choice([None, None, None, 9]),
        router=source.choice(["round_robin", "least_requests", "least_work"]),
    )


def random_requests(source):
    """Return up to 30 requests, some at the same moment, some that share blocks, some that never fit."""
    requests, now = [], 0.0
    for _ in range(source.randint(1, 30)):
        now += source.choice([0.0, 0.0, source.expovariate(20), source.expovariate(200)])
        isl = source.randint(1, 60)
        hashes = tuple(source.randint(0, 1) * 100 + place for place in range(-(-isl // 8)))
        requests.append(
            Request(
                arrival_s=now,
                input_tokens=isl,
                output_tokens=source.choice([1, 2, source.randint(1, 40)]),
                block_hashes=hashes if source.random() < 0.8 else None,
                hash_block_size=8,
            )
        )
    return requests


def random_run(seed):
    """Return arguments of `simulate`: one pool or two, an open or a closed loop."""
    source = random.Random(seed)
    split = source.random() < 0.4
    choices = {"concurrency": source.choice([None, None, 1, 4])}
    if split:
        link = Link(
            transfer_s=lambda tokens: 0.001 + 1e-4 * tokens,
            channels=source.choice([1, 2]),
            layers=source.choice([None, 4]),
        )
        choices |= {"decode": random_pool(source, reuse=False), "link": link}
    return (random_requests(source), random_pool(source)), choices
