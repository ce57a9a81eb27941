"""The operations of a step as people read them: one line per name, means over many steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kvroof.cost.op import BY_BATCH, Op
from kvroof.ground.record import record, static
from kvroof.roofline.roofline import Bound, Timed, bound_of, mean, serial_s


@record
class OpTime:
    """One operation of a step, its executions together; `bound` is what its time is spent on."""

    name: str = static()
    count: float
    flops: float
    hbm_bytes: float
    net_bytes: float
    seconds: float
    bound: Bound = static()
    compute_s: float
    hbm_s: float
    network_s: float


def op_times(timed: Sequence[Timed]) -> tuple[OpTime, ...]:
    """Return the operations of a step, those of the same name added up, in order of execution."""
    groups: dict[str, list[Timed]] = {}
    for t in timed:
        groups.setdefault(t.op.name, []).append(t)
    return tuple(_op_time(name, group) for name, group in groups.items())


def _op_time(name: str, group: list[Timed]) -> OpTime:
    return OpTime(
        name=name,
        count=sum(t.op.count for t in group),
        flops=sum(t.op.count * t.op.flops for t in group),
        hbm_bytes=sum(t.op.count * t.op.hbm_bytes for t in group),
        net_bytes=sum(t.net_bytes for t in group),
        seconds=serial_s(group),
        bound=bound_of(group),
        compute_s=sum(t.compute_s for t in group),
        hbm_s=sum(t.hbm_s for t in group),
        network_s=sum(t.network_s for t in group),
    )


def mean_over_steps(timed: Sequence[Timed]) -> tuple[Timed, ...]:
    """Return operations with the mean over steps in place of arrays; seconds average exactly."""
    averaged = []
    for t in timed:
        parts = (t.compute_s, t.hbm_s, t.network_s, t.host_s, t.overhead_s, t.seconds)
        compute, hbm, network, host, overhead, seconds = (mean(part) for part in parts)
        averaged.append(
            Timed(
                op=_mean_op(t.op),
                net_bytes=mean(t.net_bytes),
                compute_s=compute,
                hbm_s=hbm,
                network_s=network,
                overhead_s=overhead,
                excess_s=seconds - overhead - max(compute, hbm, network, host),
                host_s=host,
            )
        )
    return tuple(averaged)


def _mean_op(op: Op) -> Op:
    means: dict[str, Any] = {name: mean(getattr(op, name)) for name in BY_BATCH}
    return replace(op, **means)
