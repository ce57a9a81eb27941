"""A time over requests (or over gaps) as its distribution: the mean, and every percentile of it.

It is a cumulative distribution that is linear between points; a jump is two points at one time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import NormalDist
from typing import Any

QUANTILES = 65
"""Points of a distribution that is kept by its quantiles."""
TAIL = (0.95, 0.975, 0.99, 0.995, 0.998, 0.999, 1.0)
EDGES = (*(i / 20 for i in range(19)), *TAIL)
"""Shares between which one value stands for a distribution when it is added to another: finer in the tail."""
POINT_S = 1e-12
"""Width below which a piece is a single time."""
SHARES = tuple((i + 0.5) / QUANTILES for i in range(QUANTILES))
EXPONENTIAL = tuple(-math.log1p(-(i + 0.5) / 40) for i in range(40))
"""Values of equal weight that stand for an exponential distribution of mean 1."""
_NORMAL = tuple(NormalDist().inv_cdf(share) for share in SHARES)


class Distribution:
    """Seconds of a time that differs from request to request.

    Args:
        points_s: Times in rising order.
        shares: The share of requests that stay at or below each.
        mean: The mean where it is known better than from the points.
    """

    def __init__(self, points_s: Any, shares: Any, mean: float | None = None) -> None:
        import numpy as np

        self._points, self._shares = np.asarray(points_s, float), np.asarray(shares, float)
        middle = (self._points[1:] + self._points[:-1]) / 2
        first = float(self._shares[0] * self._points[0])
        self.mean = first + float(np.diff(self._shares) @ middle) if mean is None else mean

    def below(self, seconds: float) -> float:
        """Return the share of requests that take at most `seconds`."""
        return float(self._below([seconds], "right")[0])

    def quantile(self, share: float) -> float:
        """Return the time that a `share` of the requests stay at or below."""
        return float(self.quantiles([share])[0])

    @property
    def p50(self) -> float:
        """The median."""
        return self.quantile(0.5)

    @property
    def p90(self) -> float:
        """What 90 % stay below."""
        return self.quantile(0.9)

    @property
    def p99(self) -> float:
        """What 99 % stay below."""
        return self.quantile(0.99)

    def stretched(self, factor: float) -> Distribution:
        """Return every time multiplied by `factor`."""
        return Distribution(self._points * factor, self._shares, self.mean * factor)

    def shifted(self, seconds: float) -> Distribution:
        """Return every time with `seconds` added."""
        return Distribution(self._points + seconds, self._shares, self.mean + seconds)

    def with_mean(self, mean: float) -> Distribution:
        """Return the same percentiles beside a mean that is known better than from them."""
        return Distribution(self._points, self._shares, mean)

    def plus(self, other: Distribution) -> Distribution:
        """Return the sum of two independent times; the one of fewer points is taken by its quantiles."""
        import numpy as np

        few, many = (self, other) if len(self._points) < len(other._points) else (other, self)
        if few._points[0] == few._points[-1]:
            return Distribution(many._points + few._points[0], many._shares, self.mean + other.mean)
        edges = np.array(EDGES)
        steps, weights = few.quantiles((edges[1:] + edges[:-1]) / 2), np.diff(edges)
        grid = many.quantiles((*SHARES[:-1], *TAIL))
        ends = [f + m for f in few._points[[0, -1]] for m in many._points[[0, -1]]]
        points = np.unique(np.concatenate([(steps[:, None] + grid).ravel(), ends]))
        shares = weights @ np.array([many._below(points - step, "right") for step in steps])
        return Distribution(points, [*shares[:-1], 1.0], self.mean + other.mean)

    def _below(self, seconds: Any, side: Any) -> Any:
        """Return the shares at (`right`) or just before (`left`) some times."""
        import numpy as np

        seconds, last = np.asarray(seconds, float), len(self._points) - 1
        place = np.searchsorted(self._points, seconds, side=side)
        low, high = np.clip(place - 1, 0, last), np.clip(place, 0, last)
        width = self._points[high] - self._points[low]
        part = np.where(width > 0, (seconds - self._points[low]) / np.where(width > 0, width, 1), 0)
        inside = self._shares[low] + (self._shares[high] - self._shares[low]) * part
        return np.where(place == 0, 0.0, np.where(place > last, 1.0, inside))

    def quantiles(self, shares: Any) -> Any:
        """Return the times that some shares of the requests stay at or below."""
        import numpy as np

        shares, last = np.asarray(shares, float), len(self._points) - 1
        place = np.searchsorted(self._shares, shares, side="left")
        low, high = np.clip(place - 1, 0, last), np.clip(place, 0, last)
        rise = self._shares[high] - self._shares[low]
        part = np.where(rise > 0, (shares - self._shares[low]) / np.where(rise > 0, rise, 1), 0)
        inside = self._points[low] + (self._points[high] - self._points[low]) * part
        return np.where(place == 0, self._points[0], inside)


def certain(seconds: float) -> Distribution:
    """Return a time that every request takes."""
    return Distribution([seconds], [1.0])


def pieces(low: Any, width: Any, weight: Any) -> Distribution:
    """Return a mixture of uniform times on `[low, low + width]`; a width of about 0 is a single time.

    Args:
        low: Where each piece starts.
        width: How wide it is.
        weight: Its share; they are scaled to sum to 1.
    """
    import numpy as np

    low, width, weight = (np.asarray(a, float).ravel() for a in np.broadcast_arrays(low, width, weight))
    keep = weight > 0
    low, width, weight = low[keep], width[keep], weight[keep] / weight[keep].sum()
    wide = width > POINT_S
    slope, single, none = weight[wide] / width[wide], low[~wide], np.zeros((~wide).sum())
    at = np.concatenate([low[wide], (low + width)[wide], single, single])
    rises = np.concatenate([slope, -slope, none, none])
    jumps = np.concatenate([np.zeros(2 * len(slope)), none, weight[~wide]])
    order = np.lexsort((jumps, at))
    at, rises, jumps = at[order], np.cumsum(rises[order]), jumps[order]
    grown = np.concatenate([[0.0], np.cumsum(rises[:-1] * np.diff(at))])
    shares = np.maximum.accumulate(np.clip(grown + np.cumsum(jumps), 0, 1))
    return Distribution(at, [*shares[:-1], 1.0], float(weight @ (low + width / 2)))


def mixture(parts: Iterable[tuple[float, Distribution]]) -> Distribution:
    """Return a time that is drawn from one of several distributions by their weights."""
    import numpy as np

    given = [(weight, part) for weight, part in parts if weight > 0]
    kept = [(weight / sum(w for w, _ in given), part) for weight, part in given]
    if len(kept) == 1:
        return kept[0][1]
    points = np.unique(np.concatenate([part._points for _, part in kept]))
    sides = [sum(weight * part._below(points, side) for weight, part in kept) for side in ("left", "right")]
    shares = np.maximum.accumulate(np.column_stack(sides).ravel())
    mean = sum(weight * part.mean for weight, part in kept)
    return Distribution(np.repeat(points, 2), [*shares[:-1], 1.0], mean)


def lognormal(mean: float, deviation: float) -> Distribution:
    """Return the log-normal distribution of a mean and a standard deviation."""
    if not (deviation > 0 and mean > 0):
        return certain(mean)
    variance = math.log1p((deviation / mean) ** 2)
    middle, sigma = math.log(mean) - variance / 2, math.sqrt(variance)
    return Distribution([math.exp(middle + sigma * z) for z in _NORMAL], [*SHARES[:-1], 1.0], mean)
