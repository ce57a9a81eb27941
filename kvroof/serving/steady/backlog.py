"""Prompt tokens that wait for steps which take at most so many of them: the queue of chunked prefill.

A step takes the oldest tokens that wait, at most a budget of them, whatever prompts they belong to; when none
wait it is a step of other work, or the server idles. Tokens come by whole prompts. What waits at the starts
of steps is a Markov chain: with Poisson arrivals, and steps whose length depends only on the tokens they
take, its stationary distribution gives the shares of all steps. It is exact but for the unit in which tokens
are counted, a small part of the budget; prompts are rounded to units so that their mean is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from kvroof.ground.record import record
from kvroof.serving.demand.lengths import Lengths
from kvroof.serving.steady.distribution import Distribution, pieces
from kvroof.serving.steady.queueing import NoSteadyState

PARTS = 32
"""Units in a budget, about: a prompt of the mean length is a whole number of them."""
FEWEST_PARTS, FEWEST_UNITS = 6, 4
"""Units of a budget, and of a mean prompt where prompts differ, below which nothing is said."""
MAX_STATES = 512
"""Waiting units beyond which a unit is made larger."""
DEEP, LOST = 5.0, 1e-4
"""Which waits are covered at first, in about twice the mean of those who wait; and the chance of the last
tenth of what is covered above which more is."""
STRATA = 8
"""Parts of a step in which an arrival is told apart."""
LATEST = 4
"""Full steps before a prompt's last one beyond which no more are taken to come behind it."""
KINDS = 6
"""Steps of different lengths, below a full one, that are told apart by those who arrive in them."""


@record
class Backlog:
    """The steady state of waiting tokens; arrays are by the units that wait at the start of a step.

    `length_s` is the step with 0, 1, ... `parts` units, the first one a step of other work, 0 where the
    server idles. `sizes` are the chances of a prompt's units. `taken_shares` are the shares of steps that
    take 1, 2, ... units among those that take any, `serving` the share of time in them. `behind` are the
    prompts that wait, in tokens of a mean one, when a prompt's last token has run.
    """

    rate_per_s: float
    sizes: Any
    length_s: Any
    shares: Any
    taken_shares: Any
    serving: float
    mixed_per_s: float
    others_per_s: float
    behind: float

    @property
    def parts(self) -> int:
        """Units in a budget."""
        return len(self.length_s) - 1

    def responses(self) -> Distribution:
        """Return the time from a prompt's arrival until the step that runs its last token has ended.

        What is before a prompt are the tokens that its step leaves, and those that came earlier in it. The
        step that ends it is as long as what has come behind it until then makes it, on average.
        """
        import numpy as np

        low, width, weight = [], [], []
        for before, step, edges in self._arrivals():
            came = (edges[1:] + edges[:-1]) / 2
            at, chance = self._finish(_plus(before, self.sizes), step - came)
            low.append((at + (step - edges[1:])[:, None]).ravel())
            width.append(np.repeat(np.diff(edges), at.shape[1]))
            weight.append(chance.ravel())
        return pieces(np.concatenate(low), np.concatenate(width), np.concatenate(weight))

    @property
    def wait_s(self) -> float:
        """Mean time from a prompt's arrival to the first step that runs a token of it."""
        import numpy as np

        waits = 0.0
        for before, step, edges in self._arrivals():
            steps = np.arange(before.shape[1]) // self.parts
            rest = step - (edges[1:] + edges[:-1]) / 2
            waits += float((before * (steps * self.length_s[-1] + rest[:, None])).sum())
        return waits

    def _arrivals(self) -> Iterator[tuple[Any, float, Any]]:
        """Yield what prompts find that come in a step of some kind, by the chance of coming there.

        That is `(before, step, edges)`: a row for each part of the step, between two of its `edges`, with the
        chances of the units that are before a prompt at the end of the step.
        """
        import numpy as np

        parts, states = self.parts, len(self.shares)
        for shares, step, idle in self._kinds():
            left = np.zeros(states)
            left[: states - parts] = shares[parts:]
            left[0] += shares[:parts].sum()
            edges = np.linspace(0.0, step, (1 if idle else STRATA) + 1)
            came = _compounds(self.rate_per_s * (edges[1:] + edges[:-1]) / 2, self.sizes, states)
            yield _plus(came, left) / len(came), step, edges

    def _kinds(self) -> list[tuple[Any, float, bool]]:
        """Return steps as arrivals see them: weights of what waits at their start, length, whether idle."""
        import numpy as np

        parts, full = self.parts, float(self.length_s[-1])
        idles = self.length_s[0] == 0
        spent = self.shares.copy()
        spent[:parts] *= self.length_s[:parts]
        spent[parts:] *= full
        if idles:
            spent[0] = self.shares[0] / self.rate_per_s
        found = []
        edges = [0, *np.unique(np.linspace(1, parts, KINDS + 1).round().astype(int)), len(spent)]
        for start, stop in pairwise(edges):
            weights = np.zeros(len(spent))
            weights[start:stop] = spent[start:stop]
            if weights.sum() <= 1e-9 * spent.sum():
                continue
            mean = float(weights[:parts] @ self.length_s[:parts] + weights[parts:].sum() * full)
            found.append((weights / spent.sum(), mean / float(weights.sum()), idles and start == 0))
        return found

    def _finish(self, ends: Any, behind_s: Any) -> tuple[Any, Any]:
        """Return when prompts end after the step that they came in, and their chances, a row for each row.

        Args:
            ends: Chances of the units until a prompt's last token, its own included.
            behind_s: For each row, how long others have come behind it when the next step begins.
        """
        import numpy as np

        parts, full = self.parts, float(self.length_s[-1])
        kept = np.flatnonzero(ends.max(axis=0) > 1e-10)
        kept = kept[kept > 0]
        steps = (kept - 1) // parts
        rest = kept - steps * parts
        last = np.empty((len(ends), len(kept)))
        for before in range(min(int(steps.max(initial=0)), LATEST) + 1):
            mine = steps == before if before < LATEST else steps >= before
            more = _compounds(self.rate_per_s * (behind_s + before * full), self.sizes, parts)
            upto = np.minimum(rest[mine][:, None] + np.arange(parts), parts)
            last[:, mine] = more @ self.length_s[upto].T + (1 - more.sum(axis=1))[:, None] * full
        return steps * full + last, ends[:, kept]


