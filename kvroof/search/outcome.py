"""What a search answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvroof.ground.errors import KvroofError
from kvroof.ground.record import record, static
from kvroof.search.candidates import Candidate, together
from kvroof.search.integers import Point
from kvroof.search.points import Served
from kvroof.search.prices import ShadowPrice


@record
class OperatingPoint:
    """A deployment and what it serves: `replicas` of one layout on `devices` devices together.

    `batch` are the sequences in all of them; with a rate that is their mean, and each admits `max_num_seqs`.
    `ttft_s` and `tpot_s` are what the limits are held against. `chunk` is the prompt tokens of a step, None
    where prompts run whole. `cost_per_mtok` are dollars per million output tokens, None without a price.
    """

    model: str = static()
    hw: str = static()
    tp: int
    pp: int
    ep: int
    dp: int
    dcp: int = 1
    replicas: int = 1
    devices: int
    batch: int
    isl: float
    osl: float
    chunk: int | None
    max_num_seqs: int | None = None
    kv_dtype: str = static()
    weights_dtype: str = static()
    tokens_per_s: float
    tokens_per_s_per_device: float
    requests_per_s: float
    ttft_s: float
    tpot_s: float
    e2e_s: float
    cost_per_mtok: float | None
    joules_per_token: float | None
    calibration: str | None = static()


@record
class WayOut:
    """One change that alone makes an infeasible question feasible."""

    change: str = static()
    from_: Any = static()
    to: Any = static()
    option: str = static()


@record
class Answer:
    """The best operating point, what binds it and what more of anything is worth.

    Where nothing keeps the limits `feasible` is False and `best` the point that exceeds them least;
    `excess` says by how much each limit is exceeded, as a share of it. `evaluations` are points of the step
    model, every candidate and restart counted, `relaxed_evaluations` looks at the surfaces between them.
    `residual` is by how much the relaxed optimum misses its optimality conditions.
    `exhaustive_gap` is how far the objective is from the best of all whole points, as a share.
    """

    feasible: bool = static()
    best: OperatingPoint
    binding: tuple[str, ...] = static()
    shadow_prices: dict[str, ShadowPrice]
    excess: dict[str, float]
    ways_out: tuple[WayOut, ...]
    others: tuple[OperatingPoint, ...]
    candidates: int
    left_out: dict[str, int] = static()
    evaluations: int
    relaxed_evaluations: int
    residual: float | None
    exhaustive_gap: float | None = None
    exhaustive_evaluations: int | None = None
    objective: str = static()
    assumptions: tuple[str, ...] = static()


def operating_point(candidate: Candidate, point: Point) -> OperatingPoint:
    """Return a candidate's exact point as people read it."""
    return _described_at(candidate, point, candidate.points(*_place(point)))


def operating_points(places: Sequence[tuple[Candidate, Point]]) -> tuple[OperatingPoint, ...]:
    """Return candidates' exact points, which can be served, as people read them."""
    served = together([candidate for candidate, _ in places], [_place(point) for _, point in places])
    return tuple(
        _described_at(candidate, point, found)
        for (candidate, point), found in zip(places, served, strict=True)
        if not isinstance(found, KvroofError)
    )


def _place(point: Point) -> tuple[Any, Any]:
    return [point.size], None if point.chunk is None else [point.chunk]


def _described_at(candidate: Candidate, point: Point, found: Served) -> OperatingPoint:
    question, dp = candidate.question, candidate.plan.layout.dp
    return described(
        candidate,
        batch=(candidate.seqs if question.wants_context else point.size) * dp,
        isl=float(point.size) if question.wants_context else question.isl.mean,
        chunk=point.chunk,
        rate_per_s=float(found.rate_per_s[0]),
        times_s=(float(found.ttft_s[0]), float(found.tpot_s[0]), float(found.e2e_s[0])),
    )


def described(
    candidate: Candidate,
    *,
    batch: int,
    isl: float,
    chunk: int | None,
    rate_per_s: float,
    times_s: tuple[float, float, float],
    replicas: int = 1,
) -> OperatingPoint:
    """Return what replicas of a candidate serve together, with what follows from it.

    Args:
        candidate: The deployment of each replica.
        batch: Sequences in all.
        isl: Prompt tokens.
        chunk: Prompt tokens of a step.
        rate_per_s: Requests per second in all.
        times_s: TTFT, TPOT and the time of a request.
        replicas: How many there are.
    """
    plan, question = candidate.plan, candidate.question
    layout, machine = plan.layout, plan.hardware
    tokens, devices = rate_per_s * question.osl.mean, replicas * layout.devices
    each, price = tokens / devices, question.prices.get(machine.name)
    ttft, tpot, e2e = times_s
    return OperatingPoint(
        model=plan.model.name,
        hw=machine.name,
        tp=layout.tp,
        pp=layout.pp,
        ep=layout.ep,
        dp=layout.dp,
        dcp=layout.dcp,
        replicas=replicas,
        devices=devices,
        batch=batch,
        isl=_plain(isl),
        osl=_plain(question.osl.mean),
        chunk=chunk,
        kv_dtype=plan.kv_format.name,
        weights_dtype=(plan.formats or plan.model.formats).name,
        tokens_per_s=tokens,
        tokens_per_s_per_device=each,
        requests_per_s=rate_per_s,
        ttft_s=ttft,
        tpot_s=tpot,
        e2e_s=e2e,
        cost_per_mtok=None if price is None else price / 3600 / each * 1e6,
        joules_per_token=None if machine.tdp_w is None else machine.tdp_w / each,
        calibration=plan.efficiency.name,
    )


def _plain(tokens: float) -> float:
    """Return whole numbers as such."""
    return int(tokens) if float(tokens).is_integer() else tokens
