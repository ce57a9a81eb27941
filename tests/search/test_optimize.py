import math
from dataclasses import replace

import pytest

from kvroof.ground.errors import BadInput, Unsupported
from kvroof.memory.ledger import fit
from kvroof.roofline.plan import Plan
from kvroof.search.integers import polish, polished
from kvroof.search.optimize import optimize
from kvroof.search.points import served
from kvroof.search.prices import scaled
from kvroof.search.relaxed_search import Search
from kvroof.serving.demand.lengths import MAX_LENGTH
from kvroof.serving.pools.goodput import limits

from .problems import problem

GAP = 0.005
"""How far from the best of all whole points an answer may be."""


def plan_of(answer, plans):
    best = answer.best
    (plan,) = (
        p
        for p in plans
        if (p.hardware.name, p.layout.tp, p.layout.pp, p.layout.dp, p.layout.ep)
        == (best.hw, best.tp, best.pp, best.dp, best.ep)
    )
    return plan


@pytest.mark.parametrize("seed", [0, 3, 6, 10, 13, 16, 18, 32])
def test_the_answer_is_the_best_of_all_whole_points_and_keeps_its_limits(seed):
    plans, question, words = problem(seed)
    found = optimize(plans, question, verify=True)
    assert found.exhaustive_gap <= GAP, words
    assert found.exhaustive_evaluations >= 1
    if found.feasible:
        ttft, tpot = question.limits.ttft_s, question.limits.tpot_s
        assert ttft is None or found.best.ttft_s <= ttft
        assert tpot is None or found.best.tpot_s <= tpot
        assert found.residual < 1e-4
        assert found.excess == {}
    else:
        assert found.excess
        assert min(found.excess.values()) > 0


def test_the_best_point_is_the_models_own_and_fits_the_ledger(choose, ask):
    plans, question = choose(most_devices=4), ask()
    best = optimize(plans, question).best
    plan = plan_of(optimize(plans, question), plans)
    found = served(plan, question, [best.batch], None if best.chunk is None else [best.chunk])
    assert (found.ttft_s[0], found.tpot_s[0]) == pytest.approx((best.ttft_s, best.tpot_s), rel=1e-12)
    assert best.tokens_per_s == pytest.approx(best.requests_per_s * best.osl)
    assert best.tokens_per_s_per_device == pytest.approx(best.tokens_per_s / best.devices)
    ledger = fit(
        plan.model,
        plan.hardware.capacity_bytes,
        tokens=4999,
        seqs=best.batch,
        formats=plan.formats,
        kv_format=plan.kv_format,
        allocator=plan.allocator,
        layout=plan.layout,
    )
    assert ledger.fits


def test_looser_limits_more_devices_and_faster_machines_are_never_worse(choose, ask):
    question = ask(2000, 500, ttft=0.6, tpot=0.02)
    plans = choose(most_devices=2)

    def value(plans, question):
        found = optimize(plans, question)
        return found.best.tokens_per_s_per_device if found.feasible else 0.0

    base = value(plans, question)
    assert base > 0
    for looser in (limits(1.0, 0.02), limits(0.6, 0.03), limits(None, None)):
        assert value(plans, replace(question, limits=looser)) >= base * (1 - GAP)
    assert value(choose(most_devices=4), question) >= base * (1 - GAP)
    faster = [replace(p, hardware=scaled(p.hardware, hbm_bandwidth=1.2)) for p in plans]
    assert value(faster, question) >= base * (1 - GAP)


def test_what_binds_is_what_the_answer_runs_into(choose, ask):
    plans = choose(most_devices=2, pp=1)
    assert optimize(plans, ask(ttft=None, tpot=0.02)).binding == ("tpot",)
    assert optimize(plans, ask(ttft=None, tpot=None)).binding == ("memory",)
    assert "ttft" in optimize(plans, ask(ttft=0.5, tpot=None)).binding
    assert optimize(plans, ask(ttft=None, tpot=None, most_batch=8)).binding == ("batch",)


def test_the_largest_batch_keeps_the_limits_and_the_next_does_not(choose, ask):
    plans = choose(tp=2, pp=1)
    question = ask(ttft=None, tpot=0.03, maximize="batch", chunk="whole")
    found = optimize(plans, question)
    (plan,) = plans
    now, then = (served(plan, question, [found.best.batch + n]).tpot_s[0] for n in (0, 1))
    assert now <= 0.03 < then


