"""One server and a queue, held against exact results."""

import math
from decimal import Decimal, getcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvroof.ground.errors import BadInput
from kvroof.serving.steady.distribution import certain, lognormal, mixture, pieces
from kvroof.serving.steady.gated import gated
from kvroof.serving.steady.occupancy import occupancy
from kvroof.serving.steady.queueing import (
    NoSteadyState,
    burstiness,
    mean_wait_s,
    service,
    two_way_inter_op_ttft_s,
    two_way_intra_op_ttft_s,
    waiting,
)

loads = st.floats(0.02, 0.95)
few = settings(max_examples=20, deadline=None)


def md1_below(wait, rate, length):
    """P(wait <= t) of M/D/1, exact. Source: Erlang 1909; Crommelin 1932."""
    getcontext().prec = 60
    rho, t = Decimal(rate) * Decimal(length), Decimal(wait)
    total = Decimal(0)
    for k in range(int(t / Decimal(length)) + 1):
        x = Decimal(rate) * (Decimal(k) * Decimal(length) - t)
        total += x**k / math.factorial(k) * (-x).exp()
    return float((1 - rho) * total)


@few
@given(loads, st.floats(1e-3, 10))
def test_equal_service_times_give_the_mean_of_md1(load, length):
    """DistServe (arXiv 2401.09670) eq. 1: D + R D**2 / (2 (1 - R D))."""
    rate = load / length
    expected = rate * length**2 / (2 * (1 - rate * length))
    assert mean_wait_s(rate, service(length)) == pytest.approx(expected)
    assert waiting(rate, service(length)).mean == pytest.approx(expected)


@pytest.mark.parametrize("load", [0.1, 0.3, 0.5, 0.7, 0.85, 0.95])
def test_every_percentile_of_md1_is_the_exact_one(load):
    found = waiting(load, service(1.0))
    for share in (0.5, 0.9, 0.99, 0.999):
        wait = found.quantile(share)
        if wait > 0:
            assert md1_below(wait, load, 1.0) == pytest.approx(share, abs=1e-3)
        else:
            assert 1 - load >= share


@pytest.mark.parametrize("load", [0.2, 0.5, 0.8])
def test_exponential_service_gives_the_exponential_tail_of_mm1(load):
    """P(W > t) = rho exp(-(1 - rho) t) for unit service; the service is 400 equal shares of it."""
    shares = (np.arange(400) + 0.5) / 400
    found = waiting(load, service(-np.log1p(-shares)))
    for share in (0.9, 0.99):
        exact = max(math.log(load / (1 - share)) / (1 - load), 0.0)
        assert found.quantile(share) == pytest.approx(exact, rel=0.03)


@given(st.lists(st.floats(0.1, 5), min_size=1, max_size=6), st.floats(0.05, 0.9))
def test_the_mean_wait_is_pollaczek_and_khinchines(times, load):
    work = service(times)
    rate = load / work.mean_s
    second = sum(t * t for t in times) / len(times)
    assert mean_wait_s(rate, work) == pytest.approx(rate * second / (2 * (1 - load)))


@given(st.floats(1.0, 5.0), st.floats(0.01, 10))
def test_a_server_asked_for_more_than_it_can_do_has_no_steady_state(load, length):
    found = mean_wait_s(load / length * (1 + 1e-9), service(length))
    assert isinstance(found, NoSteadyState)
    assert isinstance(waiting(load / length * (1 + 1e-9), service(length)), NoSteadyState)
    assert "no steady state" in found.reason


def test_bursts_lengthen_the_wait_and_poisson_leaves_it():
    """Inter-arrival CV of Azure's code trace: 13."""
    work = service([1.0, 3.0])
    assert burstiness(1.0, work.cv2) == 1
    assert mean_wait_s(0.2, work, 13.0**2) == pytest.approx(
        mean_wait_s(0.2, work) * (169 + work.cv2) / (1 + work.cv2)
    )
    assert waiting(0.2, work, 4.0).p99 > waiting(0.2, work).p99


