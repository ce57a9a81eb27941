"""Closed forms against the simulator, load by load: minutes.

pytest -o addopts= --benchmark-only -s tests/benchmarks/test_closed_forms.py

KVROOF_REQUESTS and KVROOF_SEEDS set how many are simulated at each load. The printed error is that of the
form against the mean of the seeds; beside it is half the range of the seeds' own figures.
"""

import os

import pytest

from tests.serving.loads import CASES, POLICIES, compared, middle

REQUESTS = int(os.environ.get("KVROOF_REQUESTS", "10000"))
SEEDS = int(os.environ.get("KVROOF_SEEDS", "3"))
LOADS = (0.10, 0.25, 0.40, 0.55, 0.70, 0.85)
WITHIN = {"ttft": 0.10, "tpot": 0.10, "tokens_per_s": 0.10, "ttft_p99": 0.25}
KNOWN = {("8b, lengths differ", "static", "ttft_p99"): 0.55, ("8b, lengths differ", "static", "ttft"): 0.2}
"""What is further off: a static batch lasts as long as its longest output, whose tail is log-normal here, and
of that the form knows the mean and the variance only. At 85 % its p99 is 48 % too long and its mean 15 %; at
25 to 55 % the p99 is 15 to 21 % too short."""


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("case", CASES)
def test_closed_forms_are_near_the_simulator_at_every_load(benchmark, case, policy):
    def table():
        return {load: compared(case, policy, load, requests=REQUESTS, seeds=SEEDS) for load in LOADS}

    found = benchmark.pedantic(table, rounds=1)
    missed = []
    for load, seeds in found.items():
        parts = []
        for name, most in WITHIN.items():
            each = [1 / getattr(one, name) for one in seeds]
            error = middle(seeds, name) - 1
            spread = (max(each) - min(each)) / 2 / (sum(each) / len(each))
            parts.append(f"{name} {error:+6.1%} (seeds ±{spread:.1%})")
            if abs(error) > KNOWN.get((case, policy, name), most):
                missed.append((load, name, error))
        print(f"{case:20} {policy:10} {load:4.0%}  " + "  ".join(parts))
    assert not missed
