"""The relaxed optima of many smooth problems at once: an augmented Lagrangian over all of them together.

maximise f(u) with g(u) <= 0 on the unit square. Each round minimises

    L(u) = -f(u) + sum(max(0, l + p g(u))**2 - l**2) / (2 p)

by projected Newton steps, and then takes l := max(0, l + p g(u)) and a larger p. Two variables make a 2 x 2
Hessian, which a cubic surface gives for nothing. All problems and all their starts advance together as
arrays; nothing is compiled, since compiling takes longer than solving every problem of a search.
"""

from __future__ import annotations

from typing import Any

from kvroof.ground.record import record
from kvroof.search.relax import bent_surface, surface

ROUNDS, STEPS = 9, 4
PENALTY, GROWTH, MOST_PENALTY = 10.0, 3.0, 1e3
AGAIN, RESIDUAL = 4, 1e-5
"""How often problems that miss their optimality conditions by more than this get as many rounds again."""
STARTS = ((0.5, 0.5), (0.95, 0.2), (0.95, 0.9), (0.1, 0.6))
"""Where each problem is started, in the unit square."""
STRIDES = (1.0, 0.2, 0.02, 0.002, 0.0001)
"""Lengths of a step that are tried at once, along Newton's direction and along the gradient's."""
MARGIN = 1e-4
"""Relative excess over a limit that a relaxed optimum may have."""
LONGEST = 0.25
"""Longest first stride along the gradient, in sides of the square."""


ARRAYS = ("unit", "value", "slack", "prices", "residual")


@record
class Relaxed:
    """Relaxed optima, one per problem, as arrays.

    `unit` is the point, `value` the log objective, `slack` the log of each quantity over its limit,
    `prices` the multipliers: what the log objective gains per log of a limit. `residual` is the largest
    violation of the optimality conditions (Karush, Kuhn and Tucker): slope, limits and complementarity.
    `evaluations` counts every point of the surfaces that was looked at.
    """

    unit: Any
    value: Any
    slack: Any
    prices: Any
    residual: Any
    evaluations: int

    def joined(self, other: Relaxed) -> Relaxed:
        """Return these optima and others after them."""
        import numpy as np

        pairs = {name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in ARRAYS}
        return Relaxed(evaluations=self.evaluations + other.evaluations, **pairs)

    def with_rows(self, rows: Any, other: Relaxed) -> Relaxed:
        """Return these optima with some replaced by others, which took looks of their own."""
        changed = {name: getattr(self, name).copy() for name in ARRAYS}
        for name, values in changed.items():
            values[rows] = getattr(other, name)
        return Relaxed(evaluations=self.evaluations + other.evaluations, **changed)


def solve(tables: Any, open_axes: Any) -> Relaxed:
    """Return the optima of all problems.

    Args:
        tables: Padded tables of shape (problems, 1 + limits, sizes + 2, chunks + 2): the log objective
            first, then each limit's quantity over the limit, in the logarithm.
        open_axes: 1 where an axis is searched, 0 where it has no extent, of shape (problems, 2).
    """
    import numpy as np

    count, limits = len(tables), tables.shape[1] - 1
    most = np.asarray(open_axes, float)[:, None, :]
    units = np.array(STARTS) * most
    found = _advanced(tables, units, most, np.zeros((count, len(STARTS), limits)), PENALTY)
    for _ in range(AGAIN):
        best = _best(found)
        late = np.flatnonzero((best.residual > RESIDUAL) & (best.slack.max(axis=1) <= MARGIN))
        if not len(late):
            break
        more = _advanced(tables[late], found.unit[late], most[late], found.prices[late], MOST_PENALTY)
        found = found.with_rows(late, more)
    return _best(found)