def test_tensor_parallelism_wins_at_low_rates_and_pipelining_at_high_ones():
    """DistServe eq. 2 and 3 with D = 1 s and a speed-up of 1.6."""
    assert two_way_intra_op_ttft_s(0.1, 1.0, 1.6) < two_way_inter_op_ttft_s(0.1, 1.0)
    assert two_way_intra_op_ttft_s(1.5, 1.0, 1.6) > two_way_inter_op_ttft_s(1.5, 1.0)
    assert two_way_inter_op_ttft_s(1.0, 1.0) == pytest.approx(1 + 1 / (4 * (2 - 1)))
    assert two_way_intra_op_ttft_s(1.0, 1.0, 1.6) == pytest.approx(1 / 1.6 + 1 / (2 * 1.6 * 0.6))
    assert isinstance(two_way_inter_op_ttft_s(2.0, 1.0), NoSteadyState)
    assert isinstance(two_way_intra_op_ttft_s(1.6, 1.0, 1.6), NoSteadyState)


@pytest.mark.parametrize("times", [[], [0.0], [-1.0], [1.0, math.nan]])
def test_service_times_that_cannot_be_are_refused(times):
    with pytest.raises(BadInput):
        service(times)


@few
@given(loads)
def test_a_server_that_takes_one_at_a_time_and_idles_is_md1(load):
    found = gated(load, [1.0])
    assert found.mean_response_s == pytest.approx(1 + load / (2 * (1 - load)), rel=1e-3)
    assert found.serving == pytest.approx(load, rel=1e-3)
    assert found.mean_batch == pytest.approx(1)


@few
@given(st.floats(0.02, 0.85), st.floats(0.01, 3))
def test_other_work_adds_half_of_its_step_to_the_wait(load, other):
    """M/G/1 with vacations: W = W(M/G/1) + E[V**2] / (2 E[V]). Source: Fuhrmann and Cooper 1985."""
    found = gated(load, [1.0], other_s=other)
    assert found.mean_response_s == pytest.approx(1 + load / (2 * (1 - load)) + other / 2, rel=1e-3)
    assert found.others_per_s * other + found.serving == pytest.approx(1, rel=1e-6)


@few
@given(st.floats(0.05, 0.8), st.floats(0, 1), st.integers(2, 8))
def test_several_at_once_occupy_the_server_less_by_the_starts_they_save(load, start, most):
    alone = gated(load, [1.0], other_s=0.3)
    together = gated(load, [1.0 + (1 - start) * k for k in range(most)], other_s=0.3)
    assert together.serving <= alone.serving * (1 + 1e-6)
    assert together.serving >= load * (1 - start) * (1 - 1e-6)


@few
@given(st.floats(0.05, 0.8), st.integers(2, 8))
def test_a_batch_that_takes_no_longer_than_one_shortens_the_response(load, most):
    alone, together = gated(load, [1.0], other_s=0.3), gated(load, [1.0] * most, other_s=0.3)
    assert together.mean_response_s <= alone.mean_response_s * (1 + 1e-6)


def test_a_mean_is_that_of_the_distribution_where_the_batch_has_no_bound():
    found = gated(5.0, [0.05 + 0.04 * k for k in range(64)], other_s=0.03)
    spread = found.responses()
    quantiles = spread.quantiles((np.arange(4000) + 0.5) / 4000)
    assert found.mean_response_s == pytest.approx(quantiles.mean(), rel=2e-3)


def test_run_times_between_two_other_steps_keep_the_mean_time_served():
    found = gated(5.0, [0.05 + 0.04 * k for k in range(64)], other_s=0.03)
    times, shares = found.runs()
    mean = sum(t * p for t, p in zip(times, shares, strict=True)) / sum(shares)
    assert mean == pytest.approx(found.serving / found.others_per_s, rel=0.02)


@given(st.floats(0.01, 0.9), st.floats(1e-3, 0.1), st.integers(1, 500))
def test_an_affine_decode_pool_has_the_mean_of_its_closed_form(load, start, tokens):
    """T = (a + b) / (1 - rate tokens b) with T(n) = a + b n."""
    each = start / 20
    rate = load / (tokens * each)
    most = int(60 * (1 + load * 21 / (1 - load)))
    found = occupancy(rate, tokens, start + each * np.arange(1, most + 1))
    expected = (start + each) / (1 - load)
    assert found.seqs / (rate * tokens) == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize(("servers", "offered"), [(1, 0.5), (2, 1.5), (10, 8.0), (50, 45.0)])
