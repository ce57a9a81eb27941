"""What `disagg` answers, as tables."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from kvroof.ground.units import format_bytes, format_decimal, format_time
from kvroof.serving.pools.break_even import Condition
from kvroof.serving.pools.verdict import Disaggregation, Side
from kvroof.view.tables import notes, table

WORDS = {"aggregate": "ONE POOL", "disaggregate": "TWO POOLS", "tie": "TIE"}
NAMES = {
    "rate": "rate",
    "isl": "prompt tokens",
    "osl": "output tokens",
    "prefix_hit": "prefix hits",
    "link": "KV link",
    "ttft": "TTFT limit",
    "tpot": "TPOT limit",
}


def pools_view(
    model: str, answer: Disaggregation, asked: tuple[float, float, float]
) -> Iterator[RenderableType]:
    """Yield the verdict, both ways side by side, what would flip it, and what is taken for granted."""
    yield Text(f"{WORDS[answer.verdict]}  {_reason(answer)}", style="bold")
    ttft, tpot, share = asked
    sides = [("one pool", answer.aggregated), ("two pools", answer.disaggregated)]
    sides += [(f"one pool, {chip}", side) for chip, side in answer.by_chip.items()]
    yield table(
        f"{model}: TTFT {format_time(ttft)} and TPOT {format_time(tpot)} for {share:g} % of the requests",
        ("", "goodput", "per device", "tokens/s/device", f"TTFT p{share:g}", f"TPOT p{share:g}", "devices"),
        [_row(name, side) for name, side in sides],
    )
    yield table(
        "Deployments",
        ("", "best layout", "limited by"),
        [(name, side.layout, side.limit or "-") for name, side in sides if side is not None],
        left=2,
    )
    if answer.kv_bytes_per_request is not None and answer.kv_transfer_s is not None:
        seen = "" if answer.kv_seen_s is None else f", of which {format_time(answer.kv_seen_s)} is seen"
        size = format_bytes(answer.kv_bytes_per_request)
        yield Text(f"A request's KV is {size}: {format_time(answer.kv_transfer_s)} on the link{seen}\n")
    if answer.break_even:
        yield table(
            "What would flip it, each alone",
            ("", "now", "better"),
            [_flip(condition) for condition in answer.break_even],
        )
    yield notes("Assumptions", answer.assumptions)


def _reason(answer: Disaggregation) -> str:
    """Return the margin against the model's own error, in words."""
    if answer.aggregated is None:
        return "one pool keeps the limits at no rate"
    if answer.disaggregated is None:
        return "two pools keep the limits at no rate"
    gain = math.exp(answer.log_ratio) - 1
    error = math.exp(answer.log_error) - 1
    more = "more" if gain > 0 else "less"
    return f"splitting serves {abs(gain):.0%} {more} requests per device, give or take {error:.0%}"


def _row(name: str, side: Side | None) -> tuple[str, ...]:
    if side is None:
        return (name, *("none",) * 6)
    times = [side.no_steady_state or "-" if t is None else format_time(t) for t in (side.ttft_s, side.tpot_s)]
    return (
        name,
        f"{side.goodput_rps:.3g} req/s",
        f"{side.goodput_rps_per_device:.3g} req/s",
        f"{side.tokens_per_s_per_device:,.0f}",
        *times,
        str(side.devices),
    )


def _flip(condition: Condition) -> tuple[str, ...]:
    way = {"aggregate": "one pool", "disaggregate": "two pools", "either": "either"}[condition.better]
    where = "above" if condition.above else "below"
    value, now = (_shown(condition.unit, v) for v in (condition.value, condition.now))
    return (NAMES[condition.what], now, f"{way} {where} {value}")


def _shown(unit: str, value: float) -> str:
    if unit == "s":
        return format_time(value)
    if unit == "B/s":
        return format_decimal(value, "B/s")
    return f"{value:.0%}" if unit == "share" else f"{value:,.4g} {unit}"
