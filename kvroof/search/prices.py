"""What one more unit of anything is worth: multipliers of the relaxed optimum, and the envelope theorem.

Let J be the log objective and g the logs of quantities over their limits, with multipliers l. At an optimum

    dJ / dp = (partial J - sum over limits of l x partial g) / partial p

for any number p of the machine, and dJ / d log(limit) = l. The partial derivatives are central differences
of the exact step model at the optimum, all perturbed machines in one evaluation.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvroof.ground.record import record, static
from kvroof.ground.units import GB, GIB, TB
from kvroof.roofline.plan import arithmetic_used
from kvroof.search.candidates import Candidate
from kvroof.spec.hardware import Hardware, Link
from kvroof.spec.workload import decode, prefill

STEP = 1e-3
"""Relative change of a number of the machine."""
PARTS = ("hbm_bandwidth", "compute", "link")


@record
class ShadowPrice:
    """What the objective gains by one more unit, at the margin and with everything else chosen anew."""

    value: float
    unit: str = static()


@record
class Optimum:
    """A relaxed optimum of a candidate: size, chunk, log objective, slacks and multipliers of its limits."""

    size: float
    chunk: float
    value: float
    slack: dict[str, float]
    multipliers: dict[str, float]
    residual: float


def shadow_prices(candidate: Candidate, at: Optimum, metric: float, unit: str) -> dict[str, ShadowPrice]:
    """Return the price of bandwidth, arithmetic, links, memory and each limit.

    Args:
        candidate: The discrete choice, which stays as it is.
        at: Its relaxed optimum.
        metric: The objective in its unit. Where less is better, prices are negative: what one unit saves.
        unit: That unit.
    """
    question, machine = candidate.question, candidate.plan.hardware
    sign = -1.0 if question.objective in ("latency", "cost", "energy") else 1.0
    value = sign * metric
    logs = _log_slopes(candidate, at)
    peak_name = _arithmetic(candidate)
    amounts = {
        "hbm_bandwidth": (machine.hbm_bytes_per_s / GB, "GB/s of HBM"),
        "compute": (machine.peak_flops_per_s[peak_name] / TB, f"TFLOP/s of {peak_name}"),
    }
    link = machine.scale_up or machine.scale_out or machine.host
    if candidate.plan.layout.devices > 1 and link is not None:
        amounts["link"] = (link.bytes_per_s / GB, f"GB/s of {link.name}")
    found = {
        name: ShadowPrice(value=value * logs[name] / amount + 0.0, unit=f"{unit} per {what}")
        for name, (amount, what) in amounts.items()
    }
    found["memory"] = ShadowPrice(
        value=value * at.multipliers["size"] * _log_room(candidate, at) + 0.0
        if candidate.cap.name == "memory"
        else 0.0,
        unit=f"{unit} per GiB",
    )
    for name, limit in (("ttft", question.limits.ttft_s), ("tpot", question.limits.tpot_s)):
        if limit is not None:
            price = value * at.multipliers[name] / (limit * 1e3)
            found[name] = ShadowPrice(value=price + 0.0, unit=f"{unit} per ms")
    return found


def _log_slopes(candidate: Candidate, at: Optimum) -> dict[str, float]:
    """Return d J / d log of each part of the machine at the optimum."""
    import numpy as np

    scales = {part: np.ones((2 * len(PARTS), 1)) for part in PARTS}
    for row, part in enumerate(PARTS):
        scales[part][2 * row : 2 * row + 2, 0] = 1 + STEP, 1 - STEP
    plan = replace(candidate.plan, hardware=scaled(candidate.plan.hardware, **scales))
    sizes = np.full(2 * len(PARTS), at.size)
    chunks = np.full(2 * len(PARTS), at.chunk) if candidate.chunked else None
    every = candidate.logs(candidate.by(plan, sizes, chunks), sizes, chunks)
    candidate.evaluations += len(sizes)
    prices = np.array([0.0, *at.multipliers.values()])
    prices[0] = -1.0
    lagrangian = -(prices @ every)
    slopes = (lagrangian[0::2] - lagrangian[1::2]) / (2 * STEP)
    return dict(zip(PARTS, (float(s) for s in slopes), strict=True))


def scaled(machine: Hardware, hbm_bandwidth: Any = 1.0, compute: Any = 1.0, link: Any = 1.0) -> Hardware:
    """Return a machine with its bandwidth, its peaks and its links multiplied; factors may be arrays."""

    def faster(one: Link | None) -> Link | None:
        return None if one is None else replace(one, bytes_per_s=one.bytes_per_s * link)

    return replace(
        machine,
        hbm_bytes_per_s=machine.hbm_bytes_per_s * hbm_bandwidth,
        peak_flops_per_s={name: peak * compute for name, peak in machine.peak_flops_per_s.items()},
        scale_up=faster(machine.scale_up),
        scale_out=faster(machine.scale_out),
        host=faster(machine.host),
    )


def _log_room(candidate: Candidate, at: Optimum) -> float:
    """Return d log(most size) per GiB of each device's memory."""
    room, question, dp = candidate.room, candidate.question, candidate.plan.layout.dp
    more = GIB * question.utilization
    if question.wants_context:
        seqs, near = candidate.seqs * dp, candidate.whole
        rise = room.real_tokens(seqs, near, more) - room.real_tokens(seqs, near)
    else:
        tokens = candidate.held_tokens(max(int(at.size), 1))
        rise = (room.real_seqs(tokens, more) - room.real_seqs(tokens)) / dp
    return float(rise / candidate.cap.most)


def _arithmetic(candidate: Candidate) -> str:
    """Return the arithmetic that most of the products run in."""
    timed = candidate.plan.time(decode(8, 1024)) + candidate.plan.time(prefill(1, 1024))
    work: dict[str, float] = {}
    for t in timed:
        for name in arithmetic_used((t,), candidate.plan.hardware):
            work[name] = work.get(name, 0.0) + float(t.op.count * t.op.flops)
    return max(work, key=lambda name: work[name])
