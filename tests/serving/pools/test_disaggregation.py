"""Two pools: transfers, rate matching in whole instances, and a verdict that knows its error."""

import functools
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvroof.ground.errors import BadInput
from kvroof.memory.ledger import fit
from kvroof.roofline.plan import Plan
from kvroof.schedule.policies import Policy
from kvroof.serving.demand.lengths import fixed
from kvroof.serving.demand.traffic import traffic
from kvroof.serving.pools.best_pools import (
    Question,
    best_one_pool,
    best_split,
    decode_rate,
    prefill_rate,
    question_of,
    solved_rate,
)
from kvroof.serving.pools.break_even import break_even
from kvroof.serving.pools.disaggregation import Split, TwoPools, split
from kvroof.serving.pools.goodput import Replica, highest_rate, limits, replica
from kvroof.serving.pools.pool_choice import choose, log_ratio
from kvroof.serving.pools.transfer import KVLink, kv_link, link_wait_s, seen_s, transferred_bytes
from kvroof.serving.pools.verdict import assumptions_of, disaggregate
from kvroof.serving.steady.queueing import NoSteadyState
from kvroof.serving.step_times import AffineTimes

TIMES = AffineTimes(prefill_start_s=0.008, token_s=40e-6, decode_start_s=0.01, seq_s=20e-6, cached_s=4e-8)
ASKED = traffic(fixed(1000), fixed(201))
FREE = KVLink(name="free", bytes_per_s=1e18)
few = settings(max_examples=6, deadline=None)


def affine_replica(name="one", devices=1, times=TIMES, error=0.1, max_seqs=512):
    return Replica(
        name=name,
        hardware="chip",
        times=times,
        devices=devices,
        max_seqs=max_seqs,
        kv_bytes=lambda tokens: 1e5 * tokens,
        layers=32,
        error=error,
    )


def question(ttft=0.3, tpot=0.04, devices=8, link=FREE, asked=ASKED, error=0.1):
    one = (affine_replica(error=error),)
    return Question(
        aggregated=one,
        prefill=one,
        decode=one,
        asked=asked,
        limits=limits(ttft, tpot),
        link=link,
        devices=devices,
        policies=(Policy(name="chunked", max_num_seqs=512, max_num_batched_tokens=2048),),
    )


@given(st.floats(0, 10), st.floats(0, 10), st.integers(1, 128))
def test_what_is_seen_of_a_transfer_is_its_last_layer_or_what_prefill_does_not_cover(move, prefill, layers):
    seen = seen_s(move, prefill, layers)
    assert move / layers <= seen * (1 + 1e-12)
    assert seen <= move * (1 + 1e-12)
    if prefill == 0 or layers == 1:
        assert seen == pytest.approx(move)


@given(st.floats(1e6, 1e12), st.integers(1, 8), st.floats(1, 1e10))
def test_a_transfer_starts_once_and_moves_its_bytes_over_all_devices(rate, devices, size):
    link = kv_link("wire", rate, start_s=0.001)
    assert link.seconds(size, devices) == pytest.approx(0.001 + size / (rate * devices))


def test_pieces_that_are_posted_apart_cost_their_posting():
    """40,000 descriptors took 129 of 174 ms for 313 MB (vLLM's NIXL connector): 3.2 us each."""
    link = kv_link("nixl", 313e6 / 0.045, descriptor_s=0.129 / 40_000, piece_bytes=313e6 / 40_000)
    assert link.seconds(313e6, 1) == pytest.approx(0.174, rel=1e-3)


def test_a_link_is_a_queue():
    assert link_wait_s(0.5, 1.0) == pytest.approx(0.5)
    assert isinstance(link_wait_s(1.0, 1.0), NoSteadyState)


@pytest.mark.parametrize(
    "wrong",
    [{"bytes_per_s": 0}, {"bytes_per_s": math.nan}, {"efficiency": 0}, {"efficiency": 1.1}, {"start_s": -1}],
)
def test_a_link_that_cannot_be_is_refused(wrong):
    with pytest.raises(BadInput):
        kv_link(**({"name": "x", "bytes_per_s": 1e9} | wrong))


