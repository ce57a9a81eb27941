"""A round of the engine is priced as what its padded calls execute."""

from dataclasses import replace

import pytest

from kvroof.calibration.engine_steps import executed, planned, predict_run
from kvroof.catalog.models import load_model
from kvroof.catalog.profiles import load_hardware
from kvroof.cost.forward import forward
from kvroof.engine.report import RoundRecord, RunReport, TimedStep
from kvroof.engine.scaling import Scale, scaled_down
from kvroof.ground.errors import Unsupported
from kvroof.roofline.efficiency import Efficiency, Kernel
from kvroof.spec.workload import Sequences, Step

MODEL = scaled_down(load_model("llama-3.1-8b"), Scale(hidden_size=64, num_layers=2))
WINDOWED = scaled_down(load_model("gemma-3-27b"))
H200 = load_hardware("h200-sxm")
RATES = Efficiency(
    name="mine",
    kernels={name: Kernel(t0_s=1e-5) for name in ("gemm.fp32", "attention.decode", "elementwise")},
    host_step_s=1e-3,
    host_seq_s=1e-4,
)


def step(*groups):
    return Step(groups=tuple(Sequences(count=c, query_len=q, kv_len=kv) for c, q, kv in groups))


def report(*calls, dtype="float32", seconds=0.01, makespan_s=0.05):
    rounds = tuple(
        RoundRecord(
            index=index + 1, start_s=0.0, seconds=seconds, idle_slots=0, copied_blocks=0, swapped_blocks=0,
            ran=(), admitted=(), preempted=(), finished=(), waiting=(), used_blocks=0, tables=(),
            shared_blocks=(), held_bytes=0, unshared_bytes=0, steps=(call,) if call is not None else (),
        )
        for index, call in enumerate(calls)
    )  # fmt: skip
    return RunReport(
        model="small", policy="continuous", dtype=dtype, kv_dtype=dtype, block_size=16, groups=(),
        allocated_bytes=0, ledger_bytes=0, rounds=rounds, requests=(), prefix_hit_rate=None, preemptions=0,
        makespan_s=makespan_s, compile_s=0.0,
    )  # fmt: skip


def ops(model, asked, rows, row_tokens):
    timed = TimedStep(step=asked, rows=rows, row_tokens=row_tokens, seconds=1.0)
    plan = planned(model, report(timed), H200, RATES)
    return executed(plan.model, timed, plan.run("absorbed")), plan


def total(found, kind, key="flops"):
    return sum(op.count * getattr(op, key) for op in found if op.kind == kind)


@pytest.mark.parametrize("model", [MODEL, WINDOWED])
def test_a_call_without_padding_executes_the_step(model):
    asked = step((3, 1, 100))
    found, plan = ops(model, asked, 3, 1)
    wanted = forward(plan.model, asked, plan.run("absorbed"))
    for kind in ("gemm", "attention", "vector", "lookup"):
        for key in ("flops", "hbm_bytes"):
            assert total(found, kind, key) == pytest.approx(total(wanted, kind, key))
    assert {op.family for op in found} == {op.family for op in wanted}


def test_empty_rows_cost_products_and_no_attention():
    few, _ = ops(MODEL, step((2, 1, 100)), 2, 1)
    many, _ = ops(MODEL, step((2, 1, 100)), 8, 1)
    assert total(many, "gemm") == 4 * total(few, "gemm")
    assert total(many, "attention") == total(few, "attention")


def test_a_short_prompt_in_a_long_row_costs_the_row():
    short, _ = ops(MODEL, step((1, 20, 20)), 1, 32)
    whole, _ = ops(MODEL, step((1, 32, 32)), 1, 32)
    assert total(short, "gemm") == total(whole, "gemm")
    assert total(short, "attention") == pytest.approx(total(whole, "attention") * 20 / 32)


def test_a_chunk_is_scored_against_all_that_is_cached():
    first, _ = ops(MODEL, step((1, 64, 64)), 1, 64)
    last, _ = ops(MODEL, step((1, 64, 256)), 1, 64)
    assert total(last, "attention") == pytest.approx(4 * total(first, "attention"))


def test_a_whole_prompt_is_scored_as_kernels_are_calibrated():
    length = 512
    found, plan = ops(MODEL, step((1, length, length)), 1, length)
    wanted = forward(plan.model, step((1, length, length)), plan.run("absorbed"))
    assert total(found, "attention") == pytest.approx(total(wanted, "attention"), rel=2 / length)


def test_a_run_is_the_sum_of_its_rounds():
    prompt = TimedStep(step=step((2, 20, 20)), rows=2, row_tokens=32, seconds=1.0)
    token = TimedStep(step=step((2, 1, 21)), rows=4, row_tokens=1, seconds=1.0)
    found = predict_run(MODEL, report(prompt, token, None, token), H200, RATES)
    assert [done.kind for done in found.rounds] == ["prefill", "decode", "decode", "decode"]
    assert found.seconds[2] == 0
    assert found.predicted_makespan_s == pytest.approx(sum(found.seconds))
    assert found.makespan_ratio == pytest.approx(found.predicted_makespan_s / 0.05)
    assert (found.tokens, found.executed_tokens) == (44, 72)
    off = [abs(done.predicted_s / 0.01 - 1) for done in found.rounds if done.tokens]
    assert found.median_step_error == pytest.approx(sorted(off)[1])
    assert found.prefill_step_error == pytest.approx(off[0])


def test_the_host_is_counted_once_per_call_and_once_per_sequence():
    token = TimedStep(step=step((3, 1, 21)), rows=4, row_tokens=1, seconds=1.0)
    (done,) = predict_run(MODEL, report(token), H200, RATES).rounds
    assert done.predicted_s - done.device_s == pytest.approx(1e-3 + 3e-4)


def test_kernels_that_were_not_measured_are_named_with_what_stands_in():
    token = TimedStep(step=step((1, 16, 16)), rows=1, row_tokens=16, seconds=1.0)
    found = predict_run(MODEL, report(token), H200, RATES)
    assert found.stand_ins == {"attention.prefill.fp32": "a bound"}
    lent = replace(RATES, kernels=RATES.kernels | {"attention.prefill": Kernel()})
    assert predict_run(MODEL, report(token), H200, lent).stand_ins == {
        "attention.prefill.fp32": "attention.prefill"
    }


def test_a_dtype_that_nothing_is_known_of_is_refused():
    token = TimedStep(step=step((1, 1, 16)), rows=1, row_tokens=1, seconds=1.0)
    with pytest.raises(Unsupported, match="float64"):
        predict_run(MODEL, report(token, dtype="float64"), H200, RATES)
