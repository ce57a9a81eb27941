"""Served points against what is predicted of their conditions alone."""

from __future__ import annotations

from collections.abc import Iterator

from kvroof.calibration.evidence.evidence import Case, Evidence, Refused
from kvroof.calibration.served import ServedPoint
from kvroof.calibration.validate import Predicted, Validation
from kvroof.ground.units import format_time


def served_evidence(answer: Validation) -> tuple[Evidence, ...]:
    """Return TPOT and TTFT of points that nothing was fitted to; a case is one point.

    Args:
        answer: What `validate` made of the points, with its single predictions.
    """
    refused = tuple(Refused(name=f"{count:,} points", why=why) for why, count in answer.left_out.items())
    found = [
        Evidence(
            kind=f"served, {name.upper()}",
            against="; ".join(answer.sources),
            cases=tuple(_cases(answer.predictions, name)),
            refused=refused,
            notes=answer.notes,
        )
        for name in ("tpot", "ttft")
    ]
    return tuple(evidence for evidence in found if evidence.cases)


def _cases(predictions: tuple[Predicted, ...], time: str) -> Iterator[Case]:
    for one in predictions:
        point = one.point
        measured, predicted = (point.tpot_s, one.tpot_s) if time == "tpot" else (point.ttft_s, one.ttft_s)
        if measured is not None and predicted is not None:
            yield Case(
                name=_name(point),
                known=format_time(measured),
                predicted=format_time(predicted),
                error=predicted / measured - 1,
            )


def _name(point: ServedPoint) -> str:
    """Return a point's conditions in a few words."""
    axes = (("TP", point.tp), ("PP", point.pp), ("DP", point.dp), ("EP", point.ep), ("DCP", point.dcp))
    layout = " ".join(f"{axis} {ranks}" for axis, ranks in axes if ranks > 1)
    words = (point.model, point.hardware, point.framework or "", layout, f"{point.isl:,}/{point.osl:,}")
    return f"{', '.join(word for word in words if word)}, concurrency {point.concurrency:,}"
