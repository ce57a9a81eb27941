"""A few measured TTFT and TPOT points of one deployment move what they can identify, and nothing else.

Overheads come first: the start of a kernel, the host's time per step and per sequence, the collectives. A
factor on everything comes last. All are held to priors in the log; what the points do not tell stays there.

    minimise  sum rho(log(predicted / measured) / noise) + sum (log(factor) / prior)**2

Predicted times are linear in the parts that the factors scale, so that each part is priced once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from kvroof.calibration.deployments import FROM_MAPE, Deployments
from kvroof.calibration.profile import Served
from kvroof.calibration.served import ServedPoint
from kvroof.ground.errors import BadInput
from kvroof.ground.record import record, static
from kvroof.roofline.roofline import Timed, serial_s
from kvroof.serving.steady.closed_loop import TTFT_ERROR

PARTS = ("launch", "host_step", "host_seq", "wire")
"""What has a factor of its own: starts of kernels, the host per step and per sequence, collectives."""
PRIORS = {"launch": 0.3, "host_step": 0.5, "host_seq": 0.5, "wire": 0.3, "group": 0.25}
"""Standard deviations of the factors' logs, around 1.

From a study of 2,197 served points of 7 models: over groups, starts settled at 0.8, the host at 1.4 to 2
times 10 us per sequence, communication at 1.27, and what no overhead explains spread by a quarter.
"""
NOISE = 0.06
"""Log noise of a TPOT: repeats of a configuration differ by 4.8 %, and the form is not exact."""
TTFT_NOISE = FROM_MAPE * TTFT_ERROR
"""That of a TTFT in a closed loop, whose form is much rougher."""
LEARNT = 0.9
"""A factor whose posterior is wider than this share of its prior has not been told."""
MOST = 2000


@record
class Moved:
    """A factor, its prior's and its posterior's deviation of the log, and whether the points told it."""

    name: str = static()
    factor: float
    prior: float
    posterior: float
    told: bool = static()


@record
class Adjusted:
    """What the points told, with the errors before and after as shares of what was measured.

    `ttft` and `tpot` errors are mean absolute ones: before, after, and of each point when the others alone
    were given (None with fewer than three points).
    """

    served: Served = static()
    moved: tuple[Moved, ...]
    points: int
    before: dict[str, float | None]
    after: dict[str, float | None]
    left_out: dict[str, float | None]


def adjust(points: Sequence[ServedPoint], deployments: Deployments, source: str) -> Adjusted:
    """Return the factors that a deployment's points tell.

    Args:
        points: Measured points of one machine under one framework.
        deployments: With the calibration that is moved.
        source: Where the points come from, for the record.

    Raises:
        BadInput: No points or too many, more than one machine or framework, or nothing calibrated to move.
        KvroofError: A point that cannot be predicted.
    """
    _check(points, deployments)
    rows = [_Row(point, deployments) for point in points]
    moved = _fit(rows)
    factors = {m.name: m.factor for m in moved}
    apart = [_fit([r for r in rows if r is not row]) for row in rows] if len(rows) > 2 else []
    left_out = [row.off({m.name: m.factor for m in fitted}) for row, fitted in zip(rows, apart, strict=False)]
    after = [row.off(factors) for row in rows]
    judged = left_out or after
    tpot = [off["tpot"] for off in judged if "tpot" in off]
    first = points[0]
    served = Served(
        **factors,
        sigma=max(FROM_MAPE * fmean(map(abs, tpot)), NOISE) if tpot else None,
        points=len(points),
        at_prior=tuple(m.name for m in moved if not m.told),
        before_mape=_mean([row.off({}) for row in rows], "tpot"),
        after_mape=_mean(after, "tpot"),
        left_out_mape=_mean(left_out, "tpot"),
        source=f"{len(points)} points of {', '.join(sorted({p.model for p in points}))} on {first.hardware}"
        f" under {first.framework or 'an engine not named'}, {source}",
    )
    return Adjusted(
        served=served,
        moved=moved,
        points=len(points),
        before=_both([row.off({}) for row in rows]),
        after=_both(after),
        left_out=_both(left_out),
    )


class _Row:
    """A point as the linear form of its times: parts by name, what has no factor, and a constant."""

    def __init__(self, point: ServedPoint, deployments: Deployments) -> None:
        efficiency = deployments.steps(point).plan.efficiency
        step_s = efficiency.host_step_s

        def loop(value: Callable[[Sequence[Timed]], float]) -> np.ndarray:
            found = deployments.loop(point, value)
            return np.array([found.ttft_s, found.tpot_s])

        nothing = loop(lambda timed: 0.0)
        values = {
            "launch": _launch,
            "host_step": lambda timed: step_s if _host(timed) else 0.0,
            "host_seq": lambda timed: max(_host(timed) - step_s, 0.0),
            "wire": lambda timed: sum(t.network_s for t in timed),
        }
        parts = {name: loop(value) - nothing for name, value in values.items()}
        self.constant = nothing
        self.parts = parts
        self.rest = loop(serial_s) - nothing - sum(parts.values())
        self.measured = {"ttft": point.ttft_s, "tpot": point.tpot_s}

    def predicted(self, factors: dict[str, float]) -> dict[str, float]:
        """Return TTFT and TPOT with the parts scaled."""
        scaled = self.rest + sum(factors.get(name, 1.0) * part for name, part in self.parts.items())
        ttft, tpot = self.constant + factors.get("group", 1.0) * scaled
        return {"ttft": float(ttft), "tpot": float(tpot)}

    def off(self, factors: dict[str, float]) -> dict[str, float]:
        """Return the relative errors of the times that were measured."""
        found = self.predicted(factors)
        return {name: found[name] / m - 1 for name, m in self.measured.items() if m is not None}

    def misfits(self, factors: dict[str, float]) -> list[float]:
        """Return log errors over their noise."""
        found, noise = self.predicted(factors), {"ttft": TTFT_NOISE, "tpot": NOISE}
        return [
            float(np.log(found[name] / m)) / noise[name] for name, m in self.measured.items() if m is not None
        ]


def _launch(timed: Sequence[Timed]) -> float:
    return sum(t.overhead_s for t in timed if t.op.kind != "host")


def _host(timed: Sequence[Timed]) -> float:
    return sum(t.seconds for t in timed if t.op.name == "host")


def _fit(rows: Sequence[_Row]) -> tuple[Moved, ...]:
    """Return every factor: fitted where the points tell it, else at its prior."""
    names = tuple(PRIORS)
    first, spreads = _solve(rows, names)
    told = tuple(name for name in names if spreads[name] < LEARNT * PRIORS[name])
    factors = first if told == names else _solve(rows, told)[0]
    return tuple(
        Moved(
            name=name,
            factor=factors.get(name, 1.0),
            prior=PRIORS[name],
            posterior=spreads[name],
            told=name in told,
        )
        for name in names
    )


def _solve(rows: Sequence[_Row], names: tuple[str, ...]) -> tuple[dict[str, float], dict[str, float]]:
    """Return the factors called `names` fitted to the rows, and the posterior deviation of their logs."""
    from scipy.optimize import least_squares  # type: ignore[import-untyped, unused-ignore]

    if not names:
        return {}, {}
    loose = np.array([PRIORS[name] for name in names])

    def factors(theta: Any) -> dict[str, float]:
        return {name: float(v) for name, v in zip(names, np.exp(theta), strict=True)}

    def misfit(theta: Any) -> Any:
        off = np.array([m for row in rows for m in row.misfits(factors(theta))])
        gentle = np.sign(off) * np.sqrt(2 * (np.sqrt(1 + off * off) - 1))
        return np.concatenate([gentle, theta / loose])

    found = least_squares(misfit, np.zeros(len(names)), max_nfev=200)
    spreads = np.sqrt(np.diag(np.linalg.inv(found.jac.T @ found.jac)))
    return factors(found.x), {name: float(s) for name, s in zip(names, spreads, strict=True)}


def _check(points: Sequence[ServedPoint], deployments: Deployments) -> None:
    if not 1 <= len(points) <= MOST:
        raise BadInput(f"{len(points)} points are not between 1 and {MOST}", where="--points")
    for what, option, values in (
        ("machines", "--hw", {p.hardware for p in points}),
        ("frameworks", "--framework", {p.framework for p in points}),
    ):
        if len(values) > 1:
            raise BadInput(
                f"holds {len(values)} {what}: {', '.join(sorted(values))[:120]}",
                where="--points",
                way_out=f"choose one with {option}",
            )
    if deployments.steps(points[0]).plan.efficiency.name is None:
        raise BadInput(
            f"{points[0].hardware} has no profile to move",
            where="--points",
            way_out="name one with --calibration",
        )


def _both(offs: Sequence[dict[str, float]]) -> dict[str, float | None]:
    return {name: _mean(offs, name) for name in ("ttft", "tpot")}


def _mean(offs: Sequence[dict[str, float]], name: str) -> float | None:
    known = [abs(off[name]) for off in offs if name in off]
    return fmean(known) if known else None