def test_ranks_beyond_the_kv_heads_are_each_sent_their_copy():
    """Bytes grow by max(1, TP / KV heads): Qwen3-235B-A22B has 4 of them."""
    sizes = [transferred_bytes(Plan.of("qwen3-235b-a22b", "h100-sxm", tp=tp), 1024) for tp in (1, 4, 8)]
    assert sizes[1] == sizes[0]
    assert sizes[2] == 2 * sizes[0]


def test_a_split_over_a_free_link_is_its_prefill_and_its_decode():
    one = affine_replica()
    pools = TwoPools(prefill=one, prefill_instances=1, decode=one, decode_instances=1, link=FREE)
    rate, asked = 6.0, traffic(fixed(9000), fixed(201))
    found = split(pools, asked, rate / 10)
    work = TIMES.prefill_s(9000)
    waits = rate / 10 * work**2 / (2 * (1 - rate / 10 * work))
    assert found.ttft_s.mean == pytest.approx(work + waits, rel=1e-6)
    start, each = TIMES.decode_start_s, TIMES.seq_s + asked.context * TIMES.cached_s
    assert found.tpot_s.mean == pytest.approx((start + each) / (1 - rate / 10 * 200 * each), rel=1e-3)
    assert found.limit == "prefill"


@few
@given(st.floats(1e8, 1e11), st.floats(1.2, 10))
def test_a_slower_link_never_shortens_ttft(rate, factor):
    one = affine_replica()
    times = []
    for link in (kv_link("fast", rate * factor), kv_link("slow", rate)):
        found = split(
            TwoPools(prefill=one, prefill_instances=1, decode=one, decode_instances=1, link=link), ASKED, 2.0
        )
        times.append(found.ttft_s.mean if isinstance(found, Split) else math.inf)
    assert times[0] <= times[1]


def test_a_link_that_cannot_carry_the_rate_has_no_steady_state():
    one = affine_replica()
    link = kv_link("slow", 1e8)
    pools = TwoPools(prefill=one, prefill_instances=1, decode=one, decode_instances=1, link=link)
    found = split(pools, ASKED, 2.0)
    assert isinstance(found, NoSteadyState)
    assert found.what == "the link"


@pytest.mark.parametrize("top", [1e-4, 0.37, 1.0, 3.0, 5e4])
def test_a_highest_rate_is_found_from_any_guess(top):
    assert highest_rate(lambda rate: rate <= top, 1.0) == pytest.approx(top, rel=0.01)
    assert highest_rate(lambda rate: False, 1.0) == 0


@pytest.mark.parametrize("devices", [2, 8])
def test_whole_instances_are_matched_as_a_search_over_all_of_them_would(devices):
    asked = question(devices=devices)
    (server,) = asked.prefill
    beyond = devices * min(prefill_rate(server, asked), decode_rate(server, asked))

    def rate(n):
        pools = TwoPools(
            prefill=server,
            prefill_instances=n,
            decode=server,
            decode_instances=devices - n,
            link=asked.link,
        )
        return solved_rate(pools, asked, beyond)

    found = best_split(asked)
    assert found.goodput_rps == pytest.approx(max(rate(n) for n in range(1, devices)), rel=0.02)
    assert found.pools.devices <= devices


def test_two_instances_that_share_requests_in_turn_serve_more_than_twice_one():
    """Each sees them come more evenly than one that is alone at the same rate."""
    one, two = (best_one_pool(question(0.4, 0.0145, devices=n)) for n in (2, 4))
    assert (one.instances, two.instances) == (2, 4)
    assert two.goodput_rps > 2.02 * one.goodput_rps


