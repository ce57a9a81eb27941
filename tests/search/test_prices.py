"""Shadow prices against finite differences of problems that were optimised anew."""

import math
from dataclasses import replace

import pytest

from kvroof.ground.units import GB, GIB, TB
from kvroof.search.optimize import optimize
from kvroof.search.prices import scaled, shadow_prices
from kvroof.search.relaxed_search import Search
from kvroof.serving.pools.goodput import limits

NEAR = 0.05
STEP = 0.01


def optimum(plans, question):
    """Return the only candidate of a search and its refined relaxed optimum."""
    search = Search(plans, question)
    best = search.order()[0]
    return search.candidates[best], search.refine([best])[best]


def gain(plans, question, change):
    """Return what the log objective gains per relative change, by re-optimising twice."""
    up, down = (optimum(*change(plans, question, factor))[1].value for factor in (1 + STEP, 1 - STEP))
    return (up - down) / (2 * STEP)


def machine(**factors):
    def change(plans, question, factor):
        own = dict.fromkeys(factors, factor)
        return [replace(p, hardware=scaled(p.hardware, **own)) for p in plans], question

    return change


def memory(plans, question, factor):
    def larger(plan):
        hardware = plan.hardware
        return replace(
            plan, hardware=replace(hardware, visible_memory_bytes=round(hardware.capacity_bytes * factor))
        )

    return [larger(plan) for plan in plans], question


def limit(name):
    def change(plans, question, factor):
        own = {key: getattr(question.limits, f"{key}_s") for key in ("ttft", "tpot")}
        own[name] *= factor
        return plans, replace(question, limits=limits(own["ttft"], own["tpot"]))

    return change


CASES = {
    "tpot binds": {"ttft": None, "tpot": 0.03},
    "ttft and tpot": {"ttft": 0.7, "tpot": 0.03},
    "memory binds": {"ttft": None, "tpot": None},
    "latency": {"ttft": None, "tpot": None, "objective": "latency", "batch": 16},
    "largest batch": {"ttft": None, "tpot": 0.03, "maximize": "batch"},
    "energy": {"ttft": 0.8, "tpot": None, "objective": "energy"},
}


@pytest.mark.parametrize(
    ("case", "chunk", "calibrated"),
    [
        *((case, "whole", True) for case in CASES),
        ("ttft and tpot", 512, True),
        ("tpot binds", "whole", False),
        ("memory binds", 512, False),
    ],
)
def test_a_price_is_what_the_next_unit_brings(choose, ask, case, chunk, calibrated):
    plans, question = choose(tp=2, pp=1, calibrated=calibrated), ask(chunk=chunk, **CASES[case])
    candidate, at = optimum(plans, question)
    if at.slack["tpot"] > 1e-3 or at.slack["ttft"] > 1e-3:
        pytest.skip("nothing keeps these limits")
    metric = math.exp(at.value)
    prices = shadow_prices(candidate, at, metric, "units")
    hardware = plans[0].hardware
    amounts = {
        "hbm_bandwidth": (hardware.hbm_bytes_per_s / GB, machine(hbm_bandwidth=1)),
        "compute": (hardware.peak_flops_per_s["bf16"] / TB, machine(compute=1)),
        "link": (hardware.scale_up.bytes_per_s / GB, machine(link=1)),
        "memory": (hardware.capacity_bytes / GIB, memory),
        "ttft": ((question.limits.ttft_s or 0) * 1e3, limit("ttft")),
        "tpot": ((question.limits.tpot_s or 0) * 1e3, limit("tpot")),
    }
    sign = -1 if question.objective in ("latency", "energy") else 1
    seen = 0
    for name, price in prices.items():
        amount, change = amounts[name]
        found = gain(plans, question, change)
        assert sign * price.value * amount / metric == pytest.approx(found, rel=NEAR, abs=2e-3), name
        seen += abs(found) > 0.05
    assert seen


def test_limits_that_do_not_bind_are_worth_nothing(choose, ask):
    found = optimize(choose(tp=2, pp=1), ask(ttft=30.0, tpot=0.02, chunk="whole"))
    assert found.shadow_prices["ttft"].value == pytest.approx(0, abs=1e-6)
    assert found.shadow_prices["memory"].value == pytest.approx(0, abs=1e-6)
    assert found.shadow_prices["tpot"].value > 0
    assert found.shadow_prices["tpot"].unit == "tokens/s per device per ms"


def test_without_a_second_device_no_link_has_a_price(choose, ask):
    assert "link" not in optimize(choose(tp=1, pp=1), ask(tpot=0.04)).shadow_prices
    assert "link" in optimize(choose(tp=2, pp=1), ask()).shadow_prices