def test_the_longest_context_keeps_the_limits_and_the_next_does_not(choose, ask):
    plans = choose("llama-3.1-8b", tp=1, pp=1)
    question = ask(ttft=2.0, tpot=None, maximize="context", batch=4, chunk="whole")
    found = optimize(plans, question)
    assert found.best.batch == 4
    (plan,) = plans
    now, then = (served(plan, question, [4], isl=[found.best.isl + n]).ttft_s[0] for n in (0, 1))
    assert now <= 2.0 < then


def test_the_context_ends_where_the_memory_or_the_models_positions_do(choose, ask):
    plans = choose("llama-3.1-8b", tp=1, pp=1)
    free = ask(100, 200, ttft=None, tpot=None, maximize="context", chunk="whole")
    short = optimize(plans, replace(free, batch=1))
    assert (short.best.isl + short.best.osl, short.binding) == (131_072, ("positions",))
    many = optimize(plans, replace(free, batch=32))
    assert many.binding == ("memory",)
    (plan,) = plans
    longest = fit(plan.model, plan.hardware.capacity_bytes, tokens=1, seqs=32).max_tokens
    assert many.best.isl + many.best.osl - 1 == longest


def test_a_state_of_fixed_size_holds_any_context(choose, ask):
    plans = choose("mamba-codestral-7b-v0.1", "h100-sxm", tp=1, pp=1)
    found = optimize(plans, ask(100, 200, ttft=None, tpot=None, maximize="context"))
    assert (found.best.isl + found.best.osl, found.binding) == (MAX_LENGTH, ("length",))
    with pytest.raises(BadInput, match="too many"):
        optimize(plans, ask(100, 200, ttft=None, tpot=None, maximize="context"), verify=True)
    limited = optimize(plans, ask(100, 200, ttft=1.0, tpot=None, maximize="context", chunk="whole"))
    assert limited.binding == ("ttft",)


def test_requests_beyond_the_models_positions_are_answered_and_said(choose, ask):
    plans = choose("llama-3.1-8b", "h100-sxm", tp=8, pp=1)
    said = [
        any("max_position_embeddings" in line for line in optimize(plans, question).assumptions)
        for question in (ask(140_000, 100, ttft=None, tpot=None), ask(130_000, 100, ttft=None, tpot=None))
    ]
    assert said == [True, False]


def test_a_batch_that_is_given_is_kept(choose, ask):
    found = optimize(choose(most_devices=4), ask(ttft=None, tpot=None, batch=12))
    assert found.best.batch == 12


def test_cost_energy_and_latency_are_made_least(choose, ask):
    plans = choose("llama-3.1-8b", "h100-sxm", "l40s", most_devices=2, pp=1)
    question = ask(1000, 200, ttft=None, tpot=0.05)
    cheap = optimize(plans, replace(question, objective="cost", prices={"h100-sxm": 3.0, "l40s": 0.1}))
    dear = optimize(plans, replace(question, objective="cost", prices={"h100-sxm": 3.0, "l40s": 30.0}))
    assert (cheap.best.hw, dear.best.hw) == ("l40s", "h100-sxm")
    price = 0.1 / 3600 / cheap.best.tokens_per_s_per_device * 1e6
    assert cheap.best.cost_per_mtok == pytest.approx(price)
    by_energy = optimize(plans, replace(question, objective="energy")).best
    by_speed = optimize(plans, question).best
    assert by_energy.joules_per_token <= by_speed.joules_per_token * (1 + GAP)
    quick = optimize(plans, replace(question, objective="latency")).best
    assert (quick.batch, quick.devices) == (1, 2)


def test_what_is_infeasible_says_how_far_and_each_way_out_works(choose, ask):
    plans = choose(most_devices=4, pp=1)
    question = ask(ttft=None, tpot=0.004)
    found = optimize(plans, question)
    assert not found.feasible
    assert found.binding == ("tpot",)
    assert found.excess["tpot"] == pytest.approx(found.best.tpot_s / 0.004 - 1)
    way = found.ways_out[0]
    assert way.change == "tpot"
    assert optimize(plans, replace(question, limits=limits(None, way.to))).feasible
    both = optimize(plans, ask(ttft=0.02, tpot=0.004))
    way = both.ways_out[0]
    assert optimize(plans, replace(question, limits=limits(way.to["ttft"], way.to["tpot"]))).feasible


def test_every_choice_is_counted_and_what_is_left_out_has_a_reason(choose, ask):
    plans = choose("llama-3.1-70b", "rtx-4090", "h100-sxm", most_devices=4)
    found = optimize(plans, ask())
    assert sum(found.left_out.values()) + found.candidates >= len(plans)
    assert any("memory" in reason for reason in found.left_out)
    assert any("link" in reason for reason in found.left_out)
    assert found.evaluations >= 17 * found.candidates


