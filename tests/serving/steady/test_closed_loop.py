"""A closed loop: what holds whatever the phases, and the limits of its forms."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvroof.ground.errors import BadInput
from kvroof.serving.steady.closed_loop import FRONT_END_S, closed_loop
from kvroof.serving.step_times import AffineTimes

TIMES = AffineTimes(prefill_start_s=0.008, token_s=40e-6, decode_start_s=0.008, seq_s=20e-6, cached_s=4e-8)
isls, osls, counts = st.integers(1, 20_000), st.integers(1, 2000), st.integers(1, 512)


@given(isls, osls, counts)
def test_a_burst_keeps_the_identity_of_the_whole_loop(isl, osl, concurrency):
    """TTFT + osl x TPOT = osl x T_dec + b x T_pf."""
    found = closed_loop(TIMES, isl=isl, osl=osl, concurrency=concurrency, phasing="burst")
    whole = osl * found.decode_s + concurrency * found.prefill_s
    assert found.ttft_s + osl * found.tpot_s == pytest.approx(whole)


@given(isls, osls)
def test_one_request_at_a_time_waits_for_nobody(isl, osl):
    for phasing in ("steady", "burst"):
        found = closed_loop(TIMES, isl=isl, osl=osl, concurrency=1, phasing=phasing)
        assert found.tpot_s == pytest.approx(TIMES.decode_s(1, isl + osl / 2))
    assert found.ttft_s == pytest.approx(TIMES.prefill_s(isl))


@given(isls, osls, counts)
def test_rates_are_requests_over_their_time(isl, osl, concurrency):
    found = closed_loop(TIMES, isl=isl, osl=osl, concurrency=concurrency)
    assert found.requests_per_s * found.e2e_s == pytest.approx(concurrency)
    assert found.tokens_per_s == pytest.approx(osl * found.requests_per_s)
    assert found.e2e_s == pytest.approx(found.ttft_s + (osl - 1) * found.tpot_s)
    assert found.ttft_s > TIMES.prefill_s(isl) + FRONT_END_S


@given(isls, osls, st.integers(2, 512), st.integers(1, 511))
def test_requests_beyond_what_the_memory_admits_wait(isl, osl, concurrency, most):
    found = closed_loop(TIMES, isl=isl, osl=osl, concurrency=concurrency, max_seqs=most)
    alone = closed_loop(TIMES, isl=isl, osl=osl, concurrency=min(concurrency, most))
    assert found.tpot_s == alone.tpot_s
    assert found.requests_per_s == pytest.approx(alone.requests_per_s)
    assert found.ttft_s >= alone.ttft_s


@given(isls, osls, counts)
def test_prompts_that_share_a_step_with_decodes_stall_them_less(isl, osl, concurrency):
    apart = closed_loop(TIMES, isl=isl, osl=osl, concurrency=concurrency)
    mixed = closed_loop(TIMES, isl=isl, osl=osl, concurrency=concurrency, mixes=True)
    assert mixed.tpot_s <= apart.tpot_s


@pytest.mark.parametrize(
    "wrong",
    [{"isl": 0}, {"osl": 0}, {"concurrency": 0}, {"cached": 10}, {"cached": -1}, {"max_seqs": 0}],
)
def test_what_cannot_be_is_refused(wrong):
    with pytest.raises(BadInput):
        closed_loop(TIMES, **({"isl": 10, "osl": 10, "concurrency": 4} | wrong))
