from contextlib import suppress
from dataclasses import fields, replace

import pytest

from kvroof.ground.errors import BadInput
from kvroof.search.question import Question
from kvroof.search.sizing import Sizing, size_for_rate
from kvroof.serving.demand.lengths import fixed, from_percentiles
from kvroof.serving.pools.goodput import limits


@pytest.fixture(scope="module")
def question(ask):
    return ask(1000, 200, ttft=1.0, tpot=0.03)


def test_the_fleet_keeps_the_limits_and_one_replica_fewer_does_not(choose, question):
    plans = choose("llama-3.1-8b", "h100-sxm", tp=1, pp=1)
    found = size_for_rate(plans, question, 60.0, 64)
    assert found.feasible
    assert found.best.replicas == found.best.devices > 1
    assert found.best.ttft_s <= 1.0
    assert found.best.tpot_s <= 0.03
    assert found.best.tokens_per_s == pytest.approx(60 * 200)
    assert found.binding
    sizing = Sizing(plans, question, 60.0, 64)
    ((i, _), *_) = sizing.closed_rates()
    assert sizing.kept(i, found.best.replicas) is not None
    assert sizing.kept(i, found.best.replicas - 1) is None


def test_a_higher_rate_or_tighter_limits_never_take_fewer_devices(choose, question):
    plans = choose("llama-3.1-8b", "h100-sxm", most_devices=2, pp=1)
    counts = [size_for_rate(plans, question, rate, 256).best.devices for rate in (2.0, 20.0, 100.0)]
    assert counts == sorted(counts)
    tight = replace(question, limits=limits(0.3, 0.012))
    assert size_for_rate(plans, tight, 20.0, 256).best.devices >= counts[1]


def test_the_cheapest_fleet_follows_the_prices(choose, question):
    plans = choose("llama-3.1-8b", "h100-sxm", "l40s", most_devices=1)
    cheap = replace(question, objective="cost", prices={"h100-sxm": 4.0, "l40s": 0.05})
    dear = replace(question, objective="cost", prices={"h100-sxm": 4.0, "l40s": 40.0})
    few, many = (size_for_rate(plans, one, 10.0, 256) for one in (dear, cheap))
    assert (few.best.hw, many.best.hw) == ("h100-sxm", "l40s")
    assert many.best.devices >= few.best.devices
    assert many.best.cost_per_mtok == pytest.approx(0.05 / 3600 * many.best.devices / (10 * 200) * 1e6)


def test_too_few_devices_say_how_many_it_takes(choose, question):
    plans = choose("llama-3.1-8b", "h100-sxm", tp=1, pp=1)
    found = size_for_rate(plans, question, 60.0, 1)
    assert not found.feasible
    assert found.excess["rate"] == pytest.approx(60 / found.best.requests_per_s - 1)
    (way,) = found.ways_out
    assert size_for_rate(plans, question, 60.0, way.to).best.devices == way.to


def test_lengths_that_vary_take_more_than_their_mean(choose, question):
    plans = choose("llama-3.1-8b", "h100-sxm", tp=1, pp=1)
    spread = from_percentiles(500, 4000)
    even = replace(question, isl=from_percentiles(spread.mean, spread.mean))
    uneven = replace(question, isl=spread)
    few, many = (size_for_rate(plans, one, 40.0, 256).best.devices for one in (even, uneven))
    assert few <= many


@pytest.mark.parametrize("rate", [0.0, -1.0, float("inf"), float("nan")])
def test_a_rate_has_to_be_one(choose, question, rate):
    with pytest.raises(BadInput, match="rate"):
        size_for_rate(choose(tp=1, pp=1), question, rate, 8)


def test_a_rate_sets_the_batch_itself(choose, question):
    for change in ({"batch": 4}, {"maximize": "batch"}):
        with pytest.raises(BadInput, match="batch"):
            size_for_rate(choose(tp=1, pp=1), replace(question, **change), 1.0, 8)


PARTS = [
    {"isl": fixed(2000)},
    {"osl": fixed(400)},
    {"cached": 900},
    {"limits": limits(1.0, 0.008)},
    {"objective": "latency"},
    {"objective": "energy"},
    {"objective": "cost", "prices": {"h100-sxm": 2.0}},
    {"maximize": "batch"},
    {"batch": 4},
    {"most_batch": 2},
    {"chunk": 256},
    {"chunk": "whole"},
    {"utilization": 0.2},
    {"reserve_bytes": 60 * 10**9},
]


@pytest.mark.parametrize("change", PARTS, ids=lambda change: " ".join(map(str, change)))
def test_each_part_of_a_question_changes_the_fleet_or_is_refused(choose, question, change):
    plans = choose("llama-3.1-8b", "h100-sxm", tp=1, pp=1)
    asked = replace(question, chunk=2048)
    plain, other = size_for_rate(plans, asked, 60.0, 256), None
    with suppress(BadInput):
        other = size_for_rate(plans, replace(asked, **change), 60.0, 256)
    assert other is None or (other.best, other.objective) != (plain.best, plain.objective)


def test_no_part_of_a_question_is_left_untried():
    assert {name for change in PARTS for name in change} == {field.name for field in fields(Question)}


def test_cached_tokens_are_not_run(choose, question):
    plans = choose("llama-3.1-8b", "h100-sxm", tp=1, pp=1)
    counts = [
        size_for_rate(plans, replace(question, cached=cached), 60.0, 256).best.devices
        for cached in (0, 500, 900)
    ]
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] < counts[0]
    assert replace(question, cached=900).traffic.run_tokens == 100


def test_no_replica_holds_more_than_the_largest_batch(choose, question):
    plans = choose("llama-3.1-8b", "h100-sxm", tp=1, pp=1)
    few, many = (size_for_rate(plans, replace(question, most_batch=most), 20.0, 256).best for most in (4, 64))
    assert few.replicas > many.replicas
    assert few.batch <= 4 * few.replicas


@pytest.mark.parametrize("chunk", [256, 16384])
def test_a_chunk_that_is_given_is_the_schedule(choose, question, chunk):
    plans = choose("llama-3.1-8b", "h100-sxm", tp=1, pp=1)
    asked = replace(question, limits=limits(5.0, 0.1))
    assert size_for_rate(plans, replace(asked, chunk=chunk), 5.0, 256).best.chunk == chunk
    assert size_for_rate(plans, replace(asked, chunk="whole"), 5.0, 256).best.chunk is None
