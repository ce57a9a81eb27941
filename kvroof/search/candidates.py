"""One discrete choice of a search: where it may lie, its surface over a box, and its exact points."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from copy import copy
from itertools import accumulate
from statistics import NormalDist
from typing import Any

from kvroof.ground.errors import KvroofError
from kvroof.ground.record import record, static
from kvroof.roofline.plan import Plan
from kvroof.search.choices import Room
from kvroof.search.points import LEAST_CHUNK, Served, served
from kvroof.search.question import Question
from kvroof.search.relax import CHUNKS, FREE, LIMITS, SIZES, Box, padded
from kvroof.search.stacking import stacked, structure
from kvroof.serving.demand.lengths import MAX_LENGTH
from kvroof.serving.room import Stages
from kvroof.serving.steady.closed_loop import STEP_TOKENS
from kvroof.serving.step_times import check_not_crossing

MOST_SEQS = 2**24
BEYOND = 0.02
"""How far a box reaches beyond the largest size, so that the limit binds and not the box."""


@record
class Cap:
    """What bounds the size of a candidate: `most` as a real number, `whole` in whole ones."""

    name: str = static()
    most: float
    whole: int


class Candidate:
    """A plan with prompts run whole or in chunks, and what of it is searched.

    Its size is the sequences of one replica of attention, or the prompt's length where that is searched.

    Args:
        plan: The deployment.
        question: What is asked.
        stages: The plan's stages, where they are known already.
        remember: Whether evaluated points are kept.

    Raises:
        Unsupported: A model with cross-attention.
    """

    def __init__(
        self, plan: Plan, question: Question, stages: Stages | None = None, *, remember: bool = False
    ) -> None:
        check_not_crossing(plan.model)
        self.plan, self.question, self.chunked = plan, question, False
        self.room = Room(plan, stages, question.utilization, question.reserve_bytes)
        self.evaluations = 0
        self.seen: list[tuple[Any, Any, Served]] | None = [] if remember else None
        self.caps = tuple(self._caps())
        self.cap = min(self.caps, key=lambda cap: cap.most)
        self.whole = min(cap.whole for cap in self.caps)

    def in_chunks(self) -> Candidate:
        """Return the candidate that cuts prompts into chunks."""
        other = copy(self)
        other.chunked, other.evaluations = True, 0
        other.seen = None if self.seen is None else []
        return other

    @property
    def least(self) -> int:
        """The smallest size."""
        question = self.question
        if question.wants_context:
            return question.cached + 1
        return 1 if question.batch is None else question.batch // self.plan.layout.dp

    @property
    def possible(self) -> bool:
        """Whether the smallest size is within every cap."""
        return bool(self.whole >= self.least)

    @property
    def seqs(self) -> int:
        """Sequences of a replica, where their number is given."""
        return (self.question.batch or 1) // self.plan.layout.dp

    @property
    def smallest(self) -> tuple[int, int]:
        """The tokens of each sequence and the sequences of the smallest demand."""
        question = self.question
        if question.wants_context:
            return self.least + math.ceil(question.osl.mean) - 1, self.seqs * self.plan.layout.dp
        return self.held_tokens(self.least), self.least * self.plan.layout.dp

    def held_tokens(self, seqs: int) -> int:
        """Return the tokens that each of `seqs` sequences of a replica is counted with.

        All may grow to their end. Of lengths that differ the sum is what the asked percentile stays below.
        """
        question = self.question
        mean = question.isl.mean + question.osl.mean
        spread = math.sqrt(sum(one.cv2 * one.mean**2 for one in (question.isl, question.osl)))
        beyond = max(NormalDist().inv_cdf(question.limits.percentile), 0.0)
        most = question.isl.longest + question.osl.longest
        return math.ceil(min(mean + beyond * spread / math.sqrt(seqs), most)) - 1

    def _caps(self) -> Any:
        """Yield what bounds the size."""
        question, dp = self.question, self.plan.layout.dp
        if self.room.short_bytes >= 0:
            yield Cap(name="memory", most=0.0, whole=0)
            return
        if question.wants_context:
            seqs, rest = self.seqs * dp, question.osl.mean - 1
            whole = self.room.most_tokens(seqs)
            yield Cap(
                name="memory",
                most=self.room.real_tokens(seqs, whole) - rest,
                whole=math.floor(whole - rest),
            )
            limit = self.plan.model.max_position_embeddings
            name = "length" if limit is None else "positions"
            left = (limit or MAX_LENGTH) - math.ceil(question.osl.mean)
            yield Cap(name=name, most=left, whole=left)
            return
        tokens = self.held_tokens(1)
        most = self.room.most_seqs(tokens)
        if tokens != self.held_tokens(MOST_SEQS):
            most = self.room.most_spread(lambda n: self.held_tokens(max(n // dp, 1)), MOST_SEQS, max(most, 1))
            tokens = self.held_tokens(max(most // dp, 1))
        yield Cap(name="memory", most=self.room.real_seqs(tokens) / dp, whole=most // dp)
        for name, count in (("batch", question.batch), ("batch", question.most_batch)):
            if count is not None:
                yield Cap(name=name, most=count / dp, whole=count // dp)

    def box(self) -> Box:
        """Return the whole region of a possible candidate."""
        question = self.question
        fixed = question.batch is not None and not question.wants_context
        high = self.least if fixed else max(self.cap.most, self.least) * (1 + BEYOND)
        shortest, longest = LEAST_CHUNK, self.longest_chunk
        if isinstance(question.chunk, int):
            shortest = longest = question.chunk
        return Box(low=(math.log(self.least), math.log(shortest)), high=(math.log(high), math.log(longest)))

    @property
    def longest_chunk(self) -> int:
        """The largest chunk: the longest prompt, or what a step takes; the smallest where none are cut."""
        if not self.chunked:
            return LEAST_CHUNK
        run = self.whole if self.question.wants_context else math.ceil(self.question.isl.longest)
        return max(min(run - self.question.cached, STEP_TOKENS), LEAST_CHUNK)

    def nodes(self, box: Box) -> tuple[Any, Any]:
        """Return the sizes and chunks of a box's nodes that are evaluated; None where prompts run whole."""
        sizes, chunks = box.nodes()
        if not self.open_axes(box)[1]:
            sizes, chunks = sizes.reshape(SIZES, CHUNKS)[:, 0], chunks.reshape(SIZES, CHUNKS)[:, 0]
        return sizes, chunks if self.chunked else None

    def surface(self, box: Box, found: Served) -> Any:
        """Return the padded table of a box from what its nodes serve."""
        import numpy as np

        functions = self.logs(found, *self.nodes(box))
        if not self.open_axes(box)[1]:
            functions = np.repeat(functions[:, :, None], CHUNKS, axis=2)
        return padded(functions.reshape(1 + len(LIMITS), SIZES, CHUNKS))

    @staticmethod
    def open_axes(box: Box) -> tuple[float, float]:
        """Return 1 for each axis of a box that has extent, else 0."""
        return float(box.widths[0] > 1e-9), float(box.widths[1] > 1e-9)

    def points(self, sizes: Any, chunks: Any) -> Served:
        """Return what is served at each size and chunk, whole numbers exactly."""
        return self.counted(sizes, chunks, self.by(self.plan, sizes, chunks))

    def by(self, plan: Plan, sizes: Any, chunks: Any) -> Served:
        """Return what another plan serves at each size and chunk."""
        import numpy as np

        if self.question.wants_context:
            seqs = np.full(len(sizes), self.seqs, np.asarray(sizes).dtype)
            return served(plan, self.question, seqs, chunks, isl=sizes)
        return served(plan, self.question, sizes, chunks)

    def counted(self, sizes: Any, chunks: Any, found: Served) -> Served:
        """Return what was found, having counted it, and kept it where points are remembered."""
        self.evaluations += len(sizes)
        if self.seen is not None:
            self.seen.append((sizes, chunks, found))
        return found

    def functions(self, sizes: Any, chunks: Any) -> Any:
        """Return the log objective, then the log of each quantity over its limit: (functions, points)."""
        return self.logs(self.points(sizes, chunks), sizes, chunks)

    def logs(self, found: Served, sizes: Any, chunks: Any) -> Any:
        """Return `functions` of what is served."""
        import numpy as np

        limits = self.question.limits
        free = np.full(len(sizes), FREE)
        return np.stack(
            [
                self.log_value(found, sizes),
                free if limits.ttft_s is None else np.log(found.ttft_s / limits.ttft_s),
                free if limits.tpot_s is None else np.log(found.tpot_s / limits.tpot_s),
                free if chunks is None else np.log(found.load),
                np.log(np.asarray(sizes) / self.cap.most),
            ]
        )

    def log_value(self, found: Served, sizes: Any) -> Any:
        """Return the log of what is made largest."""
        import numpy as np

        question, plan = self.question, self.plan
        if question.maximize == "context":
            return np.log(np.asarray(sizes) + question.osl.mean)
        if question.maximize == "batch":
            return np.log(np.asarray(sizes) * plan.layout.dp)
        if question.objective == "latency":
            return -np.log(found.e2e_s)
        per_device = found.rate_per_s * question.osl.mean / plan.layout.devices
        return np.log(per_device / self.unit_price)

    @property
    def unit_price(self) -> float:
        """What a device costs per second in the objective's unit: dollars, joules, or 1."""
        machine = self.plan.hardware
        if self.question.objective == "cost":
            return self.question.prices[machine.name] / 3600
        return float(machine.tdp_w or 0.0) if self.question.objective == "energy" else 1.0


