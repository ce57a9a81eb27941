"""What would flip the answer between one pool and two: each condition found by solving again.

One condition is changed at a time, outward from what was asked and then by bisection, with the replicas of
the best answers and all schedules. A condition that flips nothing within reach is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias, get_args

from kvroof.ground.record import record, static
from kvroof.serving.demand.traffic import Traffic
from kvroof.serving.pools.best_pools import OnePool, Question, best_one_pool, best_split
from kvroof.serving.pools.goodput import Limits, Replica
from kvroof.serving.pools.pool_choice import Choice, log_ratio

What: TypeAlias = Literal["rate", "isl", "osl", "prefix_hit", "link", "ttft", "tpot"]
Way: TypeAlias = Literal["aggregate", "disaggregate", "either"]
Ask: TypeAlias = Callable[[Traffic], Question]
"""Makes the question anew for other requests: what the memory admits depends on them."""

FACTORS = (2.0, 4.0, 8.0)
HITS = (0.0, 0.3, 0.6, 0.8, 0.9, 0.95)
BISECTIONS = 4


@record
class Condition:
    """Beyond `value`, `above` it or below, `better` is the way to serve; `now` is what was asked."""

    what: What = static()
    value: float
    now: float
    unit: str = static()
    above: bool = static()
    better: Way = static()


@record
class _Knob:
    """A condition that can be set: the values to try on one side of `now`, and the question at a value.

    Where it is `one_way`, more of it only ever helps the same side: what does not flip far off never does.
    """

    what: What
    now: float
    unit: str
    values: tuple[float, ...]
    at: Callable[[float], Question]
    one_way: bool = False


def break_even(
    question: Question,
    choice: Choice,
    ask: Ask,
    whats: Collection[What] = get_args(What),
    rate_rps: float | None = None,
) -> tuple[Condition, ...]:
    """Return the conditions that flip which way is better, each changed alone.

    The rate is one of them: up to the lower of the two goodputs either way keeps the limits.

    Args:
        question: What was asked.
        choice: Its answer.
        ask: Makes the question anew for other requests.
        whats: The conditions that are changed.
        rate_rps: The rate asked for; the higher of the two goodputs where none is.
    """
    two = choice.log_ratio > 0
    found = []
    solver = _Solver(choice)
    for knob in (k for k in _knobs(question, ask) if k.what in whats):
        flip = _flip(knob, solver, two)
        if flip is not None:
            found.append(
                Condition(
                    what=knob.what,
                    value=flip,
                    now=knob.now,
                    unit=knob.unit,
                    above=flip > knob.now,
                    better="aggregate" if two else "disaggregate",
                )
            )
    if "rate" in whats and choice.aggregated is not None and choice.disaggregated is not None:
        rates = choice.aggregated.goodput_rps, choice.disaggregated.goodput_rps
        now = max(rates) if rate_rps is None else rate_rps
        found.append(
            Condition(what="rate", value=min(rates), now=now, unit="req/s", above=False, better="either")
        )
    return tuple(found)


def _knobs(question: Question, ask: Ask) -> list[_Knob]:
    asked, kept, link = question.asked, question.limits, question.link

    def longer(tokens: float) -> Question:
        factor = tokens / asked.isl.mean
        uncached = None if asked.uncached is None else asked.uncached.scaled(factor)
        return ask(replace(asked, isl=asked.isl.scaled(factor), uncached=uncached))

    def later(tokens: float) -> Question:
        return ask(replace(asked, osl=asked.osl.scaled(tokens / asked.osl.mean)))

    made = [
        *_both_sides("isl", asked.isl.mean, "tokens", longer),
        *_both_sides("osl", asked.osl.mean, "tokens", later, least=2.0),
        *_both_sides(
            "link",
            link.bytes_per_s,
            "B/s",
            lambda rate: replace(question, link=replace(link, bytes_per_s=rate)),
            one_way=True,
        ),
    ]
    if kept.ttft_s is not None:
        made += _both_sides(
            "ttft", kept.ttft_s, "s", lambda s: replace(question, limits=replace(kept, ttft_s=s))
        )
    if kept.tpot_s is not None:
        made += _both_sides(
            "tpot", kept.tpot_s, "s", lambda s: replace(question, limits=replace(kept, tpot_s=s))
        )
    if asked.uncached is None:
        now = asked.prefix_hit
        sides = (tuple(h for h in HITS if h > now), tuple(h for h in reversed(HITS) if h < now))
        made += [
            _Knob(
                what="prefix_hit",
                now=now,
                unit="share",
                values=side,
                at=lambda hit: ask(replace(asked, prefix_hit=hit)),
            )
            for side in sides
        ]
    return made


def _both_sides(
    what: What,
    now: float,
    unit: str,
    at: Callable[[float], Question],
    least: float = 0.0,
    one_way: bool = False,
) -> list[_Knob]:
    sides: tuple[Sequence[float], ...] = (
        [now * f for f in FACTORS],
        [now / f for f in FACTORS if now / f >= least],
    )
    return [
        _Knob(what=what, now=now, unit=unit, values=tuple(side), at=at, one_way=one_way) for side in sides
    ]


def _flip(knob: _Knob, solver: _Solver, two: bool) -> float | None:
    """Return the value nearest to now at which the other way is better, None where none is."""
    if knob.one_way and solver.better(knob.at(knob.values[-1])) is not (not two):
        return None
    last = knob.now
    for value in knob.values:
        if solver.better(knob.at(value)) is (not two):
            break
        last = value
    else:
        return None
    flipped = value
    for _ in range(BISECTIONS):
        middle = (last + flipped) / 2 if knob.what == "prefix_hit" else math.sqrt(last * flipped)
        if solver.better(knob.at(middle)) is (not two):
            flipped = middle
        else:
            last = middle
    return flipped


class _Solver:
    """Solves changed questions with the replicas of an answer; one pool only where it is another question."""

    def __init__(self, choice: Choice) -> None:
        self._one, self._two = choice.aggregated, choice.disaggregated
        self._known: dict[tuple[tuple[Replica, ...], Traffic, Limits], OnePool | None] = {}

    def better(self, question: Question) -> bool | None:
        """Return whether two pools are better than one, None where neither keeps the limits."""
        one, two = self._one, self._two
        near = replace(
            question,
            aggregated=tuple(r for r in question.aggregated if one is None or r.name == one.server.name),
            prefill=tuple(r for r in question.prefill if two is None or r.name == two.pools.prefill.name),
            decode=tuple(r for r in question.decode if two is None or r.name == two.pools.decode.name),
        )
        key = near.aggregated, near.asked, near.limits
        if key not in self._known:
            self._known[key] = best_one_pool(near, one)
        ratio = log_ratio(self._known[key], best_split(near))
        return None if ratio == 0 else ratio > 0
