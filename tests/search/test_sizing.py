from dataclasses import replace

import pytest

from kvroof.ground.errors import BadInput
from kvroof.search.sizing import Sizing, size_for_rate
from kvroof.serving.demand.lengths import from_percentiles
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
