"""What a calibration predicts of the small engine's own rounds: the work that its padded calls execute."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median

from kvroof.cost.attending import attention
from kvroof.cost.formulas import step_pairs, step_read
from kvroof.cost.forward import forward
from kvroof.cost.op import Op
from kvroof.cost.products import Run
from kvroof.engine.report import RoundRecord, RunReport, TimedStep
from kvroof.ground.dtypes import DTYPES
from kvroof.ground.errors import Unsupported
from kvroof.ground.record import record, static
from kvroof.roofline.efficiency import Efficiency
from kvroof.roofline.plan import Plan
from kvroof.roofline.roofline import price_all, serial_s
from kvroof.spec.architecture import Architecture
from kvroof.spec.attention import Attention
from kvroof.spec.hardware import Hardware
from kvroof.spec.precision import KVFormat, parse_kv_format
from kvroof.spec.reach import AnyReach
from kvroof.spec.recurrent import Recurrent
from kvroof.spec.weights import unquantised
from kvroof.spec.workload import Phase, Sequences, Step

COMPUTED = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
"""What kvroof calls the engine's dtypes."""
STORED = COMPUTED | {"int8": "int8", "float8_e4m3fn": "fp8"}


@record
class PredictedRound:
    """One round: the seconds predicted and measured, and the tokens run, without padding and with it.

    `kind` is `prefill` where a prompt ran in it, else `decode`; `device_s` is what is predicted of its
    kernels alone, without the host.
    """

    index: int
    kind: Phase = static()
    predicted_s: float
    device_s: float
    measured_s: float
    tokens: int
    executed_tokens: int


@record
class PredictedRun:
    """A run as predicted and as measured. Errors are shares of the measured time, of the median round.

    `stand_ins` are kernels that the calibration has not measured, with what they were priced as (`a bound`
    where it has no relative either).
    """

    calibration: str = static()
    hardware: str = static()
    rounds: tuple[PredictedRound, ...]
    predicted_makespan_s: float
    measured_makespan_s: float
    makespan_ratio: float
    median_step_error: float | None
    prefill_step_error: float | None
    decode_step_error: float | None
    tokens: int
    executed_tokens: int
    stand_ins: dict[str, str] = static()

    @property
    def seconds(self) -> tuple[float, ...]:
        """The seconds predicted of each round."""
        return tuple(done.predicted_s for done in self.rounds)


def predict_run(
    model: Architecture, run: RunReport, hardware: Hardware, efficiency: Efficiency
) -> PredictedRun:
    """Return what is predicted of a run of the engine, beside what was measured.

    The host's own time is in `efficiency`, once per call and once per sequence in it; a round without a call
    takes none.

    Args:
        model: What the engine ran: the model scaled down, not the one it stands for.
        run: What happened.
        hardware: The machine it ran on.
        efficiency: A calibration of that machine.

    Raises:
        Unsupported: A dtype that nothing is known of.
    """
    plan = planned(model, run, hardware, efficiency)
    used: dict[str, str] = {}
    rounds = tuple(_predicted(plan, done, used) for done in run.rounds)
    total = sum(done.predicted_s for done in rounds)
    return PredictedRun(
        calibration=efficiency.name or "none",
        hardware=hardware.name,
        rounds=rounds,
        predicted_makespan_s=total,
        measured_makespan_s=run.makespan_s,
        makespan_ratio=total / run.makespan_s,
        median_step_error=off(rounds),
        prefill_step_error=off([done for done in rounds if done.kind == "prefill"]),
        decode_step_error=off([done for done in rounds if done.kind == "decode"]),
        tokens=sum(done.tokens for done in rounds),
        executed_tokens=sum(done.executed_tokens for done in rounds),
        stand_ins=used,
    )


def off(rounds: Sequence[PredictedRound]) -> float | None:
    """Return the median error of the rounds that ran something, None where none did."""
    errors = [abs(done.predicted_s / done.measured_s - 1) for done in rounds if done.tokens]
    return median(errors) if errors else None


