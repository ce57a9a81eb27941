"""Closed forms beside simulations of the same deployment, at shares of the most that it can serve."""

import random
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean

from kvroof.calibration.load import load_calibration
from kvroof.catalog.models import load_model
from kvroof.catalog.profiles import load_hardware
from kvroof.roofline.plan import Plan
from kvroof.schedule.policies import Policy
from kvroof.serving.demand.lengths import empirical, fixed, from_percentiles
from kvroof.serving.demand.requests import Request, poisson
from kvroof.serving.demand.traffic import traffic
from kvroof.serving.simulation.instances import Pool
from kvroof.serving.simulation.simulator import simulate
from kvroof.serving.simulation.step_table import StepTable
from kvroof.serving.steady.batching import one_pool
from kvroof.serving.step_times import PlanTimes

SEQS = 128
POLICIES = {
    "continuous": Policy(name="continuous", max_num_seqs=SEQS, max_num_batched_tokens=8192),
    "chunked": Policy(name="chunked", max_num_seqs=SEQS, max_num_batched_tokens=2048),
    "static": Policy(name="static", max_num_seqs=32),
}
CASES = {
    "8b": ("llama-3.1-8b", "h100-sxm", 1, "auto", fixed(2048), fixed(64)),
    "8b, lengths differ": (
        "llama-3.1-8b",
        "h100-sxm",
        1,
        "none",
        from_percentiles(1020, 2734),
        from_percentiles(129, 424),
    ),
    "70b on 4": ("llama-3.1-70b", "h100-sxm", 4, "auto", fixed(6000), fixed(150)),
}


@dataclass(frozen=True)
class Compared:
    """A closed form's figures over a simulation's, as ratios, and the simulation's own figures."""

    ttft: float
    ttft_p99: float
    tpot: float
    tokens_per_s: float


@cache
def times_of(case):
    """Return the step times of a case, and their table for the simulator."""
    model, hardware, tp, calibration, isl, osl = CASES[case]
    more = {} if calibration == "none" else {"efficiency": load_calibration(calibration, hardware)}
    times = PlanTimes(Plan.of(load_model(model), load_hardware(hardware), tp=tp, **more))
    longest = int(isl.longest + osl.longest) + 2
    return times, StepTable(times, most_tokens=longest, most_query_tokens=max(longest, 8192))


def drawn(case, requests):
    """Return prompt and output tokens of so many requests."""
    source = random.Random(7)
    return [
        [max(1, round(n)) for n in source.choices(lengths.values, lengths.shares, k=requests)]
        for lengths in CASES[case][4:]
    ]


def served(case, policy, requests, *, instances=1, **more):
    """Return the simulation of requests, dealt in turn to the instances."""
    pool = Pool(
        step_s=times_of(case)[1],
        num_blocks=10**5,
        block_size=512,
        policy=POLICIES[policy],
        instances=instances,
        router="round_robin",
    )
    return simulate(requests, pool, **more)


@cache
def capacity(case, policy, requests):
    """Return the requests per second that are served when as many as may run always wait."""
    lengths = zip(*drawn(case, requests), strict=True)
    asked = [Request(arrival_s=0.0, input_tokens=isl, output_tokens=osl) for isl, osl in lengths]
    run = served(case, policy, asked, concurrency=2 * POLICIES[policy].max_num_seqs)
    ends = sorted(s.finish_s for s in run.served)
    first, last = requests // 5, requests * 9 // 10
    return (last - first) / (ends[last] - ends[first])


def compared(case, policy, load, *, requests, seeds, measured=2000, instances=1):
    """Return a comparison for each seed at a share of the capacity of so many instances.

    The first quarter of the requests finds a pool that fills and is left out; throughput is that of the
    requests which end while others still come.
    """
    rate = load * capacity(case, policy, measured)
    isl, osl = drawn(case, requests)
    asked = traffic(empirical(isl), empirical(osl)).dealt(instances)
    found = one_pool(times_of(case)[0], asked, rate, POLICIES[policy])
    made = []
    for seed in range(1, seeds + 1):
        arriving = poisson(rate * instances, requests, input_tokens=isl, output_tokens=osl, seed=seed)
        run = served(case, policy, arriving, instances=instances)
        seen = replace(run, served=run.served[requests // 4 :]).summary()
        start, stop = run.served[requests // 4].arrival_s, run.served[-1].arrival_s
        ended = sum(s.output_tokens for s in run.served if start < s.finish_s <= stop)
        made.append(
            Compared(
                ttft=found.ttft_s.mean / seen.ttft_s.mean,
                ttft_p99=found.ttft_s.p99 / seen.ttft_s.p99,
                tpot=found.tpot_s.mean / seen.tpot_s.mean,
                tokens_per_s=instances * found.tokens_per_s * (stop - start) / ended,
            )
        )
    return made


def middle(compared_, name):
    """Return the mean of a ratio over seeds, as the form's figure over the seeds' mean figure."""
    return 1 / fmean(1 / getattr(one, name) for one in compared_)