def test_each_other_machine_is_shown_with_its_own_best(choose, ask):
    machines = ("h100-sxm", "h200-sxm", "b200-sxm")
    question = ask(2000, 500, ttft=1.0, tpot=0.03)
    found = optimize(choose("llama-3.1-8b", *machines, most_devices=2, pp=1), question)
    shown = (found.best, *found.others)
    assert sorted(point.hw for point in shown) == sorted(machines)
    values = [point.tokens_per_s_per_device for point in shown]
    assert values == sorted(values, reverse=True)
    for point in shown:
        alone = optimize(choose("llama-3.1-8b", point.hw, most_devices=2, pp=1), question)
        assert point.tokens_per_s_per_device == pytest.approx(alone.best.tokens_per_s_per_device, rel=GAP)


@pytest.mark.parametrize(
    "change",
    [
        {"maximize": "nothing"},
        {"maximize": "batch", "objective": "latency"},
        {"objective": "cost"},
        {"cached": 4000},
        {"batch": 0},
        {"chunk": 0},
        {"prices": {"h200-sxm": math.nan}},
    ],
)
def test_what_cannot_be_asked_is_refused(choose, ask, change):
    with pytest.raises(BadInput):
        optimize(choose(tp=1, pp=1), ask(**change))


def test_no_deployment_at_all_is_refused_with_the_reasons(choose, ask):
    with pytest.raises(BadInput, match="no link among 2 devices"):
        optimize(choose("llama-3.1-8b", "rtx-4090", tp=2, pp=1), ask())


def test_where_nothing_fits_the_nearest_is_shown_with_what_would_make_room(choose, ask):
    plans = choose("llama-3.1-70b", "h100-sxm", tp=1, pp=1)
    found = optimize(plans, ask())
    assert (found.feasible, found.binding) == (False, ("memory",))
    assert found.excess["memory"] > 0
    ways = {way.change: way.to for way in found.ways_out}
    room = optimize(choose("llama-3.1-70b", "h100-sxm", tp=ways["max_devices"], pp=1), ask(tpot=None))
    assert room.best.devices == ways["max_devices"]
    assert "weights_dtype" in ways


def test_where_no_single_change_makes_room_the_memory_that_would_is_told(choose, ask):
    (plan,) = choose("deepseek-v3", "rtx-4090", tp=1, pp=1, dp=1)
    found = optimize([plan], ask())
    (way,) = found.ways_out
    assert way.change == "memory_bytes"

    def with_memory(size):
        return replace(plan, hardware=replace(plan.hardware, visible_memory_bytes=size))

    assert optimize([with_memory(way.to + 2**20)], ask(ttft=None, tpot=None)).feasible
    assert not optimize([with_memory(way.to - 2**24)], ask(ttft=None, tpot=None)).feasible


@pytest.mark.parametrize(("axes", "where"), [({"tp": 3}, "--tp"), ({"tp": 16}, "--max-devices")])
def test_a_layout_that_cannot_be_says_why(choose, axes, where):
    with pytest.raises(BadInput) as refused:
        choose("llama-3.1-8b", **axes)
    assert refused.value.where == where


def test_cross_attention_is_refused(choose, ask):
    with pytest.raises(Unsupported, match="--encoder-tokens"):
        optimize(choose("t5-11b", tp=1, pp=1), ask())
    with pytest.raises(BadInput, match="cross-attention"):
        optimize([Plan.of("t5-11b", "h100-sxm")], ask())


def test_every_whole_point_includes_the_choices_that_a_search_passes_over(choose, ask):
    search = Search(choose(), ask())
    every = search.choices()
    assert len(every) > len(search.candidates)
    assert len(every) == 2 * len({id(choice.plan) for choice in every})


def test_rounding_together_is_rounding_one_by_one(choose, ask):
    search = Search(choose("qwen3-30b-a3b", "h100-sxm", "h200-sxm", most_devices=4, pp=1), ask(2000, 500))
    places = [box.at(unit) for box, unit in zip(search.boxes, search.relaxed.unit, strict=True)]
    together = polished(search.candidates, places)
    for candidate, place, found in zip(search.candidates, places, together, strict=True):
        alone = polish(candidate, *place)
        assert (found.size, found.chunk) == (alone.size, alone.chunk)
        assert found.value == pytest.approx(alone.value, rel=1e-12)
