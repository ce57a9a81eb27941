"""Operations x machine -> seconds. Each is priced first and then added.

Two opposite-bound operations of 1 ms each take 2 ms, where the roofline of their summed cost says 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias

from kvroof.cost.op import Op
from kvroof.ground.errors import BadInput, Unsupported
from kvroof.ground.numeric import maximum
from kvroof.ground.record import record
from kvroof.roofline.collectives import collective_s, sent_bytes
from kvroof.roofline.efficiency import IDENTITY, Efficiency
from kvroof.spec.hardware import Hardware

Bound: TypeAlias = Literal["compute", "hbm", "network", "overhead", "host"]


@record
class Timed:
    """An operation with its seconds in one step: all `count` executions together.

    `compute_s`, `hbm_s` and `network_s` are what each resource alone would take; they overlap inside
    an operation, so `seconds` is the largest of them and the launch overhead. Averaged over steps, the
    mean of a maximum exceeds the maximum of the means by `excess_s`, where the bound changes between.
    `host_s` is the time of what lives in host memory.
    """

    op: Op
    net_bytes: float
    compute_s: float
    hbm_s: float
    network_s: float
    overhead_s: float
    excess_s: float = 0.0
    host_s: float = 0.0

    @property
    def seconds(self) -> float:
        """Time of the operation."""
        busiest = maximum(maximum(self.compute_s, self.hbm_s), maximum(self.network_s, self.host_s))
        return busiest + self.excess_s + self.overhead_s


def arithmetic(op: Op, hardware: Hardware) -> str:
    """Return the compute dtype that `op` runs in: the first it asks for that the chip has.

    Raises:
        BadInput: The one dtype asked for explicitly is not there.
        Unsupported: None of the choices is.
    """
    for name in op.compute:
        if name in hardware.peak_flops_per_s:
            return name
    has = ", ".join(hardware.peak_flops_per_s)
    if len(op.compute) == 1:
        raise BadInput(
            f"{hardware.name} has no {op.compute[0]} peak", where="--compute-dtype", way_out=f"it has {has}"
        )
    raise Unsupported(
        f"{hardware.name} has none of {', '.join(op.compute)}", where=op.name, way_out=f"it has {has}"
    )


@record
class Host:
    """Host memory that holds what does not fit: read by the host's own processor, which runs it there.

    With `bytes_per_s` None the device runs it and streams it over its host link in every step.
    """

    bytes_per_s: float | None = None


def price(op: Op, hardware: Hardware, efficiency: Efficiency = IDENTITY, host: Host = Host()) -> Timed:  # noqa: B008
    """Return `op` with the seconds each resource of `hardware` takes for it.

    Raises:
        BadInput: An explicit compute dtype that the chip lacks.
        Unsupported: No peak or no link is known for the operation.
    """
    if op.place == "host":
        return _price_on_host(op, hardware, host)
    if op.collective is not None:
        return _price_collective(op, hardware, efficiency)
    peak = hardware.peak_flops_per_s[arithmetic(op, hardware)]
    kernel = efficiency.kernel(op.family or op.kind)
    compute_s = op.count * op.flops / (peak * kernel.compute)
    hbm_s = op.count * op.hbm_bytes / (hardware.hbm_bytes_per_s * kernel.hbm)
    once = kernel.seconds(
        op.flops,
        op.hbm_bytes,
        peak,
        hardware.hbm_bytes_per_s,
        items=op.items,
        depth=op.depth,
        scores=op.scores,
    )
    return Timed(
        op=op,
        net_bytes=0.0,
        compute_s=compute_s,
        hbm_s=hbm_s,
        network_s=0.0,
        overhead_s=op.count * op.launches * kernel.t0_s,
        excess_s=op.count * (once - kernel.t0_s) - maximum(compute_s, hbm_s),
    )


def _price_collective(op: Op, hardware: Hardware, efficiency: Efficiency) -> Timed:
    """Return a collective with its time on the link; its start is part of the link's time."""
    assert op.collective is not None
    sent = op.count * sent_bytes(op, hardware)
    seconds = op.count * collective_s(op, hardware, efficiency.wire(op.collective))
    return Timed(op=op, net_bytes=sent, compute_s=0.0, hbm_s=0.0, network_s=seconds, overhead_s=0.0)