def backlog(
    rate_per_s: float, prompts: Lengths, length_s: Callable[[Any], Any], budget: float
) -> Backlog | NoSteadyState | None:
    """Return the steady state of prompts that come at a rate; None where it holds too many budgets of tokens.

    Args:
        rate_per_s: Prompts per second.
        prompts: Their tokens.
        length_s: Maps an array of tokens to the seconds of a step that takes them; for none, 0 seconds where
            the server idles.
        budget: Tokens that a step takes at most.
    """
    import numpy as np

    deep = prompts.moment(2) / prompts.mean
    fewest = 1 if len(prompts.values) == 1 else FEWEST_UNITS
    units = max(round(PARTS * prompts.mean / budget), fewest)
    while True:
        unit = prompts.mean / units
        parts = min(int(budget / unit * (1 + 1e-9)), MAX_STATES // 3)
        if parts < FEWEST_PARTS and units > fewest:
            return None
        times = length_s(np.arange(max(parts, 1) + 1) * unit)
        load = rate_per_s * prompts.mean / (max(parts, 1) * unit) * float(times[-1])
        if load >= 1:
            return NoSteadyState(what="prefill", load=load)
        sizes = _rounded(prompts, unit)
        tail = 2 * budget + prompts.longest + DEEP * deep * (load + 0.2) / (1 - load)
        states = max(int(tail / unit), 3 * parts, len(sizes) + parts)
        while states <= MAX_STATES:
            found = _chain(rate_per_s, sizes, times, states)
            if found[-(states // 10) :].sum() < LOST:
                return _summed(rate_per_s, sizes, times, found)
            states += states // 2
        if units == fewest:
            return None
        units = max(units // 2, fewest)


def _rounded(prompts: Lengths, unit: float) -> Any:
    """Return the chances of 0, 1, ... units, each length shared between its neighbours so that means stay."""
    import numpy as np

    exact = np.maximum(np.array(prompts.values) / unit, 1.0)
    low = np.floor(exact * (1 + 1e-9)).astype(int)
    part, shares = np.maximum(exact - low, 0.0), np.array(prompts.shares)
    size = int(low.max()) + 2
    return np.bincount(low, shares * (1 - part), size) + np.bincount(low + 1, shares * part, size)


def _compounds(means: Any, sizes: Any, states: int) -> Any:
    """Return, a row for each mean, the chances of 0, 1, ... units with a Poisson number of prompts."""
    import numpy as np

    points = _quick(2 * max(states, len(sizes)))
    each = np.fft.rfft(sizes, points)
    return np.maximum(np.fft.irfft(np.exp(means[:, None] * (each - 1)), points)[:, :states], 0)


def _plus(rows: Any, other: Any) -> Any:
    """Return the distribution of the sum of each row's number and another."""
    import numpy as np

    points = _quick(rows.shape[1] + len(other))
    return np.maximum(np.fft.irfft(np.fft.rfft(rows, points) * np.fft.rfft(other, points), points), 0)


def _quick(points: int) -> int:
    """Return the next power of two, the quickest number of points for a transform."""
    return 1 << (points - 1).bit_length()


def _chain(rate: float, sizes: Any, times: Any, states: int) -> Any:
    """Return the shares of steps at whose start 0, 1, ... units wait."""
    import numpy as np

    parts = len(times) - 1
    came = _compounds(rate * times, sizes, states)
    moves = np.zeros((states, states))
    moves[: parts + 1] = came
    if times[0] == 0:
        moves[0] = 0.0
        moves[0, : len(sizes)] = sizes[:states]
    for state in range(parts + 1, states):
        moves[state, state - parts :] = came[parts, : states - state + parts]
    moves[:, -1] += np.maximum(1 - moves.sum(axis=1), 0)
    system = moves.T - np.eye(states)
    system[-1] = 1.0
    return np.maximum(np.linalg.solve(system, np.eye(states)[-1]), 0)


def _summed(rate: float, sizes: Any, times: Any, shares: Any) -> Backlog:
    import numpy as np

    parts = len(times) - 1
    taken = np.bincount(np.minimum(np.arange(len(shares)), parts), shares)
    spent = taken * times
    if times[0] == 0:
        spent[0] = taken[0] / rate
    cycle, mixed = float(spent.sum()), float(taken[1:].sum())
    count, each = np.arange(len(shares)), float(sizes @ np.arange(len(sizes)))
    run = np.minimum(count, parts)
    after = count - run + rate * times[run] * each
    return Backlog(
        rate_per_s=rate,
        sizes=sizes,
        length_s=times,
        shares=shares,
        taken_shares=taken[1:] / mixed,
        serving=float(spent[1:].sum()) / cycle,
        mixed_per_s=mixed / cycle,
        others_per_s=float(taken[0]) / cycle if times[0] > 0 else 0.0,
        behind=float(shares * run @ after / (shares @ run)) / each,
    )
