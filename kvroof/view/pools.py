"""What `disagg` answers, as tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from rich.console import RenderableType
from rich.text import Text

from kvroof.ground.units import format_bytes, format_decimal, format_time
from kvroof.serving.pools.break_even import Condition
from kvroof.serving.pools.verdict import Disaggregation, Side
from kvroof.view.tables import Table, copied, notes, verdict
from kvroof.view.words import WAYS

NAMES = {
    "rate": "rate",
    "isl": "prompt tokens",
    "osl": "output tokens",
    "prefix_hit": "prefix hits",
    "link": "KV link",
    "ttft": "TTFT limit",
    "tpot": "TPOT limit",
}

LIMITS = {
    "prefill": "prefill",
    "decode": "decode",
    "link": "KV link",
    "memory": "memory",
    "ttft": "TTFT limit",
    "tpot": "TPOT limit",
}


def pools_view(
    model: str,
    answer: Disaggregation,
    asked: tuple[float, float, float],
    commands: Mapping[str, Sequence[str]] | None = None,
) -> Iterator[RenderableType]:
    """Yield the verdict, both ways side by side, what would flip it, and what is taken for granted."""
    if answer.served_by is None:
        yield Text(f"{WAYS[answer.verdict].upper()}  {_reason(answer)}", style="bold")
    elif _hopeless(answer):
        yield verdict(False, "no deployment keeps the limits at any rate; this is the nearest, almost idle")
    else:
        yield verdict(answer.served_by != "neither", _served(answer))
        yield Text(f"At most: {WAYS[answer.verdict]}; {_reason(answer)}", style="bold")
    ttft, tpot, share = asked
    ways = [(WAYS["aggregate"], answer.aggregated), (WAYS["disaggregate"], answer.disaggregated)]
    ways += [(f"one pool, {chip}", side) for chip, side in answer.by_chip.items()]
    sides = {name: side for name, side in ways if side is not None}
    yield Table(
        f"{model}: at most, with TTFT {format_time(ttft)} and TPOT {format_time(tpot)} for {share:g} %"
        " of the requests",
        ("", "goodput\nreq/s", "per device\nreq/s", "per device\ntokens/s", "devices", "limited by"),
        [_most(name, side) for name, side in ways],
    )
    yield Table(
        f"Times {_rate(sides)}",
        ("", f"TTFT p{share:g}", f"TPOT p{share:g}", "keeps the limits"),
        [_times(name, side) for name, side in sides.items()],
    )
    reasons = [f"{name}: {side.no_steady_state}" for name, side in sides.items() if side.no_steady_state]
    if reasons:
        yield notes("Why there is no time", reasons)
    yield notes("Layouts", [f"{name}: {side.layout}" for name, side in sides.items()])
    if answer.kv_bytes_per_request is not None and answer.kv_transfer_s is not None:
        seen = "" if answer.kv_seen_s is None else f", of which {format_time(answer.kv_seen_s)} is seen"
        size = format_bytes(answer.kv_bytes_per_request)
        yield Text(f"A request's KV is {size}: {format_time(answer.kv_transfer_s)} on the link{seen}\n")
    if answer.break_even:
        yield Table(
            "What would flip it, each alone",
            ("", "now", "better"),
            [_flip(condition) for condition in answer.break_even],
        )
    for what, lines in (commands or {}).items():
        yield from copied(f"To start {what}", lines)
    yield notes("Assumptions", answer.assumptions)


def _hopeless(answer: Disaggregation) -> bool:
    """Return whether neither way keeps the limits at any rate."""
    return not any(side and side.goodput_rps for side in (answer.aggregated, answer.disaggregated))


def _served(answer: Disaggregation) -> str:
    """Return which ways serve the rate that was asked for, and how much the others do at most."""
    ways = {"one pool": answer.aggregated, "two pools": answer.disaggregated}
    sides = {name: side for name, side in ways.items() if side is not None}
    rate = f"{next(iter(sides.values())).rate_rps:g} req/s"
    devices = {side.devices for side in sides.values()}
    on = f"on {devices.pop()} devices" if len(devices) == 1 else "at the same cost"
    if answer.served_by == "either":
        return f"either serves {rate} {on}"
    most = max((side.goodput_rps for side in sides.values() if not side.keeps_limits), default=0.0)
    if answer.served_by == "neither":
        return f"neither way serves {rate} {on} (at most {most:.3g})"
    only, other = (
        ("one pool serves", "two pools")
        if answer.served_by == "aggregate"
        else ("two pools serve", "one pool")
    )
    return f"only {only} {rate} {on}; {other} at most {most:.3g}"


def _reason(answer: Disaggregation) -> str:
    """Return the margin, and where the model's own error puts it."""
    if answer.aggregated is None:
        return "one pool keeps the limits at no rate"
    if answer.disaggregated is None:
        return "two pools keep the limits at no rate"
    gain = math.exp(answer.log_ratio) - 1
    low, high = (math.exp(answer.log_ratio + sign * answer.log_error) for sign in (-1, 1))
    return (
        f"splitting serves {abs(gain):.0%} {'more' if gain > 0 else 'fewer'} requests per device;"
        f" {low:.2f} to {high:.2f} times as many within the model's error (one sigma: about two in three)"
    )


def _rate(sides: Mapping[str, Side]) -> str:
    """Return the rate at which times are given: the one that was asked for, or each way's own goodput."""
    asked = {side.rate_rps for side in sides.values() if side.rate_rps != side.goodput_rps}
    return f"at {asked.pop():.4g} req/s" if asked else "at the goodput of each"


def _most(name: str, side: Side | None) -> tuple[str, ...]:
    if side is None:
        return (name, *("none",) * 5)
    return (
        name,
        f"{side.goodput_rps:.3g}",
        f"{side.goodput_rps_per_device:.3g}",
        f"{side.tokens_per_s_per_device:,.0f}",
        str(side.devices),
        LIMITS[side.limit] if side.limit else "-",
    )


def _times(name: str, side: Side) -> tuple[str, ...]:
    times = ("none" if t is None else format_time(t) for t in (side.ttft_s, side.tpot_s))
    return name, *times, "yes" if side.keeps_limits else "no"


def _flip(condition: Condition) -> tuple[str, ...]:
    where = "above" if condition.above else "below"
    value, now = (_shown(condition.unit, v) for v in (condition.value, condition.now))
    return NAMES[condition.what], now, f"{WAYS[condition.better]} {where} {value}"


def _shown(unit: str, value: float) -> str:
    if unit == "s":
        return format_time(value)
    if unit == "B/s":
        return format_decimal(value, "B/s")
    return f"{value:.0%}" if unit == "share" else f"{value:,.4g} {unit}"
