"""The points that figures are drawn through: existing answers, asked at one value after another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvroof.memory.kv import KVReport, kv
from kvroof.memory.ledger import Ledger
from kvroof.roofline.plan import Plan
from kvroof.roofline.roofline import arithmetic
from kvroof.serving.latency import Calibration
from kvroof.serving.room import room
from kvroof.serving.steady.closed_loop import closed_loop
from kvroof.serving.step_times import PlanTimes
from kvroof.spec.architecture import Architecture
from kvroof.spec.precision import KVFormat
from kvroof.spec.workload import decode, prefill
from kvroof.view.figures.capacity import EqualTime
from kvroof.view.figures.frontier import Curve, Operating

LEVELS_S = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Times per token that a line may be drawn at where none is asked for."""
MOST_LEVELS = 4
SIZES = 240
"""Numbers of sequences at which a decode step is timed."""


def doubling(first: int, last: int) -> list[int]:
    """Return the powers of two from `first` to `last`, and both of them."""
    powers = [2**i for i in range(first.bit_length(), last.bit_length())]
    return sorted({first, *(p for p in powers if first < p < last), last})


def footprint_curve(model: Architecture, kv_format: KVFormat, seqs: int, longest: int) -> list[KVReport]:
    """Return the KV reports of a model from 64 tokens to `longest`, with each length that fills a window."""
    windows = {k.window for k in kv(model, kv_format=kv_format).kinds if k.window is not None}
    first = min(64, longest)
    lengths = sorted({*doubling(first, longest), *(w for w in windows if first <= w <= longest)})
    return [kv(model, tokens=n, seqs=seqs, kv_format=kv_format) for n in lengths]


def capacity_ledgers(
    plan: Plan, longest: int, utilization: float, reserve_bytes: int, shortest: int = 256
) -> list[Ledger]:
    """Return what the memory of a deployment admits, from the shortest context to the longest."""
    return [
        room(plan, tokens, utilization=utilization, reserve_bytes=reserve_bytes)
        for tokens in doubling(min(shortest, longest), longest)
    ]


def equal_times(plan: Plan, ledgers: Sequence[Ledger], asked_s: Sequence[float]) -> list[EqualTime]:
    """Return the most sequences of each length whose decode step takes at most some times.

    Without times that are asked for, round ones at which the memory is partly full.
    """
    import numpy as np

    most = max(4 * max(ledger.max_seqs for ledger in ledgers), 16)
    seqs = np.unique(np.round(np.geomspace(1, most, SIZES)))
    times = PlanTimes(plan)
    rows = [np.broadcast_to(times.decode_s(seqs, float(ledger.tokens)), seqs.shape) for ledger in ledgers]
    levels = asked_s or _levels(float(rows[0][0]), float(max(row[-1] for row in rows)))
    lines = []
    for level in levels:
        kept = [
            (ledger.tokens, int(seqs[np.searchsorted(row, level, side="right") - 1]))
            for ledger, row in zip(ledgers, rows, strict=True)
            if row[0] <= level
        ]
        if kept:
            lines.append(EqualTime(level, tuple(t for t, _ in kept), tuple(n for _, n in kept)))
    return lines


def _levels(least_s: float, most_s: float) -> list[float]:
    return [level for level in LEVELS_S if 1.1 * least_s < level < most_s][:MOST_LEVELS]


def loop_curve(
    plan: Plan, name: str, isl: int, osl: int, utilization: float, reserve_bytes: int
) -> Curve | None:
    """Return a deployment in a closed loop of 1, 2, 4 ... requests up to what its memory admits.

    None where it does not admit one.
    """
    admitted = room(plan, isl + osl - 1, utilization=utilization, reserve_bytes=reserve_bytes).max_seqs
    if not admitted:
        return None
    times, devices = PlanTimes(plan), plan.layout.devices
    points = []
    for requests in doubling(1, min(admitted, 4096)):
        loop = closed_loop(times, isl=isl, osl=osl, concurrency=requests, mixes=True)
        points.append(
            Operating(
                tokens_per_s_per_user=1 / loop.tpot_s,
                tokens_per_s_per_device=loop.tokens_per_s / devices,
                ttft_s=loop.ttft_s,
                label=f"{requests:,}",
            )
        )
    return Curve(name=name, mode="aggregated", points=tuple(points), calibration=calibration_of(plan))


def calibration_of(plan: Plan) -> Calibration | None:
    """Return the calibration of a deployment, None for bounds."""
    found = plan.efficiency
    return Calibration(name=found.name, held_out_mape=found.held_out_mape) if found.name else None


def kernel_families(plan: Plan, isl: int, batch: int) -> dict[str, str]:
    """Return the families of kernels that a prefill and a decode run, with the dtype each multiplies in."""
    return dict(_families(plan, isl, batch))


def _families(plan: Plan, isl: int, batch: int) -> Iterator[tuple[str, str]]:
    for step in (prefill(batch, isl, 0), decode(batch, isl + 1)):
        for timed in plan.cheaper(step):
            if timed.op.kind in ("gemm", "moe", "attention") and timed.op.family:
                yield timed.op.family, arithmetic(timed.op, plan.hardware)
