"""Timing: kernels chained inside one jitted program, called in turn, each call with other numbers.

A call is given a number that no call had before (`poison`), and everything it computes depends on it: no
answer can come from an earlier call. What is read is random. Programs are warm before they are timed, and
their repeats are interleaved, so that a busy moment does not fall on one of them alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from kvroof.calibration.work import Work
from kvroof.ground.errors import Unsupported
from kvroof.ground.record import record, static

TOGETHER = 8
"""Programs whose repeats are interleaved; all of their data is there at once."""
WARM_UPS = 2
FEWEST = 3
"""Repeats of a program, however long it takes."""
SEED = 20_251

Call = Callable[[float], Any]
"""Runs the program once with a poison; the first leaf of its answer is a few of the numbers it computed."""


class Bench(NamedTuple):
    """A program that runs one kind of kernel `inner` times in a chain.

    `make` puts its data on the device and compiles nothing; `work` is that of one kernel, `dtype` the
    arithmetic whose peak it is held against.
    """

    family: str
    shape: str
    dtype: str
    work: Work
    inner: int
    make: Callable[[], Call]


@record
class Timing:
    """The seconds of one kernel: the median over repeats, and the shortest."""

    bench: Bench = static()
    seconds: float
    shortest: float
    repeats: int


@record
class Effort:
    """How much is measured: `repeats` of each program, at most `bench_s` for one and `limit_s` in all.

    Programs that the limit leaves no time for are left out, and the answer says how many. A kernel takes its
    median repeat, or its `shortest`.
    """

    repeats: int = 9
    bench_s: float = 2.0
    limit_s: float = 240.0
    shortest: bool = static(default=False)


class Clock:
    """Times programs until the time is up.

    Args:
        effort: How much is measured.
        progress: Told of each program: what it is, how many are done, how many there are.
        total: Programs there are.
    """

    def __init__(
        self, effort: Effort, progress: Callable[[str, int, int], None] | None = None, total: int = 0
    ) -> None:
        self.effort, self.total, self.done = effort, total, 0
        self.left_out: list[Bench] = []
        self._progress = progress
        self._end = time.perf_counter() + effort.limit_s
        self._poison = np.random.default_rng(SEED)

    def tell(self, what: str, steps: int = 1) -> None:
        """Count programs as done and tell of it."""
        self.done += steps
        if self._progress is not None:
            self._progress(what, min(self.done, self.total), self.total)

    @property
    def over(self) -> bool:
        """Whether the time is up."""
        return time.perf_counter() > self._end

    def run(self, benches: Sequence[Bench]) -> Iterator[Timing]:
        """Yield the timings of programs, in groups whose repeats are interleaved.

        Raises:
            Unsupported: A program whose answer is not finite, or does not depend on what it is given.
        """
        for start in range(0, len(benches), TOGETHER):
            yield from self._group(benches[start : start + TOGETHER])

    def _group(self, benches: Sequence[Bench]) -> Iterator[Timing]:
        warm: list[tuple[Bench, Call, float]] = []
        for bench in benches:
            if self.over:
                self.left_out.append(bench)
                self.tell(bench.family)
                continue
            call = bench.make()
            warm.append((bench, call, self._warmed(bench, call)))
            self.tell(f"{bench.family} {bench.shape}")
        seconds: list[list[float]] = [[] for _ in warm]
        for repeat in range(self.effort.repeats):
            for (_, call, once), taken in zip(warm, seconds, strict=True):
                if repeat < FEWEST or (repeat * once < self.effort.bench_s and not self.over):
                    taken.append(self._once(call)[0])
        for (bench, _, _), taken in zip(warm, seconds, strict=True):
            yield Timing(
                bench=bench,
                seconds=float(np.median(taken)) / bench.inner,
                shortest=min(taken) / bench.inner,
                repeats=len(taken),
            )

    def _warmed(self, bench: Bench, call: Call) -> float:
        """Return the seconds of a warm call, after checking that answers follow what is given."""
        answers = []
        for _ in range(WARM_UPS):
            seconds, answer = self._once(call)
            answers.append(answer)
        check(bench, answers)
        return seconds

    def _once(self, call: Call) -> tuple[float, Any]:
        import jax

        poison = jax.block_until_ready(jax.device_put(np.float32(self._poison.uniform(0.5, 1.5))))  # type: ignore[no-untyped-call]
        began = time.perf_counter()
        out = jax.block_until_ready(call(poison))  # type: ignore[no-untyped-call]
        seconds = time.perf_counter() - began
        return seconds, np.asarray(jax.tree_util.tree_leaves(out)[0], np.float64)


def check(bench: Bench, answers: Sequence[Any]) -> None:
    """Refuse a program whose answers are not finite, or are the same for other poisons.

    Raises:
        Unsupported: It is not measured then.
    """
    first, second = answers[-2:]
    if not np.isfinite(second).all():
        raise Unsupported(f"{bench.shape} does not compute finite numbers", where=bench.family)
    if np.array_equal(first, second):
        raise Unsupported(
            f"{bench.shape} answers the same whatever it is given: nothing was computed", where=bench.family
        )


def pool(count: int, dtype: str, seed: int = SEED) -> Any:
    """Return `count` random numbers around 0 on the device."""
    import jax
    import jax.numpy as jnp

    numbers = np.random.default_rng(seed).standard_normal(min(count, 2**22), np.float32)
    tiled = np.resize(numbers, count)
    return jax.device_put(tiled.astype(jnp.dtype(dtype)))


def copies(each_bytes: float, llc_bytes: float, most: int) -> int:
    """Return how many operands are gone through in turn so that none is still in the cache."""
    return int(min(max(2 * llc_bytes // max(each_bytes, 1), 1), most))
