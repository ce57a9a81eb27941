"""What `simulate` answers, as tables."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType

from kvroof.ground.units import format_bytes, format_time
from kvroof.serving.assumptions import priced_with
from kvroof.serving.simulation.metrics import Percentiles, Summary
from kvroof.serving.simulation.replay import Deployed
from kvroof.serving.simulation.simulator import Simulation
from kvroof.view.tables import Table, notes, verdict
from kvroof.view.words import several


def simulation_view(
    ran: Simulation,
    answer: Summary,
    serving: Deployed,
    decoding: Deployed | None,
    policy: str,
    asked: tuple[float | None, float | None, float],
    kept: bool,
) -> Iterator[RenderableType]:
    """Yield how many were served or kept the limits, the times they saw, the rates, and what is assumed."""
    *times, share = asked
    limits = " and ".join(
        f"{name} {format_time(s)}" for name, s in zip(("TTFT", "TPOT"), times, strict=True) if s is not None
    )
    where = several(serving.devices, serving.plan.hardware.name)
    if decoding is not None:
        where += f" for prefill and {several(decoding.devices, decoding.plan.hardware.name)} for decode"
    of = f"of {answer.requests:,} requests"
    served = f"{answer.completed:,} {of} served"
    if limits:
        served = (
            f"{answer.kept:,} {of} ({answer.kept / answer.requests:.1%}) keep {limits}, {share:g}% are asked"
        )
        served += f"; {'all' if answer.completed == answer.requests else f'{answer.completed:,}'} served"
    yield verdict(
        kept,
        f"{served} in {format_time(answer.makespan_s)} by {serving.plan.model.name} on {where}, {policy}",
    )
    yield Table(
        "What a request sees",
        ("", "mean", "p50", "p90", "p99"),
        [
            _row("TTFT", answer.ttft_s),
            _row("TPOT", answer.tpot_s),
            _row("gap between tokens", answer.itl_s),
            _row("queue", answer.queue_s),
            _row("end to end", answer.e2e_s),
        ],
    )
    devices = serving.devices + (decoding.devices if decoding is not None else 0)
    yield Table(
        "Rates",
        ("", ""),
        [
            (f"goodput ({limits or 'nothing asked'})", f"{answer.goodput_rps:.3g} requests/s"),
            *((("arrivals", f"{ran.arrival_rps:.3g} requests/s"),) if ran.arrival_rps is not None else ()),
            ("output", f"{answer.tokens_per_s:,.0f} tokens/s"),
            ("output per device", f"{answer.tokens_per_s / devices:,.0f} tokens/s"),
            ("prompt tokens found in the cache", f"{answer.prefix_hit_rate:.1%}"),
            ("preemptions", f"{answer.preemptions:,}"),
            ("steps", f"{ran.rounds:,}"),
        ],
    )
    yield notes("Assumptions", _assumptions(ran, answer, serving, decoding))


def _row(name: str, times: Percentiles | None) -> tuple[str, ...]:
    if times is None:
        return (name, "-", "-", "-", "-")
    return (name, *(format_time(t) for t in (times.mean, times.p50, times.p90, times.p99)))


def _assumptions(
    ran: Simulation, answer: Summary, serving: Deployed, decoding: Deployed | None
) -> Iterator[str]:
    plans = [pool.plan for pool in (serving, decoding) if pool is not None]
    yield from priced_with({plan.hardware.name: plan.efficiency.name for plan in plans})
    yield "times of steps are interpolated from a table"
    own = serving.plan.allocator.block_size
    size = serving.block_size or own
    yield f"blocks of {size:,} tokens" + ("" if size == own else f"; --block-size {own} is the engine's")
    yield "percentiles of gaps are over gaps, all others over requests"
    yield "TTFT is from arrival to the first token, queueing included"
    if answer.goodput_over == "arrivals":
        yield "goodput is over the time in which requests arrive; output is over all of it, to the last token"
    else:
        yield "goodput and output are over all of the time, from the first arrival to the last token"
    if serving.swaps:
        room = format_bytes(serving.swap_space_bytes)
        yield f"what is preempted is swapped to {room} of host memory per device, at the link's full rate"
    if decoding is not None:
        yield "KV goes to the decode pool layer by layer while the prompt runs, which gives the first token"
    if ran.rejected:
        yield f"{len(ran.rejected)} requests are longer than the cache and were rejected"
