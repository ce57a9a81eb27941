"""The best operating point of a question: what binds it, what more is worth, what would make it feasible."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from kvroof.ground.errors import BadInput, KvroofError
from kvroof.roofline.plan import Plan
from kvroof.search.assumptions import assumptions
from kvroof.search.candidates import Candidate
from kvroof.search.integers import Point, exhaustive, whole_points
from kvroof.search.outcome import Answer, OperatingPoint, WayOut, operating_point, operating_points
from kvroof.search.prices import Optimum, ShadowPrice, shadow_prices
from kvroof.search.question import Question
from kvroof.search.relax import LIMITS
from kvroof.search.relaxed_search import FINALISTS, SLIP, Search
from kvroof.search.ways_out import more_room, nearest, over_room, ways_out

NOT_FITTING = "it does not fit: times and rates are what they would be if it did"
MOST_OTHERS = 5
"""Other layouts of a machine that are shown beside the best."""
MOST_VERIFIED = 20_000_000
"""Whole points that are all evaluated when one asks: minutes."""
BINDS = 1e-3
"""Multiplier from which a limit is said to bind: the share of the objective that a share of it is worth."""


def optimize(plans: Iterable[Plan], question: Question, *, verify: bool = False) -> Answer:
    """Return the best operating point of the plans, and what it is bound by.

    Args:
        plans: The discrete choices: machines, layouts, dtypes.
        question: Requests, limits and what is made best of.
        verify: Whether every whole point of every candidate is evaluated too.

    Raises:
        BadInput: A question that cannot be asked, no plan at all, or too many whole points to verify with.
    """
    return answer(Search(plans, question), verify=verify)


def answer(search: Search, *, verify: bool = False) -> Answer:
    """Return what a search comes to; see `optimize`.

    Raises:
        BadInput: No plan holds a single request.
    """
    question = search.question
    if search.relaxed is None:
        return no_room(search)
    best, point, optima, points = search.finish()
    candidate = search.candidates[best]
    chosen = operating_point(candidate, point)
    metric, unit = objective_of(question, chosen)
    prices: dict[str, ShadowPrice] = {}
    binding: tuple[str, ...] = ()
    excess: dict[str, float] = {}
    ways: tuple[WayOut, ...] = ()
    if point.feasible:
        prices = shadow_prices(candidate, optima[best], metric, unit)
        binding = _binding(candidate, optima[best])
    else:
        excess = nearest(candidate, point)
        tried = [search.candidates[i] for i in search.order()[:FINALISTS]]
        binding, ways = tuple(excess), tuple(ways_out(tried, question, candidate, point))
    others = _others(search, points, best)
    gap, counted = None, None
    evaluations = search.evaluations
    if verify:
        gap, counted = _gap(search.choices(), point)
    return Answer(
        feasible=point.feasible,
        best=chosen,
        binding=binding,
        shadow_prices=prices,
        excess=excess,
        ways_out=ways,
        others=others,
        candidates=len(search.every),
        left_out=search.left_out,
        evaluations=evaluations,
        relaxed_evaluations=search.relaxed_evaluations,
        residual=optima[best].residual if point.feasible else None,
        exhaustive_gap=gap,
        exhaustive_evaluations=counted,
        objective=unit,
        assumptions=assumptions(search.candidates, candidate, chosen),
    )


def no_room(search: Search) -> Answer:
    """Return the answer where no memory holds a single request: what lacks least, and ways out.

    Its times suppose that it did.

    Raises:
        BadInput: There is no deployment at all, for other reasons.
    """
    short = [candidate for candidate in search.short if candidate.cap.name == "memory"]
    if not short:
        search.refuse()
    candidate = min(short, key=over_room)
    point = Point(size=candidate.least, chunk=None, value=0.0, excess=over_room(candidate))
    chosen = operating_point(candidate, point)
    return Answer(
        feasible=False,
        best=chosen,
        binding=("memory",),
        shadow_prices={},
        excess={"memory": over_room(candidate)},
        ways_out=tuple(more_room(candidate)),
        others=(),
        candidates=len(search.short),
        left_out=search.left_out,
        evaluations=candidate.evaluations,
        relaxed_evaluations=0,
        residual=None,
        objective=objective_of(search.question, chosen)[1],
        assumptions=(NOT_FITTING, *assumptions(short, candidate, chosen)),
    )


def _binding(candidate: Candidate, at: Optimum) -> tuple[str, ...]:
    """Return the limits whose change would change the objective."""
    names = {"size": candidate.cap.name}
    return tuple(names.get(limit, limit) for limit in LIMITS if at.multipliers[limit] > BINDS)


def _gap(choices: Sequence[Candidate], point: Point) -> tuple[float, int]:
    """Return by what share the best of all whole points is better, and how many points were evaluated.

    Raises:
        BadInput: They are too many.
    """
    count = sum(whole_points(choice) for choice in choices)
    if count > MOST_VERIFIED:
        raise BadInput(
            f"{count:,} whole points are too many to evaluate",
            where="--verify",
            way_out="narrow them with --max-batch, --chunk, or fixed ranks",
        )
    before = sum(c.evaluations for c in choices)
    every = []
    for choice in choices:
        try:
            every.append(exhaustive(choice))
        except KvroofError:
            continue
    counted = sum(c.evaluations for c in choices) - before
    best = max(every, key=lambda p: p.rank)
    if best.feasible != point.feasible:
        return 1.0, counted
    missed = best.value - point.value if best.feasible else point.excess - best.excess
    return 1 - math.exp(-max(missed, 0.0)), counted


def _others(search: Search, points: dict[int, Point], best: int) -> tuple[OperatingPoint, ...]:
    """Return the best point of every other machine, or of other layouts of the only one, best first.

    Of each the most promising candidate that keeps the limits is taken, among those whose relaxed optimum
    keeps them or nearly. All are rounded together.
    """
    assert search.relaxed is not None
    plans = [candidate.plan for candidate in search.candidates]
    several = len({plan.hardware.name for plan in plans}) > 1
    keys = [plan.hardware.name if several else plan.layout for plan in plans]
    found: dict[Any, Point] = {keys[best]: points[best]}
    behind: dict[Any, Candidate] = {keys[best]: search.candidates[best]}
    left = sorted(points, key=lambda i: points[i].rank, reverse=True)
    left += [i for i in search.order() if i not in points and search.excess(i) <= SLIP]
    while left:
        wanted = math.inf if several else MOST_OTHERS + 1 - len(found)
        tried: dict[Any, int] = {}
        for i in left:
            if keys[i] not in found and len(tried) < wanted:
                tried.setdefault(keys[i], i)
        if not tried:
            break
        points |= search.rounded([i for i in tried.values() if i not in points])
        for key, i in tried.items():
            if i in points and points[i].feasible:
                found[key], behind[key] = points[i], search.candidates[i]
        left = [i for i in left if i not in tried.values()]
    ranked = sorted(found, key=lambda key: found[key].rank, reverse=True)
    return operating_points([(behind[key], found[key]) for key in ranked if key != keys[best]])


def objective_of(question: Question, point: OperatingPoint) -> tuple[float, str]:
    """Return what was made best of at a point, and its unit."""
    if question.maximize == "context":
        return point.isl + point.osl, "tokens"
    if question.maximize == "batch":
        return float(point.batch), "sequences"
    if question.objective == "latency":
        return point.e2e_s, "s"
    if question.objective == "cost":
        assert point.cost_per_mtok is not None
        return point.cost_per_mtok, "USD per million tokens"
    if question.objective == "energy":
        assert point.joules_per_token is not None
        return point.joules_per_token, "J per token"
    return point.tokens_per_s_per_device, "tokens/s per device"