def test_slots_of_constant_speed_wait_as_erlangs_c_says(servers, offered):
    """Erlang 1917: with c servers and offered load a, the share that waits."""
    top = offered**servers / math.factorial(servers) * servers / (servers - offered)
    expected = top / (sum(offered**k / math.factorial(k) for k in range(servers)) + top)
    found = occupancy(offered, 1.0, np.ones(servers), tokens_cv2=1.0)
    assert found.waits == pytest.approx(expected)
    assert found.wait_s.mean == pytest.approx(expected / (servers - offered))


@pytest.mark.parametrize("crowding", [1.0, 0.5, 0.25, 0.1])
def test_sequences_that_do_not_slow_each_other_vary_by_their_crowding(crowding):
    found = occupancy(5.0, 100, np.full(64, 0.01), crowding=crowding)
    assert found.seqs == pytest.approx(5)
    assert found.deviation**2 == pytest.approx(5 * crowding)
    assert found.seen.sum() == pytest.approx(1)


@pytest.mark.parametrize("most", [1, 7, 287, 300])
@pytest.mark.parametrize("crowding", [0.03, 0.3, 0.57, 1.0])
def test_shares_are_told_for_every_slot_and_no_other(most, crowding):
    found = occupancy(0.5 * most, 1.0, np.full(most, 1.0), crowding=crowding)
    assert found.seen.shape == (most,)
    assert found.seqs <= most


def test_even_arrivals_crowd_less_and_are_served_sooner():
    slowing = 0.01 + 0.001 * np.arange(1, 257)
    mean = [occupancy(8.0, 100, slowing, crowding=c).seqs for c in (1.0, 0.5, 0.25, 0.0)]
    assert mean == sorted(mean, reverse=True)
    alone = 8 * 100 * 0.01 / (1 - 8 * 100 * 0.001)  # what is there when nothing varies
    assert alone < mean[-1] < 1.03 * alone


def test_a_pool_whose_memory_admits_too_few_has_no_steady_state():
    assert isinstance(occupancy(10.0, 100, np.full(9, 0.01)), NoSteadyState)
    assert occupancy(10.0, 100, np.full(11, 0.01)).load == pytest.approx(10 / 11)


@given(st.floats(-1, 5), st.floats(0, 3), st.floats(0.05, 0.95))
def test_a_piece_has_the_quantiles_of_a_uniform_time(low, width, share):
    assert pieces(low, width, 1.0).quantile(share) == pytest.approx(low + width * share, abs=1e-9)


@given(st.floats(0.01, 10), st.floats(0.01, 3))
def test_a_log_normal_keeps_its_mean_and_median(mean, ratio):
    found = lognormal(mean, mean * ratio)
    assert found.mean == pytest.approx(mean)
    assert found.p50 == pytest.approx(mean / math.sqrt(1 + ratio**2), rel=1e-6)


def test_a_mixture_keeps_jumps_and_shares():
    found = mixture(((0.3, certain(1.0)), (0.7, pieces(2.0, 2.0, 1.0))))
    assert found.below(0.99) == 0
    assert found.below(1.0) == pytest.approx(0.3)
    assert found.below(1.99) == pytest.approx(0.3)
    assert found.below(3.0) == pytest.approx(0.3 + 0.35)
    assert found.mean == pytest.approx(0.3 + 0.7 * 3)


@given(st.floats(0, 4), st.floats(0.1, 4), st.floats(0.1, 4))
def test_the_sum_of_two_uniform_times_is_the_triangle_it_should_be(low, one, two):
    found = pieces(low, one, 1.0).plus(pieces(0.0, two, 1.0))
    assert found.mean == pytest.approx(low + (one + two) / 2)
    assert found.p50 == pytest.approx(low + (one + two) / 2, rel=0.03)
    assert found.below(low + one + two) == pytest.approx(1)
