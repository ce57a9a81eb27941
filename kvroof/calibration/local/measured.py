"""What was measured of the local device, as a source that profiles are fitted from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from kvroof.calibration import work
from kvroof.calibration.local.bench import Timing
from kvroof.calibration.local.collectives import as_messages, crossings, fastest_link
from kvroof.calibration.local.device import Reached
from kvroof.calibration.points import Points, column
from kvroof.calibration.sources import collect
from kvroof.calibration.wires import Messages
from kvroof.ground.errors import BadInput
from kvroof.ground.record import record, static
from kvroof.ground.units import format_count
from kvroof.spec.hardware import Hardware

NOT_FAMILIES = ("copy", "read", "dispatch", "link")
"""Heads of programs that are measured for something else than a kernel's efficiency."""
SCOPE = (
    "kernels of this program's own engine and of XLA, timed inside a jitted program, operands not in cache",
    "prompts were measured whole: a chunk is scored against all that is cached, which takes longer",
    "no shapes but those measured are vouched for; experts and recurrences are priced by relatives",
)


@record
class MeasuredHere:
    """Timings of the local device; a source of points and of messages.

    A kernel takes its median repeat, or its `shortest`: what it takes when nothing else runs.
    """

    timings: tuple[Timing, ...] = static()
    provenance: str = static()
    scope: tuple[str, ...] = static(default=SCOPE)
    version: str = static(default="")
    shortest: bool = static(default=False)
    link_bytes_per_s: float | None = None

    def of(self, head: str) -> list[Timing]:
        """Return the timings of families that begin with `head`."""
        return [t for t in self.timings if t.bench.family.partition(".")[0] == head]

    @property
    def families(self) -> tuple[str, ...]:
        """The kernel families that were measured, in order."""
        named = dict.fromkeys(t.bench.family for t in self.timings)
        return tuple(name for name in named if name.partition(".")[0] not in NOT_FAMILIES)

    @property
    def dispatch_s(self) -> float:
        """The seconds of a call that computes nothing."""
        calls = [t.shortest if self.shortest else t.seconds for t in self.of("dispatch")]
        return float(np.median(calls or [0.0]))

    def family(self, name: str) -> list[Timing]:
        """Return a family's timings, in the order measured."""
        return [t for t in self.timings if t.bench.family == name]

    def seconds(self, timing: Timing) -> float:
        """Return a kernel's own seconds: the dispatch of its program is the host's."""
        taken = timing.shortest if self.shortest else timing.seconds
        return max(taken - self.dispatch_s / timing.bench.inner, 0.1 * taken)

    def points(self, hardware: Hardware, framework: str) -> Iterator[Points]:
        """Yield the points of each kernel family; `framework` names what ran them."""
        for name in self.families:
            timings = self.family(name)
            did = work.Work(
                *(column(getattr(t.bench.work, key) for t in timings) for key in work.Work._fields)
            )
            seconds = column(self.seconds(t) for t in timings)
            dtype = timings[0].bench.dtype
            yield collect(name, did, seconds, hardware, dtype, framework, self.version)

    def messages(self, hardware: Hardware, framework: str) -> Iterable[Messages]:
        """Return the collectives, with the rate of the machine's link."""
        link = hardware.scale_up.bytes_per_s if hardware.scale_up is not None else self.link_bytes_per_s
        return [] if link is None else as_messages(crossings(list(self.timings)), link, self.version)


def reached(timings: Sequence[Timing]) -> Reached:
    """Return the best rates that were measured, those of the shortest repeats.

    Raises:
        BadInput: No pass over memory, or no product, was measured.
    """
    passes = [t for t in timings if t.bench.family in ("copy", "read")]
    products = [t for t in timings if t.bench.family.startswith("gemm.")]
    if not passes or not products:
        raise BadInput("needs a copy and a product at least", where="calibrate", way_out="give it more time")
    fastest = max(passes, key=_bytes_per_s)
    best = {
        dtype: max((t for t in products if t.bench.dtype == dtype), key=_flops_per_s)
        for dtype in dict.fromkeys(t.bench.dtype for t in products)
    }
    return Reached(
        bytes_per_s=_bytes_per_s(fastest),
        bytes_source=f"the fastest pass over memory, {fastest.bench.shape}",
        flops_per_s={dtype: _flops_per_s(t) for dtype, t in best.items()},
        flops_sources={dtype: f"the best product, {t.bench.shape}" for dtype, t in best.items()},
        link_bytes_per_s=fastest_link(crossings(list(timings))),
    )


def busyness(timings: Sequence[Timing]) -> float:
    """Return how much longer a median repeat took than the shortest, in the median program."""
    return float(np.median([t.seconds / t.shortest - 1 for t in timings])) if timings else 0.0


def said(timings: Sequence[Timing]) -> str:
    """Return how many programs and calls were timed, in words."""
    calls = sum(t.repeats for t in timings)
    return f"{format_count(len(timings))} programs, {format_count(calls)} timed calls"


def _bytes_per_s(timing: Timing) -> float:
    return timing.bench.work.hbm_bytes / timing.shortest


def _flops_per_s(timing: Timing) -> float:
    return timing.bench.work.flops / timing.shortest
