"""How far a time may be off: the fits' residuals, carried through to a sum of operations."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kvroof.roofline.efficiency import Efficiency
from kvroof.roofline.roofline import Timed, serial_s


def log_spread(efficiency: Efficiency, timed: Sequence[Timed]) -> float:
    """Return the standard deviation of the log of a step's time, from the residuals of its kernels.

    Those of one family err together, families apart:
    `sqrt(sum over families of (seconds x sigma)**2) / seconds`.
    """
    by_family: dict[str, float] = {}
    for t in timed:
        wanted = t.op.collective or t.op.family or t.op.kind
        by_family[wanted] = by_family.get(wanted, 0.0) + t.seconds
    total = serial_s(timed)
    if not total:
        return 0.0
    return math.hypot(*(s * efficiency.spread(name) for name, s in by_family.items())) / total


def around(seconds: float, spread: float) -> tuple[float, float]:
    """Return one standard deviation of the log below and above a time."""
    return seconds * math.exp(-spread), seconds * math.exp(spread)
