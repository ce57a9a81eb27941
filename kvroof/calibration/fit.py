"""Points -> a kernel: a fit of log parameters to log seconds, held to its prior where points do not speak."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from kvroof.calibration.points import SERVED_S, Column, Points
from kvroof.calibration.priors import Prior, prior_of
from kvroof.ground.errors import BadInput
from kvroof.ground.record import record, static
from kvroof.roofline.efficiency import Kernel

POINTS = 32
"""Points per family: more hardly help, since what is left is the form's error, not chance."""
SMALL_SHARE = 0.25
"""Share of the points taken among short kernels, which alone tell what a launch costs."""
NOISE = 0.08
"""Log residual that is taken for chance; beyond it a point pulls with constant force."""
LEARNT = 0.9
"""A parameter whose posterior is wider than this share of its prior has not been learnt."""
PARAMETERS = (
    "t0_s", "hbm", "compute", "sharpness", "item_s", "depth_s", "score_s", "llc_bytes", "llc_gain",
)  # fmt: skip
LIMITS = {"hbm": (0.02, 1.0), "compute": (0.005, 1.0), "sharpness": (1.0, 8.0), "llc_gain": (1.0, 20.0)}
EAGER_S = 40e-6
"""A floor above this, and above four times the prior's, is the host launching one kernel after another."""


@record
class Fitted:
    """A kernel, where it comes from, and how well it predicts points it has not seen.

    Errors are shares over the held-out points longer than `SERVED_S`: the mean and the median of
    `|predicted / measured - 1|`, the signed mean, and the standard deviation of log residuals. `at_prior`
    names what the points could not tell. `eager` says that the host's launches hid the kernels' own
    overhead, so that `t0_s` is the prior's.
    """

    family: str = static()
    kernel: Kernel
    points: int = static()
    held_out: int = static()
    mape: float
    median: float
    bias: float
    sigma: float
    at_prior: tuple[str, ...] = static(default=())
    eager: bool = static(default=False)
    implementation: str = static(default="")
    version: str = static(default="")


def choose(points: Points, count: int, prior: Kernel) -> Column:
    """Return the indices of points to fit: spread evenly in the logs of the work, most of them long.

    Whether a kernel is long is judged by the prior, so that the choice can be made before measuring.
    """
    long = points.predict(prior) > SERVED_S
    few = min(max(round(SMALL_SHARE * count), count - int(long.sum())), int((~long).sum()))
    many = min(count - few, int(long.sum()))
    return np.concatenate(
        [_spread(points, np.flatnonzero(long), many), _spread(points, np.flatnonzero(~long), few)]
    )


def fit_kernel(points: Points, prior: Prior) -> tuple[Kernel, tuple[str, ...]]:
    """Return the kernel that explains the points best, and the names of what stays at the prior.

    Minimises `sum rho(log(predicted / measured) / NOISE) + sum (log(theta / prior) / loose)^2` with a
    pseudo-Huber rho. Parameters not learnt are put back to the prior and the rest is fitted again.

    Raises:
        BadInput: No points, or seconds that are not positive.
    """
    if not len(points) or not np.all(points.seconds > 0):
        raise BadInput("has no points, or seconds that are not positive", where=points.family)
    free = tuple(name for name, loose in prior.loose.items() if loose > 0 and getattr(prior.mean, name))
    kernel, spreads = _solve(points, prior, free)
    learnt = tuple(n for n in free if spreads[n] < LEARNT * prior.loose[n])
    if learnt != free:
        kernel, _ = _solve(points, prior, learnt)
    plain = Kernel()
    held = (n for n in PARAMETERS if n not in learnt and getattr(kernel, n) != getattr(plain, n))
    return kernel, tuple(held)


