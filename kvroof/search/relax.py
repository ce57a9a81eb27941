"""A serving objective and its limits as smooth functions of real numbers, from a grid of exact evaluations.

The step model is evaluated at nodes that are even in the logarithms of size (sequences, or tokens of a
prompt) and chunk; between them the logarithms are cubic. The functions of all discrete choices are then
arrays of one shape, so that one compiled solver serves every model and machine, and tile quantisation and
the corners of maxima are smooth: the finer the grid, the sharper. Two grids, the second around the first's
optimum, anneal it.
"""

from __future__ import annotations

import math
from typing import Any

from kvroof.ground.record import record, static

SIZES, CHUNKS = 17, 9
"""Nodes along each axis."""
LIMITS = ("ttft", "tpot", "chunk", "size")
"""What may bind, in the order of a surface's functions after the objective: the times, that prompts keep up
with the steps, and what bounds the size (memory, or a number that was asked for)."""
FREE = -10.0
"""Log of a limit that is never near: where there is none."""


@record
class Box:
    """Where a grid lies: the ends of both axes in the logarithm."""

    low: tuple[float, float] = static()
    high: tuple[float, float] = static()

    @property
    def widths(self) -> tuple[float, float]:
        """Extent of each axis."""
        return self.high[0] - self.low[0], self.high[1] - self.low[1]

    def nodes(self) -> tuple[Any, Any]:
        """Return size and chunk of every node, flattened, the sizes outermost."""
        import numpy as np

        sizes = np.exp(np.linspace(self.low[0], self.high[0], SIZES))
        chunks = np.exp(np.linspace(self.low[1], self.high[1], CHUNKS))
        each = np.meshgrid(sizes, chunks, indexing="ij")
        return each[0].ravel(), each[1].ravel()

    def at(self, unit: Any) -> tuple[float, float]:
        """Return size and chunk at a point of the unit square."""
        x, y = (low + float(u) * w for low, u, w in zip(self.low, unit, self.widths, strict=True))
        return math.exp(x), math.exp(y)

    def around(self, unit: Any, share: tuple[float, float]) -> Box:
        """Return a smaller box around a point, within this one."""
        low, high = [], []
        for axis in (0, 1):
            width = self.widths[axis] * share[axis]
            middle = self.low[axis] + float(unit[axis]) * self.widths[axis]
            start = min(max(middle - width / 2, self.low[axis]), self.high[axis] - width)
            low.append(start)
            high.append(start + width)
        return Box(low=(low[0], low[1]), high=(high[0], high[1]))


def padded(values: Any) -> Any:
    """Return tables (..., sizes, chunks) with a row and a column more at each end, linearly continued."""
    import numpy as np

    for axis in (-2, -1):
        inside = np.moveaxis(values, axis, 0)
        first, last = 2 * inside[:1] - inside[1:2], 2 * inside[-1:] - inside[-2:-1]
        values = np.moveaxis(np.concatenate([first, inside, last]), 0, axis)
    return values


CUBIC = (
    (0.0, 1.0, 0.0, 0.0),
    (-0.5, 0.0, 0.5, 0.0),
    (1.0, -2.5, 2.0, -0.5),
    (-0.5, 1.5, -1.5, 0.5),
)
"""Catmull and Rom's weights of four neighbouring nodes, by powers of the place between the middle two."""


def surface(tables: Any, units: Any) -> Any:
    """Return every function of every problem at many points each, of shape (problems, points, functions).

    A cubic through the nodes whose slope is continuous; what is linear in the logarithms comes back as it is.

    Args:
        tables: Padded values at the nodes, of shape (problems, functions, sizes + 2, chunks + 2).
        units: Points of the unit square, of shape (problems, points, 2).
    """
    import numpy as np

    near, *places = _near(tables, units)
    x, y = (_powers(place, 0) @ np.array(CUBIC) for place in places)
    along = near @ y[:, :, None, :, None]
    return (along[..., 0] @ x[..., None])[..., 0]


def bent_surface(tables: Any, units: Any) -> tuple[Any, Any, Any]:
    """Return the functions as `surface` does, with their slopes (..., 2) and second slopes (..., 2, 2)."""
    import numpy as np

    near, *places = _near(tables, units)
    scales = (SIZES - 1, CHUNKS - 1)
    x, y = (
        np.stack([_powers(place, order) * scale**order for order in (0, 1, 2)], axis=-2) @ np.array(CUBIC)
        for place, scale in zip(places, scales, strict=True)
    )
    every = x[:, :, None] @ near @ y[:, :, None].swapaxes(-1, -2)
    slope = np.stack([every[..., 1, 0], every[..., 0, 1]], axis=-1)
    rows = [[every[..., 2, 0], every[..., 1, 1]], [every[..., 1, 1], every[..., 0, 2]]]
    bend = np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)
    return every[..., 0, 0], slope, bend


def _near(tables: Any, units: Any) -> tuple[Any, Any, Any]:
    """Return the sixteen nodes around each point, and its place between the middle ones along each axis."""
    import numpy as np

    last = np.array([SIZES - 2, CHUNKS - 2])
    place = units * (last + 1)
    start = np.clip(np.floor(place), 0, last).astype(int)
    four = np.arange(4)
    rows = (start[..., 0, None] + four)[..., :, None]
    columns = (start[..., 1, None] + four)[..., None, :]
    problem = np.arange(len(tables))[:, None, None, None]
    near = np.moveaxis(tables, 1, -1)[problem, rows, columns]
    between = place - start
    return np.moveaxis(near, -1, 2), between[..., 0], between[..., 1]


def _powers(t: Any, order: int) -> Any:
    """Return 1, t, t**2, t**3 along a last axis, or their first or second derivatives."""
    import numpy as np

    powers = np.zeros((*t.shape, 4))
    for n in range(order, 4):
        powers[..., n] = math.perm(n, order) * t ** (n - order)
    return powers
