"""One pool at a rate: identities of its parts, and limits that are exact."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvroof.ground.errors import BadInput
from kvroof.schedule.policies import Policy
from kvroof.serving.demand.lengths import fixed
from kvroof.serving.demand.traffic import traffic
from kvroof.serving.steady.batching import one_pool
from kvroof.serving.steady.queueing import NoSteadyState
from kvroof.serving.step_times import AffineTimes

TIMES = AffineTimes(prefill_start_s=0.008, token_s=40e-6, decode_start_s=0.008, seq_s=20e-6, cached_s=4e-8)
CONTINUOUS = Policy(name="continuous", max_num_seqs=512, max_num_batched_tokens=8192)
CHUNKED = Policy(name="chunked", max_num_seqs=512, max_num_batched_tokens=2048)
ONE_BY_ONE = Policy(name="continuous", max_num_seqs=512, max_num_batched_tokens=1)
few = settings(max_examples=15, deadline=None)
policies = st.sampled_from((CONTINUOUS, CHUNKED, Policy(name="static", max_num_seqs=32)))


@few
@given(st.integers(1, 8000), st.integers(1, 600), st.floats(0.05, 0.9), policies)
def test_what_is_reported_together_fits_together(isl, osl, load, policy):
    asked = traffic(fixed(isl), fixed(osl))
    rate = load / (TIMES.prefill_s(isl) + osl * TIMES.decode_s(8, isl) / 8)
    found = one_pool(TIMES, asked, rate, policy)
    if isinstance(found, NoSteadyState):
        assert found.load >= 1
        return
    assert found.tokens_per_s == pytest.approx(rate * osl)
    assert found.e2e_s == pytest.approx(found.ttft_s.mean + (osl - 1) * found.tpot_s.mean)
    for time in (found.ttft_s, found.tpot_s, found.itl_s):
        assert time.p50 <= time.p90 <= time.p99
    assert found.ttft_s.quantile(0.001) >= TIMES.prefill_s(isl) * (1 - 1e-6)
    assert 0 <= found.queue_s <= found.ttft_s.mean


@few
@given(st.integers(1, 8000), st.floats(0.05, 0.95))
def test_requests_of_one_token_one_by_one_are_md1(isl, load):
    work = TIMES.prefill_s(isl)
    found = one_pool(TIMES, traffic(fixed(isl), fixed(1)), load / work, ONE_BY_ONE)
    assert found.ttft_s.mean == pytest.approx(work + load * work / (2 * (1 - load)), rel=1e-6)
    assert found.tpot_s.mean == 0


def test_without_others_a_request_takes_its_steps_and_no_more():
    for policy in (CONTINUOUS, CHUNKED):
        found = one_pool(TIMES, traffic(fixed(1000), fixed(101)), 1e-6, policy)
        assert found.ttft_s.mean == pytest.approx(TIMES.prefill_s(1000), rel=1e-3)
        assert found.tpot_s.mean == pytest.approx(TIMES.decode_s(1, 1050.5), rel=1e-3)


@few
@given(st.floats(0.1, 0.8), st.sampled_from((CONTINUOUS, CHUNKED)))
def test_more_requests_never_shorten_a_time(load, policy):
    asked, most = traffic(fixed(1000), fixed(200)), 12.0
    low, high = (one_pool(TIMES, asked, most * share, policy) for share in (load * 0.8, load))
    assert low.ttft_s.mean <= high.ttft_s.mean * (1 + 1e-3)
    assert low.tpot_s.mean <= high.tpot_s.mean * (1 + 1e-3)


def test_memory_that_admits_fewer_sequences_bounds_the_rate():
    asked = traffic(fixed(1000), fixed(200))
    few_slots = Policy(name="chunked", max_num_seqs=16, max_num_batched_tokens=2048)
    assert not isinstance(one_pool(TIMES, asked, 9.0, CHUNKED), NoSteadyState)
    found = one_pool(TIMES, asked, 9.0, few_slots)
    assert isinstance(found, NoSteadyState)
    assert found.what == "decode"
    near = one_pool(TIMES, asked, 5.0, few_slots)
    assert near.admission_s > 0


def test_a_rate_below_one_busy_prefill_may_still_have_no_steady_state():
    """Decodes stalled by prefill pile up: prefill alone is busy for 80 %, and no number is given."""
    asked = traffic(fixed(1000), fixed(400))
    found = one_pool(TIMES, asked, 0.8 / TIMES.prefill_s(1000), ONE_BY_ONE)
    assert isinstance(found, NoSteadyState)


def test_chunks_trade_gaps_for_first_tokens():
    asked = traffic(fixed(6000), fixed(200))
    small = Policy(name="chunked", max_num_seqs=256, max_num_batched_tokens=512)
    chunked, whole = one_pool(TIMES, asked, 1.5, small), one_pool(TIMES, asked, 1.5, CONTINUOUS)
    assert chunked.itl_s.p99 < whole.itl_s.p99
    assert chunked.ttft_s.mean > whole.ttft_s.mean


def test_what_is_cached_is_not_run():
    lengths = fixed(4000), fixed(100)
    cold, warm = (one_pool(TIMES, traffic(*lengths, prefix_hit=h), 2.0, CHUNKED) for h in (0.0, 0.5))
    assert warm.ttft_s.mean < cold.ttft_s.mean
    assert traffic(*lengths, prefix_hit=0.5).run_tokens == 2000
    assert traffic(*lengths, prefix_hit=0.5).context == traffic(*lengths).context


def test_long_prompts_long_outputs_and_many_requests_press_on_different_times():
    """Prefill work; decode steps over a growing cache; queues. Each is reported apart."""
    base, rate = traffic(fixed(1000), fixed(200)), 2.0
    plain = one_pool(TIMES, base, rate, CHUNKED)
    long_in = one_pool(TIMES, traffic(fixed(6000), fixed(200)), rate, CHUNKED)
    long_out = one_pool(TIMES, traffic(fixed(1000), fixed(1200)), rate, CHUNKED)
    many = one_pool(TIMES, base, 5 * rate, CHUNKED)
    grown = [
        (one.prefilling / plain.prefilling, one.seqs / plain.seqs, one.queue_s / plain.queue_s)
        for one in (long_in, long_out, many)
    ]
    assert max(range(3), key=lambda i: grown[i][0]) == 0
    assert max(range(3), key=lambda i: grown[i][1] / grown[i][0]) == 1
    assert long_out.ttft_s.mean < 1.2 * plain.ttft_s.mean
    assert many.queue_s > plain.queue_s
    assert many.tokens_per_s == pytest.approx(5 * plain.tokens_per_s)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_that_cannot_be_is_refused(rate):
    with pytest.raises(BadInput):
        one_pool(TIMES, traffic(fixed(10), fixed(10)), rate, CHUNKED)


@pytest.mark.parametrize("given_wrongly", [{"prefix_hit": 1.0}, {"prefix_hit": -0.1}, {"arrival_cv2": -1.0}])
def test_traffic_that_cannot_be_is_refused(given_wrongly):
    with pytest.raises(BadInput):
        traffic(fixed(10), fixed(10), **given_wrongly)
    with pytest.raises(BadInput):
        traffic(fixed(10), fixed(10), uncached=fixed(11))