def _price_on_host(op: Op, hardware: Hardware, host: Host) -> Timed:
    """Return an operation whose weights or cache live in host memory, bound by how fast they are read there.

    The host's arithmetic is not bounded: no peak of it is known.
    """
    moved = op.count * (op.weight_bytes + op.kv_bytes)
    if host.bytes_per_s is not None:
        rate = host.bytes_per_s
    elif hardware.host is not None and not hardware.unified_memory:
        rate = hardware.host.bytes_per_s
    else:
        raise Unsupported(
            f"no link from {hardware.name} to host memory is known",
            where="--host-bandwidth",
            way_out="give the host memory's own, e.g. --host-bandwidth 80GB/s",
        )
    return Timed(
        op=op, net_bytes=0.0, compute_s=0.0, hbm_s=0.0, network_s=0.0, overhead_s=0.0, host_s=moved / rate
    )


def price_all(
    ops: Sequence[Op],
    hardware: Hardware,
    efficiency: Efficiency = IDENTITY,
    host: Host = Host(),  # noqa: B008
) -> tuple[Timed, ...]:
    """Return every operation priced."""
    return tuple(price(op, hardware, efficiency, host) for op in ops)


def repeated(timed: Timed, times: float) -> Timed:
    """Return an operation executed that many times as often."""
    return replace(
        timed,
        op=replace(timed.op, count=timed.op.count * times),
        net_bytes=timed.net_bytes * times,
        compute_s=timed.compute_s * times,
        hbm_s=timed.hbm_s * times,
        network_s=timed.network_s * times,
        overhead_s=timed.overhead_s * times,
        excess_s=timed.excess_s * times,
        host_s=timed.host_s * times,
    )


def mean(value: Any) -> float:
    """Return a number, or the mean of an array of them."""
    return value if isinstance(value, (int, float)) else float(value.mean())


def serial_s(timed: Sequence[Timed]) -> float:
    """Return the seconds of the operations one after another."""
    return sum(t.seconds for t in timed)


def peak_compute_s(timed: Sequence[Timed], hardware: Hardware) -> float:
    """Return the time that the arithmetic takes at the peaks, whatever a calibration says is reached."""
    return sum(
        t.op.count * t.op.flops / hardware.peak_flops_per_s[arithmetic(t.op, hardware)]
        for t in timed
        if t.op.place == "device" and t.op.kind not in ("collective", "host")
    )


def compulsory_hbm_s(timed: Sequence[Timed], hardware: Hardware) -> float:
    """Return the time that weights and cache take to cross HBM at its peak."""
    here = (t.op for t in timed if t.op.place == "device")
    return sum(op.count * (op.weight_bytes + op.kv_bytes) for op in here) / hardware.hbm_bytes_per_s


def overlapped_s(timed: Sequence[Timed], hardware: Hardware) -> float:
    """Return the least time any schedule could take: every resource busy all the time, at its peak.

    Activations are left out of the traffic, since fused kernels may keep them on chip; weights and the
    cache have to cross HBM.
    """
    at_peak = IDENTITY.wire("all_reduce")
    moving = (t.op for t in timed if t.op.collective is not None)
    network = sum(op.count * collective_s(op, hardware, at_peak) for op in moving)
    compute, memory = peak_compute_s(timed, hardware), compulsory_hbm_s(timed, hardware)
    return maximum(maximum(compute, memory), maximum(network, sum(t.host_s for t in timed)))


def bound_of(timed: Sequence[Timed]) -> Bound:
    """Return the resource that most of the serial time is spent waiting for."""
    shares: dict[Bound, float] = {"compute": 0.0, "hbm": 0.0, "network": 0.0, "overhead": 0.0, "host": 0.0}
    for t in timed:
        parts: dict[Bound, float] = {
            "compute": t.compute_s,
            "hbm": t.hbm_s,
            "network": t.network_s,
            "host": t.host_s,
        }
        busiest = max(parts, key=lambda name: parts[name])
        shares[busiest] += parts[busiest] + t.excess_s
        shares["overhead"] += t.overhead_s
    return max(shares, key=lambda name: shares[name])
