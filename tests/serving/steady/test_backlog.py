"""Tokens that wait for steps of a budget: limits that are exact, and balances that hold everywhere."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kvroof.serving.demand.lengths import fixed, from_percentiles
from kvroof.serving.steady.backlog import Backlog, backlog
from kvroof.serving.steady.queueing import NoSteadyState, service, waiting

few = settings(max_examples=15, deadline=None)
LENGTHS = st.sampled_from([fixed(100), fixed(700), fixed(1000), fixed(3100), from_percentiles(300, 900)])
BUDGET = 1000.0


def steps(idle_s=0.0, start_s=0.01, token_s=1e-4):
    """Return step lengths of a start and a time per token; with nothing to take, `idle_s`."""
    return lambda taken: np.where(taken > 0, start_s + token_s * taken, idle_s)


@few
@given(st.floats(0.05, 0.85))
def test_steps_of_one_prompt_each_are_md1(load):
    """Means and percentiles, the percentiles to the eighth of a step in which an arrival is told apart."""
    length = 0.11
    found = backlog(load / length, fixed(BUDGET), steps(), BUDGET)
    exact = waiting(load / length, service(length))
    times = found.responses()
    assert times.mean == pytest.approx(exact.mean + length, rel=0.02)
    for share in (0.9, 0.99):
        assert times.quantile(share) == pytest.approx(exact.quantile(share) + length, rel=0.05)
    assert found.serving == pytest.approx(load, rel=1e-3)
    assert found.others_per_s == 0


@few
@given(LENGTHS, st.floats(0.05, 0.7), st.sampled_from([0.0, 0.008]))
def test_what_comes_is_taken_and_all_time_is_spent(prompts, load, idle_s):
    rate = load * BUDGET / prompts.mean / 0.11
    found = backlog(rate, prompts, steps(idle_s), BUDGET)
    assert isinstance(found, Backlog)
    unit = prompts.mean / (found.sizes @ np.arange(len(found.sizes)))
    taken = found.taken_shares @ np.arange(1, found.parts + 1) * unit
    assert taken * found.mixed_per_s == pytest.approx(rate * prompts.mean, rel=5e-3)
    assert found.shares.sum() == pytest.approx(1)
    if idle_s:
        assert found.serving + found.others_per_s * idle_s == pytest.approx(1)
    assert 0 < found.wait_s < found.responses().mean


@few
@given(LENGTHS, st.floats(0.1, 0.6))
def test_more_prompts_never_wait_less(prompts, load):
    low, high = (
        backlog(share * BUDGET / prompts.mean / 0.11, prompts, steps(0.008), BUDGET)
        for share in (load, load * 1.3)
    )
    assume(low is not None and high is not None)  # too many steps to tell apart
    assert low.responses().mean <= high.responses().mean
    assert low.serving <= high.serving


def test_without_others_a_prompt_takes_its_steps():
    """3,100 tokens: three full steps and one of 100."""
    found = backlog(1e-6, fixed(3100), steps(), BUDGET)
    assert found.responses().mean == pytest.approx(3 * 0.11 + 0.02, rel=0.03)
    assert found.wait_s == pytest.approx(0, abs=1e-6)


def test_more_than_the_steps_can_take_has_no_steady_state():
    found = backlog(1.01 / 0.11, fixed(BUDGET), steps(), BUDGET)
    assert isinstance(found, NoSteadyState)
    assert found.load > 1


def test_a_backlog_of_hundreds_of_budgets_is_left_to_other_forms():
    assert backlog(0.9 / 0.11 / 500, fixed(500 * BUDGET), steps(), BUDGET) is None
