"""One class of evidence: cases that somebody else counted, logged or measured, and how far off each is."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

from kvroof.ground.record import record, static

WORST = 5
"""How many of the worst cases a page names."""


@record
class Case:
    """One case: `error` is `predicted / known - 1`, the known value being somebody else's.

    `known` and `predicted` are as they are shown, with their unit. `why` says what is known of an error.
    """

    name: str = static()
    known: str = static()
    predicted: str = static()
    error: float
    why: str = static(default="")


@record
class Refused:
    """A case that is not answered, and why."""

    name: str = static()
    why: str = static()


@record
class Evidence:
    """The cases of one class.

    Attributes:
        kind: What is held against the evidence: parameters, engine logs, kernels.
        against: Where the evidence is from, and in which conditions.
        cases: Those that were answered.
        refused: Those that were not.
        exact: Whether a case counts as right only when it is equal; else errors are to be expected.
        notes: What is to be known of the figures.
    """

    kind: str = static()
    against: str = static()
    cases: tuple[Case, ...]
    refused: tuple[Refused, ...] = ()
    exact: bool = static(default=False)
    notes: tuple[str, ...] = static(default=())

    @property
    def equal(self) -> int:
        """How many cases are equal."""
        return sum(case.error == 0 for case in self.cases)

    @property
    def median(self) -> float:
        """The median of the absolute errors."""
        return median(abs(case.error) for case in self.cases)

    @property
    def mean(self) -> float:
        """The mean of the absolute errors."""
        return fmean(abs(case.error) for case in self.cases)

    @property
    def worst(self) -> tuple[Case, ...]:
        """The cases that are furthest off, those that are equal left out."""
        return tuple(by_error([case for case in self.cases if case.error])[:WORST])

    def within(self, share: float) -> int:
        """Return how many cases are off by no more than a share of the known value."""
        return sum(abs(case.error) <= share for case in self.cases)


def by_error(cases: Sequence[Case]) -> list[Case]:
    """Return cases, the one that is furthest off first."""
    return sorted(cases, key=lambda case: -abs(case.error))
