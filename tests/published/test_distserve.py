"""Closed forms against DistServe's simulator, with its own step times.

The simulator of the DistServe artifact (github.com/LLMServe/DistServe, simdistserve; Zhong et al., OSDI 2024)
ran OPT-13B on A100-80GB: 1,000 Poisson requests of 512 tokens in, and 128 decode rounds after the prompt's
own token. Prompts that wait are run together; in `vllm` they go before decodes, `distserve` has two pools.
The 1,000 arrivals of its seed come 0.8 % slower than the nominal rate, in every run. A pool's cache holds
what the artifact's table of token capacities says.

A steady state is what a run tends to. One of 45 rows is farther than 5 % from it: at 8 requests per second
on TP 4 the run's TPOT is 68.0 ms, where 15,000 requests of the same simulator give 78 ms and the form 72.
"""

import numpy as np
import pytest

from kvroof.schedule.policies import Policy
from kvroof.serving.demand.lengths import fixed
from kvroof.serving.demand.traffic import traffic
from kvroof.serving.pools.disaggregation import TwoPools, split
from kvroof.serving.pools.goodput import Replica
from kvroof.serving.pools.transfer import KVLink
from kvroof.serving.steady.batching import one_pool
from kvroof.serving.steady.queueing import NoSteadyState
from tests.serving.simulation.test_simulator_distserve import (
    CASES,
    DECODE,
    LARGE_BATCH,
    PREFILL,
    PUBLISHED,
    arrivals,
    load,
)

ASKED = traffic(fixed(512), fixed(129))
CAPACITY_TOKENS = {1: 66_144, 2: 163_008, 4: 356_736}
"""OPT-13B by TP. Source: simdistserve/estimators/profile_data/max_num_tokens.csv."""
RUN_OVER_NOMINAL = 1000 / arrivals(1.0)[-1]
FAR = ("vllm", 4, 0, 8)


class Steps:
    """The artifact's step times, in seconds."""

    def __init__(self, backend, tp):
        self.first, self.later = PREFILL[backend, tp], DECODE[backend, tp]

    def prefill_s(self, tokens, cached=0, prompts=1):
        a, b, c = self.first
        total = tokens * prompts
        return (a + b * total + c * prompts * tokens**2 + 1.0 + 2 + 1e-4 * total) / 1000

    def decode_s(self, batch, context):
        batch = np.asarray(batch)
        small, large = (
            start + cached * batch * context + each * batch + 2 + 1e-4 * batch * context
            for start, cached, each in self.later
        )
        return np.where(batch < LARGE_BATCH, small, large) / 1000

    def mixed_s(self, tokens, cached, prompts, batch, context):
        raise AssertionError("no step of the artifact is mixed")


def served(backend, tp_prefill, tp_decode, rate):
    """Return the closed form at the rate at which the run's requests came."""
    rate *= RUN_OVER_NOMINAL
    if backend == "vllm":
        policy = Policy(
            name="continuous",
            max_num_seqs=CAPACITY_TOKENS[tp_prefill] // (512 + 64),
            max_num_batched_tokens=10**7,
        )
        return one_pool(Steps(backend, tp_prefill), ASKED, rate, policy)
    first, later = (
        Replica(
            name=f"tp{tp}",
            hardware="a100",
            times=Steps(backend, tp),
            devices=tp,
            max_seqs=CAPACITY_TOKENS[tp] // (512 + 64),
            kv_bytes=lambda tokens: 0.0,
            layers=40,
        )
        for tp in (tp_prefill, tp_decode)
    )
    free = KVLink(name="free", bytes_per_s=1e12)
    pools = TwoPools(prefill=first, prefill_instances=1, decode=later, decode_instances=1, link=free)
    return split(pools, ASKED, rate)


SATURATED = [case for case in CASES if load(*case) >= 0.9]


@pytest.mark.parametrize(
    ("backend", "tp_prefill", "tp_decode", "rate"), [c for c in CASES if c not in SATURATED]
)
def test_mean_ttft_and_tpot_are_within_5_per_cent_away_from_saturation(backend, tp_prefill, tp_decode, rate):
    """TTFT within 0.9 % in every row; TPOT within 1 % for two pools, 4 % for one, but for one row (6.2 %)."""
    ttft, tpot = PUBLISHED[backend, tp_prefill, tp_decode][rate]
    found = served(backend, tp_prefill, tp_decode, rate)
    allowed = 0.07 if (backend, tp_prefill, tp_decode, rate) == FAR else 0.05
    assert found.ttft_s.mean * 1000 == pytest.approx(ttft, rel=0.01)
    assert found.tpot_s.mean * 1000 == pytest.approx(tpot, rel=allowed)


@pytest.mark.parametrize(("backend", "tp_prefill", "tp_decode", "rate"), SATURATED)
def test_at_saturation_there_is_no_steady_state_and_no_number(backend, tp_prefill, tp_decode, rate):
    found = served(backend, tp_prefill, tp_decode, rate)
    assert isinstance(found, NoSteadyState)
    assert found.load >= 1


def test_every_row_of_the_table_is_in_one_of_the_two_tests():
    assert len(CASES) == 48
    assert len(SATURATED) == 3


P90 = {
    ("vllm", 1, 0, 2): (181.0, 43.67),
    ("vllm", 1, 0, 4): (239.9, 81.53),
    ("vllm", 2, 0, 5): (176.8, 68.4),
    ("vllm", 4, 0, 6): (118.8, 56.77),
    ("distserve", 1, 1, 4): (143.0, 31.59),
    ("distserve", 1, 1, 8): (219.3, 44.92),
    ("distserve", 2, 2, 6): (102.4, 22.36),
}
"""90th percentiles of TTFT and TPOT (ms) in the same runs."""


@pytest.mark.parametrize("case", P90)
def test_ninetieth_percentiles_are_estimated_within_10_per_cent(case):
    """TTFT within 3 %; TPOT, whose spread is an estimate, within 3 % for two pools and 9 % for one."""
    ttft, tpot = P90[case]
    found = served(*case)
    assert found.ttft_s.p90 * 1000 == pytest.approx(ttft, rel=0.05)
    assert found.tpot_s.p90 * 1000 == pytest.approx(tpot, rel=0.10)
