"""Lengths that differ from request to request: one value, a median with a p90, or a trace's own.

A distribution is a few values with their shares, each the mean of the lengths it stands for, so that means
are kept and squares nearly.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from itertools import accumulate, pairwise
from statistics import NormalDist

from kvroof.ground.errors import BadInput
from kvroof.ground.record import record, static

BINS = 64
REACH = 4.5
"""Standard deviations of a log-normal that its values span."""
MAX_LENGTH = 2**27
WHERE = "--isl/--osl"
"""What an error calls lengths that no option of their own gave."""
_Z90 = NormalDist().inv_cdf(0.9)


@record
class Lengths:
    """Tokens per request: `values` in rising order with their `shares`, which sum to 1."""

    name: str = static()
    values: tuple[float, ...]
    shares: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean."""
        return self.moment(1)

    @property
    def cv2(self) -> float:
        """Squared coefficient of variation, variance over squared mean."""
        return max(self.moment(2) / self.mean**2 - 1, 0.0)

    @property
    def longest(self) -> float:
        """The largest value."""
        return self.values[-1]

    def moment(self, power: int) -> float:
        """Return E[length ** power]."""
        return sum(v**power * p for v, p in zip(self.values, self.shares, strict=True))

    def capped_mean(self, most: float) -> float:
        """Return E[min(length, most)]."""
        return sum(min(v, most) * p for v, p in zip(self.values, self.shares, strict=True))

    def quantile(self, share: float) -> float:
        """Return the length that a `share` of the requests do not exceed, between values interpolated."""
        middles = [upto - part / 2 for upto, part in zip(accumulate(self.shares), self.shares, strict=True)]
        for (low, high), (short, long) in zip(pairwise(middles), pairwise(self.values), strict=True):
            if share <= high:
                return short if share <= low else short + (long - short) * (share - low) / (high - low)
        return self.values[-1]

    def shortened(self, tokens: float) -> Lengths:
        """Return every length less `tokens`, which are fewer than the shortest."""
        shorter = tuple(v - tokens for v in self.values)
        return Lengths(name=f"{self.name} - {tokens:g}", values=shorter, shares=self.shares)

    def scaled(self, factor: float) -> Lengths:
        """Return every length multiplied by `factor`."""
        longer = tuple(v * factor for v in self.values)
        return Lengths(name=f"{self.name} x {factor:g}", values=longer, shares=self.shares)


def fixed(tokens: float, where: str = WHERE) -> Lengths:
    """Return one length for all.

    Raises:
        BadInput: Not a positive length.
    """
    _check(tokens, where)
    return Lengths(name=f"{tokens:g}", values=(float(tokens),), shares=(1.0,))


def from_percentiles(p50: float, p90: float, where: str = WHERE) -> Lengths:
    """Return the log-normal lengths with that median and p90.

    Raises:
        BadInput: A p90 below the median, or a length that is not positive.
    """
    _check(p50, where)
    _check(p90, where)
    if p90 < p50:
        raise BadInput(f"p90 of {p90:g} is below the median of {p50:g}", where=where)
    sigma = math.log(p90 / p50) / _Z90
    return fixed(p50) if sigma == 0 else _lognormal(f"{p50:g}/{p90:g}", math.log(p50), sigma)


def _lognormal(name: str, mu: float, sigma: float) -> Lengths:
    """Return bins of equal width in the logarithm, each with its own conditional mean."""
    normal = NormalDist().cdf
    edges = [-REACH + 2 * REACH * i / BINS for i in range(BINS + 1)]
    edges[0], edges[-1] = -math.inf, math.inf
    low = [(normal(e), normal(e - sigma)) for e in edges]
    mean = math.exp(mu + sigma**2 / 2)
    shares = [b[0] - a[0] for a, b in pairwise(low)]
    values = [mean * (b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(low)]
    return Lengths(name=name, values=tuple(values), shares=tuple(shares))


def empirical(lengths: Iterable[float], name: str = "trace") -> Lengths:
    """Return the lengths that were seen; more than 64 different ones are grouped by their logarithm.

    Raises:
        BadInput: No length, or one that is not positive.
    """
    counts = Counter(lengths)
    if not counts:
        raise BadInput("no length is given", where=name)
    for length in counts:
        _check(length, name)
    total = sum(counts.values())
    low, high = math.log(min(counts)), math.log(max(counts))
    groups: dict[float, list[tuple[float, int]]] = {}
    for length, count in sorted(counts.items()):
        bin_ = (math.log(length) - low) / max(high - low, 1e-9) * (BINS - 1e-6)
        place = length if len(counts) <= BINS else int(bin_)
        groups.setdefault(place, []).append((length, count))
    sizes = [sum(count for _, count in group) for group in groups.values()]
    sums = [sum(length * count for length, count in group) for group in groups.values()]
    return Lengths(
        name=name,
        values=tuple(s / n for s, n in zip(sums, sizes, strict=True)),
        shares=tuple(n / total for n in sizes),
    )


def parse_lengths(text: str, where: str) -> Lengths:
    """Return the lengths of `2048`, or of `1020/2734`: a median and a p90.

    Raises:
        BadInput: Anything else.
    """
    parts = text.replace("_", "").replace(",", "").split("/")
    try:
        numbers = [int(part) for part in parts]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2):
        raise BadInput(f"{text!r} is not a length", where=where, way_out="write 2048, or 1020/2734 (p50/p90)")
    if len(numbers) == 1:
        return fixed(numbers[0], where)
    p50, p90 = numbers
    return from_percentiles(p50, p90, where)


def _check(length: float, where: str) -> None:
    if not 0 < length <= MAX_LENGTH:
        raise BadInput(f"{length:g} tokens is not between 1 and {MAX_LENGTH}", where=where)
