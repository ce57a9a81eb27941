"""A run of the small real engine, as tables and as a Chrome trace."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType

from kvroof.ground.units import format_bytes, format_count, format_time
from kvroof.serving.simulation.schedule_trace import complete, named
from kvroof.view.tables import Table, notes, size

if TYPE_CHECKING:
    from kvroof.calibration.engine_steps import PredictedRun
    from kvroof.engine.report import BlockTable, RequestRecord, RoundRecord, RunReport, TimedStep
    from kvroof.engine.trial import TrialReport

MOST_ROUNDS = 24
"""Rounds that a table shows, the first and the last of them, unless all are asked for."""


def engine_view(
    trial: TrialReport,
    explain: bool,
    predicted: PredictedRun | None = None,
    prefill_predicted: PredictedRun | None = None,
) -> Iterator[RenderableType]:
    """Yield rounds, block tables, requests, bytes and step times.

    Args:
        trial: What came of it.
        explain: Show every round, and the block tables after each.
        predicted: What a calibration predicted of the run.
        prefill_predicted: The same of the engine that ran the prompts, where there is one.
    """
    if trial.prefill_run is not None:
        yield _rounds("Prefill engine, round by round", trial.prefill_run, explain, prefill_predicted)
        yield Table(
            "Handed off",
            ("request", "tokens", "blocks", "moved"),
            [
                (str(t.request), str(t.kv_len), " + ".join(map(str, t.blocks)), size(t.moved_bytes))
                for t in trial.transfers
            ],
        )
    run = trial.run
    title = "Decode engine" if trial.prefill_run is not None else f"{run.policy.capitalize()} batching"
    yield _rounds(f"{title}, round by round", run, explain, predicted)
    shown = run.rounds if explain else [run.rounds[trial.peak.round - 1]]
    for done in shown:
        yield _tables(done)
    yield _requests(run, trial.prefill_run)
    yield _bytes(trial)
    yield _steps(run)
    known = [(n, e) for n, e in (("prompts", prefill_predicted), (title, predicted)) if e is not None]
    if known:
        yield _against(known)
    yield notes("Assumptions", _assumptions(trial) + _said(known))


def _against(known: list[tuple[str, PredictedRun]]) -> RenderableType:
    """Return what was predicted beside what was measured."""
    return Table(
        "Predicted against measured",
        ("", "makespan", "predicted", "ratio", "step error", "prefill", "decode", "tokens", "with padding"),
        [
            (
                name,
                format_time(run.measured_makespan_s),
                format_time(run.predicted_makespan_s),
                f"{run.makespan_ratio:.2f}",
                *(
                    "-" if error is None else f"{error:.0%}"
                    for error in (run.median_step_error, run.prefill_step_error, run.decode_step_error)
                ),
                f"{run.tokens:,}",
                f"{run.executed_tokens:,}",
            )
            for name, run in known
        ],
    )


def _said(known: list[tuple[str, PredictedRun]]) -> list[str]:
    """Return what predictions were made with, or how to get them."""
    if not known:
        return [
            "no prediction: kvroof calibrate --quick --out mine.toml, then --calibration mine.toml; "
            "or --calibrate here"
        ]
    run = known[-1][1]
    said = [
        f"predicted with {run.calibration} on {run.hardware}: the work of the padded calls, and the host "
        "once per call; step errors are of the median round"
    ]
    if run.stand_ins:
        named = ", ".join(f"{wanted} as {found}" for wanted, found in run.stand_ins.items())
        said.append(f"not measured, priced by a relative: {named}")
    return said


def _rounds(title: str, run: RunReport, explain: bool, predicted: PredictedRun | None) -> RenderableType:
    rounds = list(run.rounds)
    if not explain and len(rounds) > MOST_ROUNDS:
        rounds = rounds[: MOST_ROUNDS // 2] + rounds[-MOST_ROUNDS // 2 :]
        title += f" ({len(run.rounds) - len(rounds)} of {len(run.rounds)} left out)"
    column = ("predicted",) if predicted is not None else ()
    return Table(
        title,
        ("round", "ran (tokens)", "what happened", "waiting", "blocks", "shared", "held", "time", *column),
        [
            (
                str(done.index),
                "  ".join(f"{ran.request}: {ran.query_len}" for ran in done.ran),
                _happened(done),
                " ".join(map(str, done.waiting)) or "-",
                str(done.used_blocks),
                str(len(done.shared_blocks)),
                format_bytes(done.held_bytes),
                format_time(done.seconds),
                *([format_time(predicted.seconds[done.index - 1])] if predicted is not None else ()),
            )
            for done in rounds
        ],
        left=4,
    )


def _happened(done: RoundRecord) -> str:
    said = [
        f"{what} {' '.join(map(str, who))}"
        for what, who in (
            ("admits", done.admitted),
            ("preempts", done.preempted),
            ("finishes", done.finished),
        )
        if who
    ]
    if done.copied_blocks:
        said.append(f"copies {done.copied_blocks}")
    if done.swapped_blocks:
        said.append(f"swaps {done.swapped_blocks}")
    return ", ".join(said) or "-"


def _tables(done: RoundRecord) -> RenderableType:
    shared = set(done.shared_blocks)
    return Table(
        f"Block tables after round {done.index}, logical -> physical (* is in several)",
        ("request", "tokens", "blocks"),
        [(str(t.request), str(t.kv_len), _chain(t, shared)) for t in done.tables],
        left=3,
    )


def _chain(held: BlockTable, shared: set[int]) -> str:
    return "  ".join(f"{i}->{b}{'*' if b in shared else ''}" for i, b in enumerate(held.blocks))


def _requests(run: RunReport, first: RunReport | None) -> RenderableType:
    elsewhere = {} if first is None else {r.request: r for r in first.requests}
    return Table(
        "Requests",
        (
            "request",
            "prompt",
            "cached",
            "output",
            "preempted",
            "TTFT",
            "ITL mean",
            "ITL most",
            "first tokens",
        ),
        [
            (
                str(r.request),
                str(r.prompt_tokens),
                str(elsewhere.get(r.request, r).cached_tokens),
                str(len(r.output)),
                str(r.preemptions),
                _time(elsewhere.get(r.request, r).ttft_s),
                _time(sum(r.itl_s) / len(r.itl_s) if r.itl_s else None),
                _time(max(r.itl_s, default=None)),
                " ".join(map(str, r.output[:6])),
            )
            for r in run.requests
        ],
    )


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else format_time(seconds)


def _bytes(trial: TrialReport) -> RenderableType:
    run, peak = trial.run, trial.peak
    rows = [
        (
            f"{g.name} ({g.layers} layers)",
            f"{g.num_blocks} x {g.block_bytes:,} B",
            f"{g.most_blocks} held at most",
        )
        for g in run.groups
    ]
    rows += [
        ("arrays", size(run.allocated_bytes), "as allocated on the device"),
        ("the same by the spec", size(run.ledger_bytes), _same(run.allocated_bytes, run.ledger_bytes)),
        (f"held in round {peak.round}", size(peak.held_bytes), "blocks of sequences, a shared one once"),
        ("ledger, same lengths", size(peak.ledger_bytes), _same(peak.held_bytes, peak.ledger_bytes)),
    ]
    if peak.unshared_bytes != peak.ledger_bytes:
        rows.append(("ledger, nothing shared", size(peak.unshared_bytes), "paged, each sequence its own"))
    return Table("Bytes of the cache", ("", "size", ""), rows, left=3)


def _same(measured: int, counted: int) -> str:
    return "equal" if measured == counted else f"differs by {measured - counted:+,} B"


def _steps(run: RunReport) -> RenderableType:
    """Return the measured steps by their padded shape."""
    by_shape: dict[tuple[int, int], list[TimedStep]] = {}
    for done in run.rounds:
        for step in done.steps:
            by_shape.setdefault((step.rows, step.row_tokens), []).append(step)
    return Table(
        "Measured steps",
        ("padded to", "calls", "shortest", "median", "longest"),
        [
            (f"{rows} x {tokens} tokens", str(len(steps)), *_spread([step.seconds for step in steps]))
            for (rows, tokens), steps in sorted(by_shape.items())
        ],
    )


def _spread(seconds: list[float]) -> tuple[str, str, str]:
    return format_time(min(seconds)), format_time(median(seconds)), format_time(max(seconds))


def _assumptions(trial: TrialReport) -> list[str]:
    run = trial.run
    said = [
        f"{trial.model}: {trial.layers} layers, {format_count(trial.params_total)} parameters, random weights"
        f" of seed {trial.seed}; tokens are sampled greedily and mean nothing",
        f"computed in {run.dtype}, cached in {run.kv_dtype}, blocks of {run.block_size} tokens",
        f"compiling took {format_time(run.compile_s)} and is in no other time",
    ]
    if run.prefix_hit_rate is not None:
        said.append(
            f"{run.prefix_hit_rate:.0%} of prompt tokens were in the cache; TTFT is cold where `cached` is 0"
        )
    return said


def trace_events(trial: TrialReport) -> dict[str, Any]:
    """Return the run in Chrome's trace format: a row of rounds, and one row per request.

    Times are in microseconds. Source: "Trace Event Format", Google, complete (`X`) and metadata (`M`) events.
    """
    runs = [("decode" if trial.prefill_run else "engine", trial.run)]
    if trial.prefill_run is not None:
        runs.insert(0, ("prefill", trial.prefill_run))
    events: list[dict[str, Any]] = []
    for number, (name, run) in enumerate(runs):
        events += _named(number, name, run)
        for done in run.rounds:
            events += _round_events(number, done)
        for request in run.requests:
            events += _queued(number, run, request)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _named(pid: int, name: str, run: RunReport) -> Iterator[dict[str, Any]]:
    yield named("process", pid, 0, f"{name}: {run.model}")
    yield named("thread", pid, 0, "rounds")
    for request in run.requests:
        yield named("thread", pid, request.request + 1, f"request {request.request}")


def _round_events(pid: int, done: RoundRecord) -> Iterator[dict[str, Any]]:
    yield complete(
        f"round {done.index}",
        pid,
        0,
        done.start_s,
        done.seconds,
        {
            "used_blocks": done.used_blocks,
            "held_bytes": done.held_bytes,
            "step_s": [step.seconds for step in done.steps],
        },
    )
    for ran in done.ran:
        name = "decode" if ran.query_len == 1 else f"prefill {ran.query_len}"
        facts = {"kv_len": ran.kv_len, "token": ran.token}
        yield complete(name, pid, ran.request + 1, done.start_s, done.seconds, facts)


def _queued(pid: int, run: RunReport, request: RequestRecord) -> Iterator[dict[str, Any]]:
    first = next((d for d in run.rounds if any(r.request == request.request for r in d.ran)), None)
    if first is not None and first.start_s > request.arrival_s:
        waited = first.start_s - request.arrival_s
        yield complete("queue", pid, request.request + 1, request.arrival_s, waited, {})