def _advanced(tables: Any, units: Any, most: Any, prices: Any, penalty: float) -> Relaxed:
    """Return what all starts come to after some rounds, with arrays of shape (problems, starts, ...)."""
    import numpy as np

    for _ in range(ROUNDS):
        for _ in range(STEPS):
            units = _step(tables, units, most, prices, penalty)
        prices = np.maximum(prices + penalty * surface(tables, units)[..., 1:], 0.0)
        penalty = min(penalty * GROWTH, MOST_PENALTY)
    every, slopes, _ = bent_surface(tables, units)
    value, slack = every[..., 0], every[..., 1:]
    excess = np.maximum(slack, 0.0).max(axis=-1)
    slope = np.einsum("psf,psfx->psx", prices, slopes[:, :, 1:]) - slopes[:, :, 0]
    moved = np.abs(np.clip(units - slope, 0.0, most) - units).max(axis=-1)
    residual = np.maximum(np.maximum(moved, excess), np.abs(prices * slack).max(axis=-1))
    looks = ROUNDS * (STEPS * (2 + 2 * len(STRIDES)) + 1) + 1
    return Relaxed(
        unit=units,
        value=value,
        slack=slack,
        prices=prices,
        residual=residual,
        evaluations=units.shape[0] * units.shape[1] * looks,
    )


def _best(found: Relaxed) -> Relaxed:
    """Return the best start of every problem: the largest value within the limits, else the least excess."""
    import numpy as np

    excess = np.maximum(found.slack, 0.0).max(axis=-1)
    kept = np.where(excess <= MARGIN, found.value, -np.inf)
    best = np.where(np.isfinite(kept).any(axis=1), kept.argmax(axis=1), excess.argmin(axis=1))
    each = np.arange(len(best))
    return Relaxed(
        evaluations=found.evaluations, **{name: getattr(found, name)[each, best] for name in ARRAYS}
    )


def _step(tables: Any, units: Any, most: Any, prices: Any, penalty: float) -> Any:
    """Return every point moved to the best of several lengths along Newton's direction and the gradient's."""
    import numpy as np

    every, slopes, bends = bent_surface(tables, units)
    pushed = np.maximum(prices + penalty * every[..., 1:], 0.0)
    slope = np.einsum("psf,psfx->psx", pushed, slopes[:, :, 1:]) - slopes[:, :, 0]
    bend = np.einsum("psf,psfxy->psxy", pushed, bends[:, :, 1:]) - bends[:, :, 0]
    steep = slopes[:, :, 1:] * np.sqrt(penalty * (pushed > 0))[..., None]
    bend = bend + np.einsum("psfx,psfy->psxy", steep, steep)
    held = ((units <= 0) & (slope > 0)) | ((units >= most) & (slope < 0))
    free = np.where(held, 0.0, most)
    down = -free * slope
    steepest = LONGEST * down / np.maximum(np.abs(down).max(axis=-1, keepdims=True), 1e-12)
    ways = np.stack([_newton(bend, down, free), steepest], axis=2)
    strides = np.array(STRIDES)[:, None, None] * ways[:, :, None]
    shape = (*units.shape[:2], -1, 2)
    trials = np.concatenate([units[:, :, None], units[:, :, None] + strides.reshape(shape)], axis=2)
    trials = np.clip(trials, 0.0, most[:, :, None])
    flat = surface(tables, trials.reshape(len(units), -1, 2)).reshape(*trials.shape[:3], -1)
    pushed = np.maximum(prices[:, :, None] + penalty * flat[..., 1:], 0.0)
    lagrangian = -flat[..., 0] + (pushed**2).sum(axis=-1) / (2 * penalty)
    best = lagrangian.argmin(axis=2)
    return np.take_along_axis(trials, best[:, :, None, None], axis=2)[:, :, 0]


def _newton(bend: Any, down: Any, free: Any) -> Any:
    """Return Newton's directions over the free axes, each Hessian shifted until it is positive definite."""
    import numpy as np

    a = np.where(free[..., 0] > 0, bend[..., 0, 0], 1.0)
    d = np.where(free[..., 1] > 0, bend[..., 1, 1], 1.0)
    b = np.where((free > 0).all(axis=-1), bend[..., 0, 1], 0.0)
    middle, spread = (a + d) / 2, np.hypot((a - d) / 2, b)
    shift = np.maximum(1e-6 * np.maximum(np.abs(middle) + spread, 1e-3) - (middle - spread), 0.0)
    a, d = a + shift, d + shift
    across = np.stack([d * down[..., 0] - b * down[..., 1], a * down[..., 1] - b * down[..., 0]], axis=-1)
    return across / (a * d - b * b)[..., None]