def planned(model: Architecture, run: RunReport, hardware: Hardware, efficiency: Efficiency) -> Plan:
    """Return the engine's model on the machine, in the dtypes that it computed and cached in.

    Raises:
        Unsupported: A dtype that nothing is known of.
    """
    if run.dtype not in COMPUTED or run.kv_dtype not in STORED:
        wide = run.dtype if run.dtype not in COMPUTED else run.kv_dtype
        raise Unsupported(f"no machine's {wide} is measured", where="--dtype", way_out="use float32")
    dtype = COMPUTED[run.dtype]
    return Plan(
        model=replace(model, dtype=dtype, formats=unquantised(DTYPES[dtype])),
        hardware=hardware,
        kv_format=_kv_format(run, model),
        formats=unquantised(DTYPES[dtype]),
        efficiency=efficiency,
    )


def executed(model: Architecture, timed: TimedStep, run: Run) -> tuple[Op, ...]:
    """Return the operations that one padded call executes.

    Products, norms and states run over all rows and all places of them, padding too. Attention runs for
    the real rows, each as long as the padded one, and scores a query against all that its sequence has
    cached: of a whole prompt, which kernels are calibrated on, half of that is not seen.
    """
    width = timed.row_tokens
    phase: Phase = "decode" if width == 1 else "prefill"
    longest = max((g.kv_len for g in timed.step.groups), default=1)
    whole = Sequences(count=timed.rows, query_len=width, kv_len=max(longest, width), phase=phase)
    ops = [op for op in forward(model, Step(groups=(whole,)), run) if op.kind != "attention"]
    real = tuple(
        replace(g, query_len=width, kv_len=max(g.kv_len, width), phase=phase) for g in timed.step.groups
    )
    for group in model.layers:
        for mixer in group.layer.mixers:
            if not isinstance(mixer, Recurrent):
                own = run.storing(group.layer.formats or model.formats)
                ops += _scores(mixer, group.count, timed.step, Step(groups=real), own)
    return tuple(ops)


def _scores(mixer: Attention, count: int, step: Step, padded: Step, run: Run) -> Iterator[Op]:
    for op in attention(mixer, count, padded, run):
        if op.kind == "attention":
            scored = _scored(step, padded, mixer.scored[0].reach) / step_pairs(padded, mixer.scored[0].reach)
            yield replace(op, flops=op.flops * scored, scores=op.scores * scored)


def _scored(step: Step, padded: Step, reach: AnyReach) -> float:
    """Return the pairs that are scored, as many as a whole prompt sees when it is scored in as long."""
    pairs = 0.0
    for real, wide in zip(step.groups, padded.groups, strict=True):
        read = step_read(Step(groups=(real,)), reach)
        pairs += read if wide.query_len == 1 else wide.query_len * read / 2
    return pairs


def _predicted(plan: Plan, done: RoundRecord, used: dict[str, str]) -> PredictedRound:
    efficiency, device, host = plan.efficiency, 0.0, 0.0
    for timed in done.steps:
        ops = executed(plan.model, timed, plan.run("absorbed"))
        device += serial_s(price_all(ops, plan.hardware, efficiency))
        host += efficiency.host_step_s + efficiency.host_seq_s * timed.step.seqs
        for op in ops:
            wanted = op.family or op.kind
            found = efficiency.family(wanted)
            if op.flops and found != wanted:
                used[wanted] = found or "a bound"
    return PredictedRound(
        index=done.index,
        kind="prefill" if any(timed.row_tokens > 1 for timed in done.steps) else "decode",
        predicted_s=device + host,
        device_s=device,
        measured_s=done.seconds,
        tokens=sum(timed.step.tokens for timed in done.steps),
        executed_tokens=sum(timed.rows * timed.row_tokens for timed in done.steps),
    )


def _kv_format(run: RunReport, model: Architecture) -> KVFormat:
    """Return how the cache is stored; a narrow one has an fp32 scale for each token and head."""
    stored = parse_kv_format(STORED[run.kv_dtype], model)
    scale = 4 if run.kv_dtype not in COMPUTED else 0
    return replace(stored, k_scale_bytes=scale, v_scale_bytes=scale)
