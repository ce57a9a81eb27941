"""How fast requests are replayed: `pytest tests/benchmarks --benchmark-only`.

The requests look like those of the Mooncake conversation trace (Qin et al., FAST 2025; 12,031 requests at
3.4 per second): log-normal lengths with its means, its rate, and chats that share leading blocks of 512.
"""

import random
import time
from collections import deque
from dataclasses import replace

import pytest

from kvroof.memory.blocks import Blocks
from kvroof.schedule.policies import Policy
from kvroof.schedule.scheduler import Scheduler
from kvroof.serving.demand.requests import Request
from kvroof.serving.simulation.instances import Pool
from kvroof.serving.simulation.simulator import simulate
from tests.benchmarks.rows import add_rows

pytestmark = pytest.mark.benchmark(warmup=False, min_rounds=3)


def conversations(count, seed=0):
    """Return requests whose prompts are about 12,000 tokens and whose outputs about 340."""
    source, now, requests = random.Random(seed), 0.0, []
    for _ in range(count):
        now += source.expovariate(3.4)
        isl = min(int(source.lognormvariate(8.737, 1.199)) + 1, 126_195)
        osl = min(int(source.lognormvariate(5.336, 1.0)) + 1, 2000)
        chat = source.randint(0, count // 4)
        hashes = tuple(chat * 1000 + place for place in range(-(-isl // 512)))
        requests.append(Request(arrival_s=now, input_tokens=isl, output_tokens=osl, block_hashes=hashes))
    return requests


def step_s(batch):
    """Return seconds like those of a 70B model on four large accelerators."""
    return (
        0.012 + 2e-5 * batch.tokens + 2e-8 * (batch.decode_kv + sum(kv_len for _, kv_len in batch.prefills))
    )


def pool(instances=8):
    return Pool(
        step_s=step_s,
        num_blocks=2500,
        block_size=512,
        instances=instances,
        policy=Policy(max_num_batched_tokens=2048),
        prefix_cache=True,
        router="least_work",
    )


@pytest.mark.parametrize("instances", [1, 8])
def test_a_replay_of_1000_conversations(benchmark, instances):
    run = benchmark(simulate, conversations(1000), pool(instances))
    assert len(run.served) == 1000


def test_steps_taken_at_once_are_worth_twice_the_speed(benchmark):
    """The same replay with every step decided on its own, in the same run."""
    requests = conversations(300)

    def seconds():
        start = time.process_time()
        rounds = simulate(requests, pool()).rounds
        return time.process_time() - start, rounds

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scheduler, "steady_rounds", lambda self, last: 0)
        one_by_one, rounds = seconds()
    at_once, same = benchmark.pedantic(seconds, rounds=1)
    assert rounds == same
    assert one_by_one > 2 * at_once


def with_simpy(simpy, requests, budget, most):
    """Return when each request ends, and the steps: the chunked schedule as one writes it with SimPy."""
    env, ends, steps = simpy.Environment(), {}, 0
    waiting, running, woken = deque(), [], [None]

    def arrivals():
        for number, request in enumerate(requests):
            yield env.timeout(request.arrival_s - env.now)
            waiting.append([number, request.input_tokens, request.output_tokens, 0])
            if woken[0] is not None and not woken[0].triggered:
                woken[0].succeed()

    def engine():
        nonlocal steps, running
        while len(ends) < len(requests):
            if not waiting and not running:
                woken[0] = env.event()
                yield woken[0]
            chosen = [(job, 1) for job in running if job[3] >= job[1]]
            left, tokens, kv = budget - len(chosen), len(chosen), sum(job[3] + 1 for job, _ in chosen)
            for job in [job for job in running if job[3] < job[1]]:
                chosen.append((job, min(left, job[1] - job[3])))
                left -= chosen[-1][1]
            while waiting and left > 0 and len(running) < most:
                running.append(waiting.popleft())
                chosen.append((running[-1], min(left, running[-1][1])))
                left -= chosen[-1][1]
            for job, run in chosen[tokens:]:
                kv += job[3] + run
            yield env.timeout(0.012 + 2e-5 * (budget - left) + 2e-8 * kv)
            steps += 1
            for job, run in chosen:
                job[3] += run
                if job[3] == job[1] + job[2] - 1:
                    ends[job[0]] = env.now
            running = [job for job in running if job[0] not in ends]

    env.process(arrivals())
    env.process(engine())
    env.run()
    return ends, steps


@pytest.mark.table
@pytest.mark.parametrize(("prompt", "least"), [(12_000, 0.08), (500, 0.3)], ids=["prompts", "decodes"])
def test_a_replay_beside_plain_simpy(benchmark, prompt, least):
    """The same schedule and the same clock, in the same run: what blocks, gaps and preemption cost.

    The plain model has none of them and is faster, less so where decodes fill the steps: runs of equal steps
    are taken at once here.
    Vidur is on PyPI, but fetches its profiles from a hub at its first run, so it is not compared here.
    """
    simpy = pytest.importorskip("simpy")
    requests = [
        replace(r, input_tokens=max(r.input_tokens * prompt // 12_000, 1)) for r in conversations(600)
    ]
    one = Pool(step_s=step_s, num_blocks=40_000, block_size=512, policy=Policy(max_num_batched_tokens=2048))

    def seconds(run):
        start = time.process_time()
        found = run()
        return time.process_time() - start, found

    plain_s, (ends, steps) = seconds(lambda: with_simpy(simpy, requests, 2048, 256))
    ours_s, ours = benchmark.pedantic(seconds, (lambda: simulate(requests, one),), rounds=1)
    assert ours.rounds == steps
    assert [s.finish_s for s in ours.served] == pytest.approx([ends[s.request] for s in ours.served])
    took = {
        "kvroof": ours_s / len(requests),
        "SimPy, the schedule alone": plain_s / len(requests),
    }
    filled = "prompts" if prompt > 5000 else "decodes"
    add_rows(benchmark, f"one request replayed, steps full of {filled}", took)
    assert plain_s / ours_s > least


def test_a_round_of_100_decodes(benchmark):
    scheduler = Scheduler(Policy(), Blocks(100_000))
    for request in range(100):
        scheduler.add(request, 500, 10**6, prefilled=True)

    def decide_and_complete():
        scheduler.complete(scheduler.next_round())

    benchmark(decide_and_complete)


def test_allocator_operations(benchmark):
    blocks = Blocks(100_000)

    def sequence():
        blocks.start(0)
        for _ in range(100):
            blocks.append(0, 16)
        blocks.free(0)

    benchmark(sequence)
