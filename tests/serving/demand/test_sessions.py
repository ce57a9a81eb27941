"""Conversations: what their turns ask, what a cache finds of them, and how long their prefixes stay."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvroof.ground.errors import BadInput
from kvroof.schedule.policies import Policy
from kvroof.serving.demand.sessions import sessions
from kvroof.serving.simulation.instances import Pool
from kvroof.serving.simulation.simulator import simulate
from kvroof.serving.steady.residency import residency
from tests.serving.steps import constant

TALK = {"turns": 5, "think_s": 20.0, "input_tokens": 64, "output_tokens": 17}
POLICY = Policy(name="continuous", max_num_seqs=64)


def run(asked, num_blocks, block_size=16):
    """Return a simulation whose steps take a millisecond, so that next to nothing runs at a time."""
    pool = Pool(
        step_s=constant(1e-3), num_blocks=num_blocks, block_size=block_size, policy=POLICY, prefix_cache=True
    )
    return simulate(asked, pool)


@given(st.integers(1, 200), st.integers(1, 8), st.integers(0, 2**32))
def test_each_turn_asks_all_that_was_said_before(count, turns, seed):
    asked = sessions(2.0, count, **(TALK | {"turns": turns}), seed=seed)
    assert len(asked) == count
    assert [r.arrival_s for r in asked] == sorted(r.arrival_s for r in asked)
    talks = {}
    for request in asked:
        before = talks.get(request.block_hashes[0])
        if before is None:
            assert request.input_tokens == 64
        else:
            assert request.input_tokens == before.input_tokens + before.output_tokens + 64
            assert request.block_hashes[: len(before.block_hashes)] == before.block_hashes
        talks[request.block_hashes[0]] = request


def test_turns_come_at_the_rate_that_is_asked():
    asked = sessions(10.0, 20_000, **TALK)
    middle = [r.arrival_s for r in asked[5000:15_000]]
    assert len(middle) / (middle[-1] - middle[0]) == pytest.approx(10.0, rel=0.05)


def test_a_large_cache_finds_all_that_was_run_before():
    """Of turn k the blocks of k x (64 + 17) - 1 tokens: outputs are found like prompts."""
    asked = sessions(1.0, 200, **TALK, seed=1)
    served = run(asked, 10**5).served
    for one, request in zip(served, asked, strict=True):
        turn = request.input_tokens // (64 + 17)
        assert one.cached_tokens == max(turn * (64 + 17) - 1, 0) // 16 * 16


def test_where_outputs_have_no_names_only_prompts_are_found():
    asked = [replace(r, names_output=False) for r in sessions(1.0, 200, **TALK, seed=1)]
    served = run(asked, 10**5).served
    for one, request in zip(served, asked, strict=True):
        assert one.cached_tokens == max(request.input_tokens - 64 - 17, 0) // 16 * 16


@pytest.mark.parametrize("resident", [0.3, 0.6, 0.9])
def test_prefixes_stay_as_long_as_the_characteristic_time_says(resident):
    """The share of later turns that find their prefix, of 6,000 requests, within 0.04 of Che's approximation.

    The cache is as large as that share takes; sessions that have just begun to fill it are left out.
    """
    rate = 10.0
    low, high = 0.0, 1e7
    for _ in range(60):
        middle = (low + high) / 2
        found = residency(middle, rate, **TALK).resident
        low, high = (middle, high) if found < resident else (low, middle)
    form = residency(high, rate, **TALK)
    asked = sessions(rate, 6000, **TALK, seed=2)
    ran = run(asked, int(high / 16))
    later = [
        one.cached_tokens / (request.input_tokens - 64)
        for one, request in zip(ran.served[2000:], asked[2000:], strict=True)
        if request.input_tokens > 64
    ]
    assert sum(share > 0.5 for share in later) / len(later) == pytest.approx(form.resident, abs=0.04)
    asked_tokens = sum(r.input_tokens for r in asked[2000:])
    hits = sum(one.cached_tokens for one in ran.served[2000:])
    assert hits / asked_tokens == pytest.approx(form.prefix_hit, abs=0.05)


@settings(max_examples=50)
@given(st.floats(0, 1e7), st.floats(1.0, 4.0), st.floats(0.1, 100), st.integers(1, 20))
def test_a_larger_cache_finds_no_less_and_a_higher_rate_no_more(tokens, factor, rate, turns):
    talk = TALK | {"turns": turns}
    found = residency(tokens, rate, **talk)
    assert 0 <= found.prefix_hit <= found.resident <= 1
    assert residency(tokens * factor, rate, **talk).resident >= found.resident - 1e-9
    assert residency(tokens, rate * factor, **talk).resident <= found.resident + 1e-9


@pytest.mark.parametrize("tokens", [5e-324, 2.2e-313, 1e-300, 1e-9, 1.0, 1e300])
def test_the_smallest_and_the_largest_cache_are_answered(tokens):
    assert 0 <= residency(tokens, 1.0, **TALK).resident <= 1


def test_a_cache_of_nothing_finds_nothing_and_an_endless_one_everything():
    assert residency(0.0, 1.0, **TALK).resident == 0
    endless = residency(1e12, 1.0, **TALK)
    assert endless.resident == pytest.approx(1)
    prompts = [64 * (k + 1) + 17 * k for k in range(5)]
    assert endless.prefix_hit == pytest.approx(sum(p + 16 for p in prompts[:-1]) / sum(prompts))


@pytest.mark.parametrize("wrong", [{"turns": 0}, {"think_s": 0.0}, {"think_s": float("inf")}])
def test_what_cannot_be_is_refused(wrong):
    with pytest.raises(BadInput):
        sessions(1.0, 10, **(TALK | wrong))
    with pytest.raises(BadInput):
        residency(1.0, 1.0, **(TALK | wrong))
