"""Predictions against measured end-to-end points: the error of TTFT and TPOT, by what one likes to know.

Nothing is fitted here. A point is predicted from its conditions alone, with the machine's profile, and the
closed loop of `kvroof.serving.steady.closed_loop`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from statistics import fmean, median

from kvroof.calibration.deployments import Deployments
from kvroof.calibration.served import ServedPoint
from kvroof.ground.errors import BadInput, KvroofError
from kvroof.ground.record import record, static
from kvroof.serving.spread import around
from kvroof.spec.parallel import shared_axes

BY = ("model", "hw", "framework", "mode", "regime", "source", "layout", "version", "weights", "lengths")
SMALL, LARGE = 8, 64
"""Sequences per replica up to which a batch is small, and beyond which it is large."""


@record
class Predicted:
    """A point with what was predicted of it; a time is None where it was not measured.

    Intervals are one standard deviation of the log. `seqs` of the requests run at a time.
    """

    point: ServedPoint
    ttft_s: float | None
    tpot_s: float | None
    ttft_interval: tuple[float, float] | None
    tpot_interval: tuple[float, float] | None
    seqs: int


@record
class Errors:
    """Errors of one time over some points, as shares of the measured one.

    `mape` and `median` are of `|predicted / measured - 1|`, `bias` is the signed mean, `within` the share
    of points inside the one-sigma interval.
    """

    points: int
    mape: float
    median: float
    bias: float
    within: float


@record
class Group:
    """The errors over the points that have the same value of what is asked by."""

    by: dict[str, str] = static()
    ttft: Errors | None
    tpot: Errors | None


@record
class Validation:
    """Errors overall and by group, and what could not be predicted for which reason."""

    sources: tuple[str, ...] = static()
    calibration: str = static()
    points: int
    predicted: int
    left_out: dict[str, int] = static()
    overall: Group
    groups: tuple[Group, ...]
    notes: tuple[str, ...] = static(default=())
    predictions: tuple[Predicted, ...] = ()


def validate(
    points: Sequence[ServedPoint],
    *,
    by: Sequence[str] = ("model", "hw", "framework"),
    calibration: str = "auto",
    sources: Sequence[str] = (),
    left_out: dict[str, int] | None = None,
    notes: Sequence[str] = (),
    progress: Callable[[Iterable[ServedPoint]], Iterable[ServedPoint]] = iter,
) -> Validation:
    """Return how well measured points are predicted.

    Args:
        points: What was measured.
        by: What to group by: any of `BY`.
        calibration: `auto` takes each machine's profile of the point's framework; or a name or a file.
        sources: Where the points come from.
        left_out: Rows that were left out before, by reason.
        notes: What is to be known of the points.
        progress: Wraps the points as they are gone through.

    Raises:
        BadInput: An unknown `by`, no points, or none that can be predicted.
    """
    for name in by:
        if name not in BY:
            raise BadInput(
                f"{name!r} is nothing to group by", where="--by", way_out=f"it has {', '.join(BY)}"
            )
    if not points:
        raise BadInput("there are no points", where="validate", way_out="give --points FILE")
    deployments, missed = Deployments(calibration), dict(left_out or {})
    made: list[Predicted] = []
    for point in progress(points):
        try:
            made.append(predict(point, deployments))
        except KvroofError as error:
            reason = _reason(point, error)
            missed[reason] = missed.get(reason, 0) + 1
    if not made:
        raise BadInput(
            f"none of {len(points)} points can be predicted: {next(iter(missed))}",
            where="validate",
            way_out="see kvroof list models and kvroof list hardware for names",
        )
    groups: dict[tuple[str, ...], list[Predicted]] = {}
    for one in made:
        groups.setdefault(tuple(_value(one.point, name) for name in by), []).append(one)
    return Validation(
        sources=tuple(sources),
        calibration=calibration,
        points=len(points) + sum((left_out or {}).values()),
        predicted=len(made),
        left_out=dict(sorted(missed.items(), key=lambda item: -item[1])),
        overall=_group({}, made),
        groups=tuple(_group(dict(zip(by, key, strict=True)), groups[key]) for key in sorted(groups)),
        notes=(*deployments.notes(), *notes),
        predictions=tuple(made),
    )


def predict(point: ServedPoint, deployments: Deployments) -> Predicted:
    """Return what the model expects of a point's conditions.

    Raises:
        KvroofError: A model, machine or layout that cannot be.
    """
    if point.mode != "aggregated":
        raise BadInput(f"{point.mode} serving is not predicted here", where=point.name or "point")
    loop = deployments.loop(point)
    spread = deployments.spread(point, loop)
    ttft = None if point.ttft_s is None else loop.ttft_s
    tpot = None if point.tpot_s is None else loop.tpot_s
    return Predicted(
        point=point,
        ttft_s=ttft,
        tpot_s=tpot,
        ttft_interval=None if ttft is None else around(ttft, spread.ttft),
        tpot_interval=None if tpot is None else around(tpot, spread.tpot),
        seqs=loop.seqs * point.dp,
    )


def errors(pairs: Sequence[tuple[float, float]], intervals: Sequence[tuple[float, float]]) -> Errors | None:
    """Return the errors of (predicted, measured) pairs, None where there is none."""
    if not pairs:
        return None
    off = [predicted / measured - 1 for predicted, measured in pairs]
    inside = [low <= m <= high for (_, m), (low, high) in zip(pairs, intervals, strict=True)]
    return Errors(
        points=len(off),
        mape=fmean(abs(e) for e in off),
        median=median(abs(e) for e in off),
        bias=fmean(off),
        within=fmean(inside),
    )


def without_rows(answer: Validation) -> Validation:
    """Return the answer less its single predictions."""
    return replace(answer, predictions=())


def _group(by: dict[str, str], made: Sequence[Predicted]) -> Group:
    ttft = [(p.ttft_s, p.point.ttft_s, p.ttft_interval) for p in made]
    tpot = [(p.tpot_s, p.point.tpot_s, p.tpot_interval) for p in made]
    return Group(by=by, ttft=_errors(ttft), tpot=_errors(tpot))


def _errors(
    rows: Sequence[tuple[float | None, float | None, tuple[float, float] | None]],
) -> Errors | None:
    known = [(p, m, i) for p, m, i in rows if p is not None and m is not None and i is not None]
    return errors([(p, m) for p, m, _ in known], [i for _, _, i in known])


def _reason(point: ServedPoint, error: KvroofError) -> str:
    """Return why a point was not predicted, the same words for the same cause."""
    where = point.model if error.where is None or error.where.startswith("--") else error.where
    return f"{where}: {error.reason}"


def _value(point: ServedPoint, name: str) -> str:
    """Return what a point is grouped by."""
    values = {
        "model": point.model,
        "hw": point.hardware,
        "framework": point.framework or "any",
        "mode": point.mode,
        "regime": _regime(math.ceil(point.concurrency / point.dp)),
        "source": point.source,
        "layout": " ".join(f"{axis} {ranks}" for axis, ranks in shared_axes(point).items()) or "alone",
        "version": point.version or "not recorded",
        "weights": point.weights_dtype,
        "lengths": f"{point.isl}/{point.osl}",
    }
    return values[name]


def _regime(batch: int) -> str:
    """Return which of the three regimes a replica's batch is in."""
    if batch <= SMALL:
        return f"batch 1 to {SMALL}"
    return f"batch {SMALL + 1} to {LARGE}" if batch <= LARGE else f"batch over {LARGE}"