def fit_family(
    points: Points, llc_bytes: float | None, count: int = POINTS, prior: Prior | None = None
) -> Fitted:
    """Return a family fitted to `count` of its points, with its error on all the others.

    With a `prior` of its own the kernels ran inside one program, so that no launch hides them.
    """
    inside = prior is not None
    prior = prior_of(points.family, llc_bytes) if prior is None else prior
    floor = float(np.quantile(points.seconds, 0.02))
    eager = not inside and floor > max(EAGER_S, 4 * prior.mean.t0_s)
    if eager:
        points = points.take(points.seconds > 1.5 * floor)
        prior = replace(prior, loose={k: v for k, v in prior.loose.items() if k != "t0_s"})
    chosen = choose(points, count, prior.mean)
    kernel, at_prior = fit_kernel(points.take(chosen), prior)
    rest = np.ones(len(points), bool)
    rest[chosen] = False
    error = judge(points.take(rest), kernel)
    return replace(
        error,
        points=len(chosen),
        at_prior=at_prior,
        eager=eager,
        implementation=points.kernel,
        version=points.version,
    )


def judge(points: Points, kernel: Kernel) -> Fitted:
    """Return a kernel's error on points, those longer than `SERVED_S`; NaN where there are none."""
    points = points.take(points.served())
    ratio = points.predict(kernel) / points.seconds
    off = np.abs(ratio - 1)
    some = len(points) > 0
    return Fitted(
        family=points.family,
        kernel=kernel,
        points=0,
        held_out=len(points),
        mape=float(off.mean()) if some else float("nan"),
        median=float(np.median(off)) if some else float("nan"),
        bias=float((ratio - 1).mean()) if some else float("nan"),
        sigma=float(np.log(ratio).std()) if some else float("nan"),
    )


def _solve(points: Points, prior: Prior, free: tuple[str, ...]) -> tuple[Kernel, dict[str, float]]:
    """Return the kernel with `free` parameters fitted, and the posterior deviation of their logs."""
    from scipy.optimize import least_squares  # type: ignore[import-untyped, unused-ignore]

    if not free:
        return prior.mean, {}
    mean = np.log([getattr(prior.mean, name) for name in free])
    loose = np.array([prior.loose[name] for name in free])
    bounds = np.log([LIMITS.get(name, (1e-15, 1e15)) for name in free]).T
    measured = np.log(points.seconds)

    def made(theta: Any) -> Kernel:
        return replace(prior.mean, **{n: float(v) for n, v in zip(free, np.exp(theta), strict=True)})

    def misfit(theta: Any) -> Any:
        off = (np.log(points.predict(made(theta))) - measured) / NOISE
        gentle = np.sign(off) * np.sqrt(2 * (np.sqrt(1 + off * off) - 1))
        return np.concatenate([gentle, (theta - mean) / loose])

    start = np.clip(mean, bounds[0] + 1e-6, bounds[1] - 1e-6)
    found = least_squares(misfit, start, bounds=bounds, max_nfev=100)
    precision = found.jac.T @ found.jac
    spreads = np.sqrt(np.diag(np.linalg.inv(precision)))
    return made(found.x), {name: float(s) for name, s in zip(free, spreads, strict=True)}


def _spread(points: Points, among: Column, count: int) -> Column:
    """Return `count` of the indices `among`, the members nearest to the centres of as many clusters.

    Clusters (Lloyd's algorithm from farthest points) follow the density of the table; farthest points
    alone would be its corners, which nobody serves.
    """
    if len(among) <= count or not count:
        return among[:count]
    work = (points.flops, points.hbm_bytes, points.items, points.depth)
    logs = np.stack([np.log(column[among] + 1e-9) for column in work], axis=1)
    x = (logs - logs.mean(axis=0)) / (logs.std(axis=0) + 1e-9)
    chosen = [int(np.argmin((x**2).sum(axis=1)))]
    nearest = ((x - x[chosen[0]]) ** 2).sum(axis=1)
    while len(chosen) < count:
        chosen.append(int(nearest.argmax()))
        nearest = np.minimum(nearest, ((x - x[chosen[-1]]) ** 2).sum(axis=1))
    centres = x[chosen]
    for _ in range(8):
        owner = _distances(x, centres).argmin(axis=1)
        centres = np.stack(
            [x[owner == i].mean(axis=0) if (owner == i).any() else c for i, c in enumerate(centres)]
        )
    apart = _distances(x, centres)
    picked: list[int] = []
    for i in range(count):
        apart[picked, i] = np.inf
        picked.append(int(apart[:, i].argmin()))
    return among[np.array(picked)]


def _distances(x: Column, centres: Column) -> Column:
    return (x**2).sum(axis=1)[:, None] - 2 * x @ centres.T + (centres**2).sum(axis=1)[None, :]