def test_goodput_of_one_pool_counts_the_devices_a_layout_leaves_idle():
    asked = question(devices=8)
    wide = replace(asked, aggregated=(affine_replica(devices=3),))
    found = best_one_pool(wide)
    assert found.instances == 2
    answer = disaggregate(replace(wide, prefill=asked.prefill, decode=asked.decode))
    assert answer.aggregated.devices == 8
    assert answer.aggregated.goodput_rps_per_device == pytest.approx(found.goodput_rps / 8)


@few
@given(st.floats(0.1, 2.0), st.floats(0.014, 0.2))
def test_the_highest_rate_keeps_the_limits_and_a_little_more_does_not(ttft, tpot):
    asked = question(ttft, tpot, devices=4)
    found = best_split(asked)
    if found is None:
        return
    held = split(found.pools, ASKED, found.goodput_rps)
    assert asked.limits.kept_by(held.ttft_s, held.tpot_s)
    more = split(found.pools, ASKED, found.goodput_rps * 1.05)
    rates = prefill_rate(asked.prefill[0], asked), decode_rate(asked.decode[0], asked)
    bound = min(found.pools.prefill_instances * rates[0], found.pools.decode_instances * rates[1])
    if found.goodput_rps == pytest.approx(bound, rel=0.01):
        assert isinstance(more, NoSteadyState) or not asked.limits.kept_by(more.ttft_s, more.tpot_s)


@pytest.mark.parametrize(
    ("ttft", "tpot", "better"),
    [(0.15, 0.2, "aggregate"), (3.0, 0.0135, "disaggregate")],
    ids=["tight TTFT and loose TPOT", "strict TPOT and loose TTFT"],
)
def test_one_pool_suits_tight_first_tokens_and_two_suit_strict_later_ones(ttft, tpot, better):
    found = choose(question(ttft, tpot, devices=3, error=0.02))
    assert found.verdict == better


def test_whether_splitting_pays_depends_on_the_link_and_is_never_assumed():
    asked = question(3.0, 0.0135, error=0.02)
    one = best_one_pool(asked)
    assert log_ratio(one, best_split(asked)) > 0
    assert log_ratio(one, best_split(replace(asked, link=kv_link("slow", 1e8)))) < 0


def test_a_split_holds_the_weights_twice_so_each_pool_has_less_room_than_one_of_all_devices():
    """Llama-3.1-70B: two pools of 2 GPUs admit fewer sequences together than one pool of 4."""
    asked = traffic(fixed(2048), fixed(256))
    two, four = (replica(Plan.of("llama-3.1-70b", "h100-sxm", tp=tp), asked) for tp in (2, 4))
    assert 2 * two.max_seqs < four.max_seqs


def test_cache_hits_are_said_and_shorten_the_prefill_of_either_way():
    cold, warm = (
        question(3.0, 0.02, asked=traffic(fixed(1000), fixed(201), prefix_hit=h)) for h in (0.0, 0.5)
    )
    assert best_split(warm).goodput_rps > best_split(cold).goodput_rps
    assert best_one_pool(warm).goodput_rps > best_one_pool(cold).goodput_rps
    assert any("50% of the prompt tokens are cached" in said for said in assumptions_of(warm, priced=False))
    assert not any("cached" in said for said in assumptions_of(cold, priced=False))


def test_a_ratio_within_the_models_error_is_a_tie():
    asked = question(0.5, 0.03)
    found = choose(replace(asked, **_with_error(asked, 3.0)))
    assert found.verdict == "tie"
    assert found.log_error > abs(found.log_ratio) > 0


def _with_error(asked, error):
    names = ("aggregated", "prefill", "decode")
    return {name: tuple(replace(r, error=error) for r in getattr(asked, name)) for name in names}


