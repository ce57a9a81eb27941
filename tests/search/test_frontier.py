from dataclasses import replace

import numpy as np
import pytest

from kvroof.ground.errors import BadInput
from kvroof.memory.ledger import fit
from kvroof.search.frontier import FrontierPoint, frontier, two_pools, undominated
from kvroof.search.optimize import optimize
from kvroof.serving.pools.goodput import limits


@pytest.fixture(scope="module")
def plans(choose):
    return choose(most_devices=4, pp=1)


@pytest.mark.parametrize("kind", ["interactivity", "ttft"])
def test_more_of_one_is_less_of_the_other_and_both_ways_agree(plans, ask, kind):
    question = ask(2000, 500, ttft=5.0, tpot=None)
    swept, descended = (frontier(plans, question, kind, by) for by in ("sweep", "gradient"))
    for found in (swept, descended):
        x, y = ([getattr(point, axis) for point in found.points] for axis in "xy")
        assert len(x) >= 8
        assert x == sorted(x)
        assert y == sorted(y, reverse=kind == "interactivity")
        assert found.evaluations > 0
    low, high = (
        max(f.points[0].x for f in (swept, descended)),
        min(f.points[-1].x for f in (swept, descended)),
    )
    at = np.geomspace(low, high, 9)[1:-1]
    one, other = (
        np.interp(np.log(at), np.log([p.x for p in f.points]), [p.y for p in f.points])
        for f in (swept, descended)
    )
    assert one == pytest.approx(other, rel=0.08)


def test_the_frontier_passes_through_what_a_search_finds(plans, ask):
    question = ask(2000, 500, ttft=None, tpot=None)
    found = frontier(plans, question)
    for tpot in (0.012, 0.03):
        best = optimize(plans, replace(question, limits=limits(None, tpot))).best
        reached = max(point.y for point in found.points if point.x >= 1 / tpot)
        assert reached == pytest.approx(best.tokens_per_s_per_device, rel=0.06)
        assert reached <= best.tokens_per_s_per_device * 1.005


def test_a_point_of_a_sweep_is_the_deployment_behind_it(plans, ask):
    for place in frontier(plans, ask(2000, 500, ttft=None, tpot=None)).points:
        assert place.x == pytest.approx(1 / place.point.tpot_s)
        assert place.y == pytest.approx(place.point.tokens_per_s_per_device)


def test_capacity_by_context_is_the_ledgers(choose, ask):
    (plan,) = choose("llama-3.1-8b", "h100-sxm", tp=1, pp=1)
    found = frontier([plan], ask(), "context")
    for place in found.points[:: len(found.points) // 4]:
        ledger = fit(plan.model, plan.hardware.capacity_bytes, tokens=round(place.x))
        assert place.y == ledger.max_seqs
    assert [p.y for p in found.points] == sorted((p.y for p in found.points), reverse=True)


def test_two_pools_decode_without_the_stall_of_prompts(plans, ask):
    question = ask(2000, 500, ttft=2.0, tpot=None)
    one, two = frontier(plans, question), two_pools(plans, question)
    assert two.serving == "disaggregated"
    assert two.points[-1].x >= one.points[-1].x * 0.99
    assert max(p.y for p in two.points) < 2 * max(p.y for p in one.points)
    assert all("prefill" in p.words for p in two.points)


def test_points_that_another_beats_in_both_are_dropped():
    points = [
        FrontierPoint(x=x, y=y, hw="a", words="") for x, y in ((1, 5), (2, 4), (2, 3), (3, 4.5), (4, 1))
    ]
    assert [(p.x, p.y) for p in undominated(points)] == [(1, 5), (3, 4.5), (4, 1)]
    assert [(p.x, p.y) for p in undominated(points, least_x=True)] == [(1, 5)]


def test_an_unknown_frontier_is_refused(plans, ask):
    for arguments in (("nothing", "sweep"), ("ttft", "guessing")):
        with pytest.raises(BadInput, match="no frontier"):
            frontier(plans, ask(), *arguments)
