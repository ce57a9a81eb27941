"""One batch from prompt to last token: TTFT, TPOT, throughput, and what bounds them.

Definitions. TTFT is the prefill of the whole batch, which gives every sequence its first token. TPOT is
the mean over the remaining decode steps, `(e2e - TTFT) / (osl - 1)`. Queueing is not in them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from kvroof.ground.errors import BadInput
from kvroof.ground.record import record, static
from kvroof.ground.units import format_decimal
from kvroof.memory.ledger import Ledger, fit
from kvroof.roofline.collectives import link_for
from kvroof.roofline.plan import Plan, arithmetic_used
from kvroof.roofline.roofline import (
    Bound,
    Timed,
    bound_of,
    compulsory_hbm_s,
    overlapped_s,
    peak_compute_s,
    serial_s,
)
from kvroof.spec.parallel import Layout
from kvroof.spec.workload import Sequences, Step, decode, prefill

MAX_LENGTH = 2**27
MAX_BATCH = 2**24
MAX_POINTS = 4096
"""Decode steps that are evaluated one by one; longer outputs are sampled evenly, ends included."""


@record
class Phases:
    """A figure of each phase."""

    prefill: Any
    decode: Any


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


@record
class Calibration:
    """The calibration an estimate used, with its error on points it was not fitted to."""

    name: str = static()
    held_out_mape: float | None


@record
class Interval:
    """`(low, high)` of each time at one sigma."""

    ttft_s: tuple[float, float]
    tpot_s: tuple[float, float]


@record
class Estimate:
    """Times and rates of one batch. Without a `calibration` each time is a bound, not a prediction."""

    model: str = static()
    hardware: str = static()
    isl: int
    osl: int
    batch: int
    devices: int
    prefill_s: float
    ttft_s: float
    tpot_s: float
    e2e_s: float
    tokens_per_s: float
    tokens_per_s_per_device: float
    bound: Phases
    mfu: Phases
    mbu: Phases
    lower_bound_s: Phases
    calibration: Calibration | None
    interval: Interval | None = None
    prefill_ops: tuple[OpTime, ...]
    decode_ops: tuple[OpTime, ...]
    fits: bool = static()
    memory: Ledger
    assumptions: tuple[str, ...] = static()


def estimate(
    plan: Plan,
    *,
    isl: int = 2048,
    osl: int = 256,
    batch: int = 8,
    chunk: int | None = None,
    cached_prefix: int = 0,
    encoder_tokens: int = 0,
    utilization: float = 0.9,
    reserve_bytes: int = 0,
) -> Estimate:
    """Return the times of `batch` requests of `isl` prompt and `osl` output tokens that start together.

    Args:
        plan: The deployment.
        isl: Prompt tokens of each request.
        osl: Output tokens of each request.
        batch: Requests at once.
        chunk: Tokens of a prompt run per step; None runs it whole.
        cached_prefix: Prompt tokens whose KV is already in cache.
        encoder_tokens: Tokens of the encoder's output per request, for cross-attention.
        utilization: Share of the memory that may be used, for `fits`.
        reserve_bytes: Memory that is neither weights nor cache, for `fits`.

    Raises:
        BadInput: A length, batch, chunk or prefix that cannot be.
        Unsupported: A peak or link of the machine that is not known.
    """
    _check(isl, osl, batch, chunk, cached_prefix)
    steps = _chunks(batch, isl, chunk, cached_prefix, encoder_tokens)
    first = _merge([plan.cheaper(step) for step in steps])
    later = _mean(plan.time(_decode_steps(batch, isl, osl, encoder_tokens), "absorbed"))
    ttft, tpot = serial_s(first), serial_s(later)
    e2e = ttft + (osl - 1) * tpot
    memory = fit(
        plan.model,
        plan.hardware.capacity_bytes,
        tokens=isl + osl - 1,
        seqs=batch,
        utilization=utilization,
        reserve_bytes=reserve_bytes,
        formats=plan.formats,
        kv_format=plan.kv_format,
        encoder_tokens=encoder_tokens,
        allocator=plan.allocator,
        layout=plan.layout,
    )
    efficiency, machine = plan.efficiency, plan.hardware
    calibrated = (
        Calibration(name=efficiency.name, held_out_mape=efficiency.held_out_mape) if efficiency.name else None
    )
    return Estimate(
        model=plan.model.name,
        hardware=machine.name,
        isl=isl,
        osl=osl,
        batch=batch,
        devices=plan.layout.devices,
        prefill_s=ttft,
        ttft_s=ttft,
        tpot_s=tpot,
        e2e_s=e2e,
        tokens_per_s=batch * osl / e2e,
        tokens_per_s_per_device=batch * osl / e2e / plan.layout.devices,
        bound=Phases(prefill=bound_of(first), decode=bound_of(later)),
        mfu=Phases(
            prefill=peak_compute_s(first, machine) / ttft, decode=peak_compute_s(later, machine) / tpot
        ),
        mbu=Phases(
            prefill=compulsory_hbm_s(first, machine) / ttft, decode=compulsory_hbm_s(later, machine) / tpot
        ),
        lower_bound_s=Phases(prefill=overlapped_s(first, machine), decode=overlapped_s(later, machine)),
        calibration=calibrated,
        interval=None
        if calibrated is None
        else Interval(ttft_s=_interval(plan, first), tpot_s=_interval(plan, later)),
        prefill_ops=op_times(first),
        decode_ops=op_times(later),
        fits=memory.fits,
        memory=memory,
        assumptions=_assumptions(plan, first, later, batch, cached_prefix, memory),
    )


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


def _check(isl: int, osl: int, batch: int, chunk: int | None, cached_prefix: int) -> None:
    for name, value, most in (
        ("--isl", isl, MAX_LENGTH),
        ("--osl", osl, MAX_LENGTH),
        ("--batch", batch, MAX_BATCH),
    ):
        if not 1 <= value <= most:
            raise BadInput(f"{value} is not between 1 and {most}", where=name)
    if chunk is not None and chunk < 1:
        raise BadInput(f"{chunk} is not a positive number of tokens", where="--chunk")
    if not 0 <= cached_prefix < isl:
        raise BadInput(
            f"{cached_prefix} cached tokens leave none of {isl} to run",
            where="--cached-prefix",
            way_out="the last token is always run",
        )


def _chunks(batch: int, isl: int, chunk: int | None, cached: int, encoder_tokens: int) -> Iterable[Step]:
    """Return the prefill steps; only the last one samples."""
    if chunk is None or chunk >= isl - cached:
        return [prefill(batch, isl, cached, encoder_tokens)]
    if (isl - cached) / chunk > MAX_POINTS:
        raise BadInput(
            f"{chunk} tokens make more than {MAX_POINTS} chunks",
            where="--chunk",
            way_out="take larger chunks",
        )
    ends = [*range(cached + chunk, isl, chunk), isl]
    starts = [cached, *ends[:-1]]
    return [
        Step(
            groups=(
                Sequences(
                    count=batch,
                    query_len=end - start,
                    kv_len=end,
                    sampled=int(end == isl),
                    encoder_len=encoder_tokens,
                ),
            )
        )
        for start, end in zip(starts, ends, strict=True)
    ]


def _decode_steps(batch: int, isl: int, osl: int, encoder_tokens: int) -> Step:
    """Return every decode step at once: `kv_len` runs over isl + 1 ... isl + osl - 1 as an array."""
    import numpy as np

    last = max(isl + osl - 1, isl + 1)
    points: Any = np.linspace(isl + 1, last, min(last - isl, MAX_POINTS))
    return decode(batch, points, encoder_tokens)


def _mean(timed: Sequence[Timed]) -> tuple[Timed, ...]:
    """Return operations with the mean over steps in place of arrays; seconds average exactly."""
    import numpy as np

    averaged = []
    for t in timed:
        parts = (t.compute_s, t.hbm_s, t.network_s, t.host_s, t.overhead_s, t.seconds)
        compute, hbm, network, host, overhead, seconds = (float(np.mean(part)) for part in parts)
        averaged.append(
            Timed(
                op=_mean_op(t.op),
                net_bytes=float(np.mean(t.net_bytes)),
                compute_s=compute,
                hbm_s=hbm,
                network_s=network,
                overhead_s=overhead,
                excess_s=seconds - overhead - max(compute, hbm, network, host),
                host_s=host,
            )
        )
    return tuple(averaged)


def _mean_op(op: Any) -> Any:
    import dataclasses

    import numpy as np

    names = (
        "flops",
        "weight_bytes",
        "kv_bytes",
        "activation_bytes",
        "message_bytes",
        "items",
        "depth",
        "scores",
    )
    return dataclasses.replace(op, **{name: float(np.mean(getattr(op, name))) for name in names})


def _merge(steps: list[tuple[Timed, ...]]) -> tuple[Timed, ...]:
    return tuple(t for step in steps for t in step)


def _interval(plan: Plan, timed: Sequence[Timed]) -> tuple[float, float]:
    """Return one sigma around the time: the fit's residuals by family, which err together within one.

    The spread of the sum is `sqrt(sum over families of (seconds x sigma)**2)`.
    """
    by_family: dict[str, float] = {}
    for t in timed:
        wanted = t.op.collective or t.op.family or t.op.kind
        by_family[wanted] = by_family.get(wanted, 0.0) + t.seconds
    spread = math.hypot(*(s * plan.efficiency.spread(name) for name, s in by_family.items()))
    total = serial_s(timed)
    return total * math.exp(-spread / total), total * math.exp(spread / total)


def _assumptions(
    plan: Plan, first: Sequence[Timed], later: Sequence[Timed], batch: int, cached: int, memory: Ledger
) -> tuple[str, ...]:
    machine, layout = plan.hardware, plan.layout
    said = []
    if plan.efficiency.name is None:
        said.append(
            "a bound, not a prediction: no calibration is applied and engines are slower; only overlapping"
            " operations could come below it, and nothing below the lower bound"
        )
    else:
        said.append(
            f"calibrated with {plan.efficiency.name}: kernels as measured one by one; host time per step is a"
            " stated prior; scheduling and queueing are left out"
        )
    said.append(f"prefill runs the prompts of all {batch} requests in one batch; queueing is left out")
    said.append("the LM head runs on the last position of a prompt only; the embedding is a look-up")
    used = arithmetic_used((*first, *later), machine)
    said.append(f"matrices multiply in {', '.join(used)} at the dense peak of {machine.name}")
    if plan.model.dtype not in used and plan.compute_dtype is None and "bf16" not in machine.peak_flops_per_s:
        said.append(f"{machine.name} has no {plan.model.dtype} peak")
    attention = "keeps scores on chip (FlashAttention)" if plan.io_aware else "writes scores to HBM"
    said.append(f"attention {attention}; norms, rotary and activations are fused into their neighbours")
    if plan.model.towers:
        said.append("towers and encoders take memory; their own time is left out")
    if any(t.op.kind == "moe" for t in later):
        said.append("experts are chosen independently and evenly; the expected distinct ones are read")
    if layout != Layout():
        link = link_for(machine, layout.tp)
        rate = format_decimal(link.bytes_per_s, "B/s")
        said.append(f"{layout.tp} ranks, collectives over {link.name} at {rate} one way, not overlapped")
    if any(t.op.place == "host" for t in later):
        said.append(_host_sentence(plan))
    if cached:
        said.append(f"{cached} prompt tokens are taken from the prefix cache, not computed")
    return (*said, *memory.assumptions)


def _host_sentence(plan: Plan) -> str:
    if plan.host.bytes_per_s is not None:
        rate = format_decimal(plan.host.bytes_per_s, "B/s")
        return f"what is offloaded runs on the host, as fast as its memory is read: {rate}"
    return "what is offloaded is streamed to the device over its host link in every step"