def test_what_flips_the_verdict_flips_it_when_solved_again():
    asked = question(3.0, 0.02, error=0.02)
    choice = choose(asked)
    assert choice.log_ratio > 0
    found = break_even(asked, choice, lambda other: replace(asked, asked=other), ("tpot", "rate"))
    flip, rate = found
    assert rate.better == "either"
    assert rate.value == pytest.approx(min(choice.aggregated.goodput_rps, choice.disaggregated.goodput_rps))
    assert (flip.what, flip.better, flip.above) == ("tpot", "aggregate", True)
    assert flip.value > flip.now == 0.02
    for factor, two in ((1.0, False), (0.9, True)):
        beyond = replace(asked, limits=replace(asked.limits, tpot_s=flip.value * factor))
        assert (log_ratio(best_one_pool(beyond), best_split(beyond)) > 0) is two


def test_equal_cost_gives_one_pool_the_devices_that_the_two_cost():
    one, dear = affine_replica(), replace(affine_replica(name="dear"), hardware="dear")
    asked = replace(question(devices=4), prefill=(dear,), decode=(one,))
    found = choose(asked, {"chip": 1.0, "dear": 3.0})
    pools = found.disaggregated.pools
    cost = 3 * pools.prefill_devices + (pools.devices - pools.prefill_devices)
    assert found.compared.pool_devices("chip") == cost
    with pytest.raises(BadInput, match="no price"):
        choose(asked, {"chip": 1.0})


def test_limits_that_nothing_keeps_are_an_answer_of_their_own():
    asked = question(ttft=0.001, tpot=0.04)
    found = choose(asked)
    assert (found.aggregated, found.disaggregated, found.verdict) == (None, None, "tie")
    answer = disaggregate(asked)
    assert answer.served_by == "neither"
    assert (answer.aggregated.goodput_rps, answer.disaggregated) == (0, None)
    assert answer.aggregated.ttft_s > 0.001  # a prompt of 1,000 tokens alone takes 48 ms
    assert answer.aggregated.tpot_s < 0.04


@pytest.mark.parametrize("wrong", [(0, 1, 0.9), (1, -1, 0.9), (1, 1, 0), (1, 1, 1), (math.nan, 1, 0.9)])
def test_limits_that_cannot_be_are_refused(wrong):
    with pytest.raises(BadInput):
        limits(*wrong)


@functools.cache
def answered(rate=None):
    plans = [Plan.of("llama-3.1-8b", "h100-sxm", tp=1)]

    def ask(asked):
        return question_of(plans, plans, plans, asked, limits(0.5, 0.02), kv_link("400G", 50e9), devices=4)

    return disaggregate(ask(traffic(fixed(2048), fixed(128))), rate_rps=rate), plans[0]


def test_an_answer_says_what_the_contract_asks_and_agrees_with_itself():
    found, plan = answered(rate=8.0)
    for side in (found.aggregated, found.disaggregated):
        assert side.devices == 4
        assert side.tokens_per_s_per_device == pytest.approx(128 * side.goodput_rps_per_device)
        assert side.keeps_limits
        assert side.rate_rps == 8.0
    assert found.kv_bytes_per_request == transferred_bytes(plan, 2048)
    assert found.kv_transfer_s == pytest.approx(found.kv_bytes_per_request / 50e9)
    assert found.disaggregated.prefill_instances + found.disaggregated.decode_instances == 4
    assert found.verdict in ("aggregate", "disaggregate", "tie")
    assert any("both pools" in said for said in found.assumptions)
    assert any("err by" in said for said in found.assumptions)


def test_an_instance_holds_its_weights_and_what_the_ledger_admits_beside_them():
    plan, asked = Plan.of("llama-3.1-8b", "h100-sxm", tp=1), traffic(fixed(2048), fixed(128))
    held = fit(
        plan.model, plan.hardware.capacity_bytes, tokens=math.ceil(asked.context), kv_format=plan.kv_format
    )
    assert replica(plan, asked).max_seqs == held.max_seqs


def test_a_model_that_does_not_fit_is_refused():
    plans = [Plan.of("llama-3.1-405b", "h100-sxm", tp=1)]
    with pytest.raises(BadInput, match="does not fit"):
        question_of(plans, plans, plans, ASKED, limits(1, 1), FREE, 8)