def surfaces(candidates: Sequence[Candidate], boxes: Sequence[Box]) -> list[Any | KvroofError]:
    """Return the surface of each candidate over its box, or why there is none."""
    nodes = [candidate.nodes(box) for candidate, box in zip(candidates, boxes, strict=True)]
    return [
        every if isinstance(every, KvroofError) else candidate.surface(box, every)
        for candidate, box, every in zip(candidates, boxes, together(candidates, nodes), strict=True)
    ]


def together(
    candidates: Sequence[Candidate], places: Sequence[tuple[Any, Any]]
) -> list[Served | KvroofError]:
    """Return what each candidate serves at its own sizes and chunks, or why it cannot.

    Candidates whose plans differ in numbers only are evaluated in one pass.
    """
    groups: dict[Hashable, list[int]] = {}
    for i, candidate in enumerate(candidates):
        groups.setdefault((candidate.chunked, structure(candidate.plan)), []).append(i)
    found: dict[int, Served | KvroofError] = {}
    for members in groups.values():
        try:
            found |= _in_one_pass(candidates, places, members)
        except KvroofError:
            for i in members:
                try:
                    found |= _in_one_pass(candidates, places, [i])
                except KvroofError as error:
                    found[i] = error
    return [found[i] for i in range(len(candidates))]


def _in_one_pass(
    candidates: Sequence[Candidate], places: Sequence[tuple[Any, Any]], members: Sequence[int]
) -> dict[int, Served]:
    import numpy as np

    first, rows = candidates[members[0]], [len(places[i][0]) for i in members]
    sizes = np.concatenate([places[i][0] for i in members])
    chunks = np.concatenate([places[i][1] for i in members]) if first.chunked else None
    every = first.by(stacked([candidates[i].plan for i in members], rows), sizes, chunks)
    ends = list(accumulate(rows))
    return {
        i: candidates[i].counted(*places[i], every.part(end - count, end))
        for i, count, end in zip(members, rows, ends, strict=True)
    }
