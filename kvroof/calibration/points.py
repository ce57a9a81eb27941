"""Measured kernels as columns: what each did, and how long it took."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from kvroof.ground.record import record, static
from kvroof.roofline.efficiency import Kernel

Column: TypeAlias = Any
"""A float64 array. Loose on purpose: formulas are typed for one row and take columns alike."""

SERVED_S = 20e-6
"""Kernels shorter than this are overhead; errors are stated over longer ones."""


@record
class Points:
    """Measurements of one kernel family, one entry per point.

    `peak_flops_per_s` and `hbm_bytes_per_s` are those of the machine they were taken on. `kernel` is what
    the table calls the implementation, `version` the framework's.
    """

    family: str = static()
    flops: Column
    hbm_bytes: Column
    items: Column
    depth: Column
    scores: Column
    seconds: Column
    peak_flops_per_s: float
    hbm_bytes_per_s: float
    kernel: str = static(default="")
    version: str = static(default="")

    def __len__(self) -> int:
        """Return how many points there are."""
        return len(self.seconds)

    def take(self, chosen: Column) -> Points:
        """Return the chosen points, by indices or a mask."""
        return replace(
            self,
            flops=self.flops[chosen],
            hbm_bytes=self.hbm_bytes[chosen],
            items=self.items[chosen],
            depth=self.depth[chosen],
            scores=self.scores[chosen],
            seconds=self.seconds[chosen],
        )

    def predict(self, kernel: Kernel) -> Column:
        """Return the seconds `kernel` predicts for every point, its data left warm by the benchmark."""
        return np.asarray(
            kernel.seconds(
                self.flops,
                self.hbm_bytes,
                self.peak_flops_per_s,
                self.hbm_bytes_per_s,
                items=self.items,
                depth=self.depth,
                scores=self.scores,
                warm=True,
            ),
            np.float64,
        )

    def served(self) -> Column:
        """Return which points are long enough to judge by."""
        return self.seconds > SERVED_S


def thinned(points: Points, most: int, seed: int = 0) -> Points:
    """Return at most `most` points, drawn at random with a fixed seed."""
    if len(points) <= most:
        return points
    return points.take(np.sort(np.random.default_rng(seed).choice(len(points), most, replace=False)))


def column(values: Iterable[float]) -> Column:
    """Return values as a float64 column."""
    return np.fromiter(values, np.float64)
