"""Every discrete choice relaxed and solved together, then rounded: what `optimize` and `sizing` stand on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from kvroof.ground.errors import BadInput, KvroofError
from kvroof.roofline.collectives import tiers
from kvroof.roofline.plan import Plan
from kvroof.search.candidates import Candidate, surfaces
from kvroof.search.integers import Point, polish, polished
from kvroof.search.optimizer import MARGIN, Relaxed, solve
from kvroof.search.prices import Optimum
from kvroof.search.question import Question, check_question
from kvroof.search.relax import CHUNKS, LIMITS, SIZES, Box
from kvroof.serving.room import Stages, stages_of

CHUNK_GAIN = math.log(1.3)
"""How far behind the best a plan may be, its prompts whole, to be tried in chunks too."""
NODE_GAIN = 0.1
"""How much an optimum may have over the best node beside what the size gains between two nodes."""
FINE = math.log(1.15)
"""How far behind the best a candidate may be to get a finer surface."""
FINALISTS = 10
TIE = 1e-9
SLIP = 0.03
"""How far a relaxed value may be below the exact one, or an excess above it."""


class Search:
    """The candidates of a question with their surfaces, solved.

    Args:
        plans: The discrete choices.
        question: What is asked.
        remember: Whether every evaluated point is kept, for a table of them.
    """

    def __init__(self, plans: Iterable[Plan], question: Question, *, remember: bool = False) -> None:
        self.remember = remember
        self.question = check_question(question)
        self.left_out: dict[str, int] = {}
        self.candidates: list[Candidate] = []
        self.boxes: list[Box] = []
        self.relaxed_evaluations = 0
        self._known: dict[Any, Stages] = {}
        self.every: list[Candidate] = []
        self.relaxed: Relaxed | None = None
        all_ = [c for plan in plans if (c := self._candidate(plan)) is not None]
        first = [candidate for candidate in all_ if candidate.possible]
        self.short = [candidate for candidate in all_ if not candidate.possible]
        self.possible = first
        if self.question.chunk in ("auto", "whole"):
            self._take(first)
        if self.question.chunk != "whole":
            self._take([candidate.in_chunks() for candidate in self._worth_chunks(first)])

    def _candidate(self, plan: Plan) -> Candidate | None:
        """Return the candidate of a plan, None for one that the question leaves out."""
        question, machine = self.question, plan.hardware
        reason = None
        if question.objective == "cost" and machine.name not in question.prices:
            reason = "no --price"
        elif question.objective == "energy" and machine.tdp_w is None:
            reason = "no TDP known"
        elif question.batch is not None and question.batch % plan.layout.dp:
            reason = "the batch does not divide among its groups of ranks"
        if reason is not None:
            self._leave(reason)
            return None
        try:
            if plan.layout.devices > 1:
                tiers(machine, plan.layout.devices)
            found = Candidate(plan, question, self._stages(plan), remember=self.remember)
        except KvroofError as error:
            self._leave(error.reason)
            return None
        if not found.possible:
            self._leave(f"{found.cap.name} does not hold it")
        return found

    def _stages(self, plan: Plan) -> Stages:
        """Return the stages of a plan with their weights, which machines have in common."""
        key = (id(plan.model), plan.layout, plan.formats and plan.formats.name)
        if key not in self._known:
            self._known[key] = stages_of(plan)
        return self._known[key]

    def _leave(self, reason: str) -> None:
        self.left_out[reason] = self.left_out.get(reason, 0) + 1

    def _take(self, candidates: Sequence[Candidate]) -> None:
        """Evaluate candidates, and solve those that may be the best of their machine."""
        boxes = [candidate.box() for candidate in candidates]
        made = list(zip(candidates, boxes, surfaces(candidates, boxes), strict=True))
        for _, _, table in made:
            if isinstance(table, KvroofError):
                self._leave(table.reason)
        good = [(c, box, table) for c, box, table in made if not isinstance(table, KvroofError)]
        self.every += [candidate for candidate, *_ in good]
        kept = self._contenders(good)
        if not kept:
            return
        found = self._solve(*zip(*kept, strict=True))
        self.candidates += [c for c, *_ in kept]
        self.boxes += [box for _, box, _ in kept]
        self.relaxed = found if self.relaxed is None else self.relaxed.joined(found)

    def _worth_chunks(self, first: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates that chunks could make the best of their machine.

        Where whole prompts keep the limits chunks gain little; elsewhere all are tried.
        """
        if self.question.chunk != "auto" or self.relaxed is None:
            return list(first)
        best: dict[str, float] = {}
        values = [v if self._keeps(i) else -math.inf for i, v in enumerate(self.relaxed.value)]
        names = [candidate.plan.hardware.name for candidate in self.candidates]
        for name, value in zip(names, values, strict=True):
            best[name] = max(best.get(name, -math.inf), float(value))
        return [
            candidate
            for candidate, name, value in zip(self.candidates, names, values, strict=True)
            if value + CHUNK_GAIN >= best[name]
        ]

    def _contenders(self, made: Sequence[tuple[Candidate, Box, Any]]) -> Sequence[tuple[Candidate, Box, Any]]:
        """Return the candidates whose optimum may be the best of their machine, judged by their nodes.

        Between two nodes the objective is taken to gain no more than the size does, and `NODE_GAIN`. Of a
        single machine, and where no node of a machine keeps the limits, all are returned.
        """
        import numpy as np

        names = [candidate.plan.hardware.name for candidate, *_ in made]
        if len(set(names)) < 2:
            return made
        inside = np.stack([table for *_, table in made])[:, :, 1:-1, 1:-1].reshape(
            len(made), 1 + len(LIMITS), -1
        )
        values = np.where(inside[:, 1:].max(axis=1) <= 0, inside[:, 0], -np.inf).max(axis=1)
        best: dict[str, float] = {}
        for name, value in zip(names, values, strict=True):
            best[name] = max(best.get(name, -math.inf), float(value))
        reach = [NODE_GAIN + box.widths[0] / (SIZES - 1) for _, box, _ in made]
        return [one for i, one in enumerate(made) if values[i] + reach[i] >= best[names[i]]]

    def _solve(self, candidates: Sequence[Candidate], boxes: Sequence[Box], tables: Sequence[Any]) -> Relaxed:
        import numpy as np

        open_axes = [c.open_axes(box) for c, box in zip(candidates, boxes, strict=True)]
        found = solve(np.stack(tables), open_axes)
        self.relaxed_evaluations += found.evaluations
        return found

    @property
    def evaluations(self) -> int:
        """Points of the step model that were evaluated."""
        return sum(candidate.evaluations for candidate in self.every)

    def choices(self) -> list[Candidate]:
        """Return every discrete choice that holds a request, its prompts whole and in chunks as asked.

        Those that the search passed over are among them.
        """
        whole = self.possible if self.question.chunk in ("auto", "whole") else []
        chunked = self.possible if self.question.chunk != "whole" else []
        return [*whole, *(candidate.in_chunks() for candidate in chunked)]

    def order(self) -> list[int]:
        """Return the candidates from the most to the least promising: limits kept first, then by value."""
        if self.relaxed is None:
            return []
        excess = self.relaxed.slack.max(axis=1)
        keys = [
            (excess[i] > MARGIN, -self.relaxed.value[i] if excess[i] <= MARGIN else excess[i])
            for i in range(len(self.candidates))
        ]
        return sorted(range(len(self.candidates)), key=lambda i: keys[i])

    def refine(self, chosen: Sequence[int]) -> dict[int, Optimum]:
        """Return the optima of some candidates on finer surfaces around the first ones."""
        assert self.relaxed is not None
        share = (2 / (SIZES - 1), 2 / (CHUNKS - 1))
        candidates = [self.candidates[i] for i in chosen]
        boxes = [self.boxes[i].around(self.relaxed.unit[i], share) for i in chosen]
        tables = surfaces(candidates, boxes)
        found = self._solve(candidates, boxes, tables)
        return {i: _optimum(found, at, boxes[at]) for at, i in enumerate(chosen)}

    def finish(self) -> tuple[int, Point, dict[int, Optimum], dict[int, Point]]:
        """Return the best candidate, its exact point, and the optima and points of all finalists."""
        assert self.relaxed is not None
        order, values = self.order(), self.relaxed.value
        top = values[order[0]]
        if not self._keeps(order[0]):
            order = order[:FINALISTS]
        near = [i for i in order if self._keeps(i) and values[i] >= top - FINE] or order
        optima = self.refine(near[:FINALISTS])
        ranked = sorted(optima, key=lambda i: -optima[i].value) if self._keeps(order[0]) else list(optima)
        points: dict[int, Point] = {}
        best: int | None = None
        for i in [*ranked, *(i for i in order if i not in optima)]:
            known = optima[i].value if i in optima else values[i]
            if best is not None and points[best].feasible and known + SLIP < points[best].value:
                if i in optima:
                    continue
                break
            place = (
                (optima[i].size, optima[i].chunk) if i in optima else self.boxes[i].at(self.relaxed.unit[i])
            )
            points[i] = polish(self.candidates[i], *place)
            if best is None or self._better(i, best, points):
                best = i
        assert best is not None
        if best not in optima:
            optima |= self.refine([best])
        return best, points[best], optima, points

    def rounded(self, chosen: Sequence[int]) -> dict[int, Point]:
        """Return the exact points of some candidates from their first optima; those that can be served."""
        assert self.relaxed is not None
        places = [self.boxes[i].at(self.relaxed.unit[i]) for i in chosen]
        found = polished([self.candidates[i] for i in chosen], places)
        return {i: point for i, point in zip(chosen, found, strict=True) if isinstance(point, Point)}

    def _better(self, i: int, best: int, points: dict[int, Point]) -> bool:
        """Return whether a point is better; of two as good the one on fewer devices, its prompts whole."""
        one, other = points[i], points[best]
        if one.feasible and other.feasible and abs(one.value - other.value) < TIE:
            mine, its = ((self.candidates[k].plan.layout.devices, points[k].chunk or 0) for k in (i, best))
            return mine < its
        return one.rank > other.rank

    def refuse(self) -> NoReturn:
        """Refuse a question that no plan can hold.

        Raises:
            BadInput: Always, with the reasons.
        """
        reasons = ", ".join(f"{reason} ({count})" for reason, count in self.left_out.items())
        raise BadInput(
            f"no deployment can be: {reasons or 'no layout is valid'}",
            where="optimize",
            way_out="take another machine, other ranks, or more devices with --max-devices",
        )

    def excess(self, i: int) -> float:
        """Return the largest log of a quantity over its limit at a candidate's first optimum."""
        assert self.relaxed is not None
        return float(self.relaxed.slack[i].max())

    def _keeps(self, i: int) -> bool:
        return self.excess(i) <= MARGIN


def _optimum(found: Relaxed, at: int, box: Box) -> Optimum:
    size, chunk = box.at(found.unit[at])
    return Optimum(
        size=size,
        chunk=chunk,
        value=float(found.value[at]),
        slack=dict(zip(LIMITS, (float(s) for s in found.slack[at]), strict=True)),
        multipliers=dict(zip(LIMITS, (float(p) for p in found.prices[at]), strict=True)),
        residual=float(found.residual[at]),
    )
