"""What `optimize` answers, as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.console import RenderableType

from kvroof.ground.units import format_time
from kvroof.search.frontier import Frontier
from kvroof.search.outcome import Answer, OperatingPoint
from kvroof.search.question import Question
from kvroof.view.tables import Table, copied, notes, verdict
from kvroof.view.words import layout_words, several

LIMITS = {
    "ttft": "the TTFT limit",
    "tpot": "the TPOT limit",
    "memory": "memory",
    "batch": "the batch that was given",
    "positions": "the model's positions",
    "length": "the longest length that is looked at",
    "chunk": "prompts that have to keep up with the steps",
    "rate": "the rate",
    "prefill": "prefill",
    "decode": "decode",
}
MOST_REASONS = 4
"""Reasons for leaving choices out that are shown."""
PRICES = {
    "hbm_bandwidth": "HBM bandwidth",
    "compute": "arithmetic",
    "link": "the link",
    "memory": "memory",
    "ttft": "TTFT limit",
    "tpot": "TPOT limit",
}


def frontier_view(found: Frontier) -> Iterator[RenderableType]:
    """Yield the points that none beats, by the rising first axis."""
    rows = [
        (
            f"{place.x:,.3g}" if place.x < 1000 else f"{place.x:,.0f}",
            f"{place.y:,.3g}" if place.y < 1000 else f"{place.y:,.0f}",
            place.hw,
            place.words,
            "-" if place.point is None else str(place.point.batch),
            "-" if place.point is None else format_time(place.point.ttft_s),
        )
        for place in found.points
    ]
    if not rows:
        yield verdict(False, "no deployment keeps the limits")
        return
    yield Table(
        f"{len(rows)} points that none beats, of {found.evaluations:,} evaluated",
        (found.x_axis, found.y_axis, "machine", "layout", "in flight", "TTFT"),
        rows,
    )


def answer_view(
    answer: Answer, question: Question, rate: float | None, commands: Sequence[str] = ()
) -> Iterator[RenderableType]:
    """Yield the best point, what binds it, what more is worth, the alternatives and the effort."""
    yield verdict(answer.feasible, _sentence(answer, question, rate))
    best = answer.best
    yield Table("Operating point", ("", "best"), _rows(best))
    if commands:
        yield from copied("To start a replica", commands)
    if answer.excess:
        rows = [(LIMITS.get(name, name), f"{share:.1%} over") for name, share in answer.excess.items()]
        yield Table("What is exceeded", ("limit", ""), rows)
    if answer.ways_out:
        yield notes("What would make it feasible", [way.option for way in answer.ways_out])
    if answer.binding and answer.feasible:
        yield notes("Bound by", [LIMITS.get(name, name) for name in answer.binding])
    if answer.shadow_prices:
        yield Table(
            "What one more is worth, at the margin",
            ("", "value", "unit"),
            [(PRICES[n], f"{p.value:+.4g}", p.unit) for n, p in answer.shadow_prices.items()],
        )
    if answer.others:
        heading, value = _judged(question)
        others = [(*_row(point), value(point)) for point in answer.others]
        yield Table("Others, best first", (*_COLUMNS, heading), others)
    yield notes("Effort", _effort(answer))
    yield notes("Assumptions", answer.assumptions)


def _sentence(answer: Answer, question: Question, rate: float | None) -> str:
    """Return the answer in one sentence."""
    best = answer.best
    what = f"{best.model} on {several(best.devices, best.hw)}"
    if rate is not None:
        if not answer.feasible:
            return (
                f"{rate:g} requests/s of {best.model} are not served within the limits by the devices allowed"
            )
        return f"{rate:g} requests/s of {what}: {best.replicas} x ({layout_words(best)}) keep the limits"
    if not answer.feasible:
        cannot = "holds a request" if "memory" in answer.excess else "keeps the limits"
        return f"no deployment of {best.model} {cannot}; nearest is {what}"
    if question.maximize == "context":
        return f"{what} holds {best.isl + best.osl:,.0f} tokens of context, {best.batch:,} in flight"
    if question.maximize == "batch":
        return f"{what} keeps the limits up to {best.batch:,} requests in flight"
    heading, value = _judged(question)
    return f"{what}, {best.batch:,} requests in flight: {value(best)} {heading}"


def _rows(point: OperatingPoint) -> list[tuple[str, str]]:
    rows = [
        ("layout", layout_words(point)),
        ("replicas", f"{point.replicas:,}"),
        ("weights, KV cache", f"{point.weights_dtype}, {point.kv_dtype}"),
        ("requests", f"{point.isl:,.0f} in + {point.osl:,.0f} out"),
        ("in flight, all replicas", f"{point.batch:,} ({point.batch / point.replicas:,.0f} each)")
        if point.replicas > 1
        else ("in flight", f"{point.batch:,}"),
        ("prompt tokens per step", f"{point.chunk:,}" if point.chunk is not None else "whole prompts"),
        ("TTFT", format_time(point.ttft_s)),
        ("TPOT", format_time(point.tpot_s)),
        ("one user reads", f"{1 / point.tpot_s:,.1f} tokens/s"),
        ("output", f"{point.tokens_per_s:,.0f} tokens/s, {point.requests_per_s:,.2f} requests/s"),
        ("per device", f"{point.tokens_per_s_per_device:,.0f} tokens/s"),
    ]
    if point.cost_per_mtok is not None:
        rows.append(("cost", f"{point.cost_per_mtok:,.3g} USD per million output tokens"))
    if point.joules_per_token is not None:
        rows.append(("energy at TDP", f"{point.joules_per_token:,.3g} J per output token"))
    return rows


def _judged(question: Question) -> tuple[str, Callable[[OperatingPoint], str]]:
    """Return what points are compared by, in words, and how it is written."""
    if question.maximize == "context":
        return "tokens of context", lambda point: f"{point.isl + point.osl:,.0f}"
    if question.maximize == "batch" or question.objective == "throughput":
        return "tokens/s per device", lambda point: f"{point.tokens_per_s_per_device:,.0f}"
    if question.objective == "latency":
        return "per request", lambda point: format_time(point.e2e_s)
    if question.objective == "cost":
        return "USD per million output tokens", lambda point: f"{point.cost_per_mtok:,.3g}"
    return "J per output token", lambda point: f"{point.joules_per_token:,.3g}"


_COLUMNS = ("machine", "layout", "devices", "in flight", "chunk", "TTFT", "TPOT")


def _row(point: OperatingPoint) -> tuple[str, ...]:
    return (
        point.hw,
        layout_words(point),
        f"{point.devices}",
        f"{point.batch:,}",
        f"{point.chunk:,}" if point.chunk is not None else "-",
        format_time(point.ttft_s),
        format_time(point.tpot_s),
    )


def _effort(answer: Answer) -> list[str]:
    said = [
        f"{answer.candidates:,} discrete choices, {answer.evaluations:,} evaluations of the step model,"
        f" {answer.relaxed_evaluations:,} looks at the surfaces between them"
    ]
    reasons = sorted(answer.left_out.items(), key=lambda item: -item[1])
    said += [f"{count:,} left out: {reason}" for reason, count in reasons[:MOST_REASONS]]
    rest = sum(count for _, count in reasons[MOST_REASONS:])
    said += [f"{rest:,} left out for other reasons (--json has all)"] if rest else []
    if answer.exhaustive_gap is not None:
        said.append(
            f"the best of all {answer.exhaustive_evaluations:,} whole points is better by"
            f" {answer.exhaustive_gap:.2%}"
        )
    return said
