"""One batch from prompt to last token: every figure is an identity of the steps it is made of."""

import dataclasses
import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvroof.ground.errors import BadInput
from kvroof.memory.ledger import fit
from kvroof.roofline.efficiency import Efficiency
from kvroof.roofline.plan import Plan
from kvroof.roofline.roofline import overlapped_s, serial_s
from kvroof.serving.latency import estimate
from kvroof.spec.workload import Sequences, Step, decode, prefill

MODELS = ("llama-3.1-8b", "gemma-3-12b", "gpt-oss-20b", "qwen3-30b-a3b", "deepseek-v2")
some = settings(max_examples=15, deadline=None)

demands = st.fixed_dictionaries(
    {"isl": st.integers(1, 6000), "osl": st.integers(1, 120), "batch": st.integers(1, 300)}
)


@functools.cache
def plan_of(name, tp=1):
    return Plan.of(name, "h200-sxm", tp=tp)


plans = st.builds(plan_of, st.sampled_from(MODELS), st.sampled_from((1, 4)))


@some
@given(plans, demands)
def test_tpot_is_the_mean_over_the_decode_steps(plan, demand):
    isl, osl, batch = demand["isl"], demand["osl"], demand["batch"]
    lengths = range(isl + 1, isl + osl) if osl > 1 else [isl + 1]
    steps = [serial_s(plan.time(decode(batch, kv_len))) for kv_len in lengths]
    assert estimate(plan, **demand).tpot_s == pytest.approx(sum(steps) / len(steps), rel=1e-9)


@some
@given(plans, demands)
def test_ttft_is_the_prefill_of_the_whole_batch(plan, demand):
    answer = estimate(plan, **demand)
    step = prefill(demand["batch"], demand["isl"])
    assert (
        answer.ttft_s == answer.prefill_s == pytest.approx(serial_s(plan.time(step, "expanded")), rel=1e-12)
    )


@some
@given(plans, demands)
def test_the_rates_follow_from_the_times(plan, demand):
    answer = estimate(plan, **demand)
    osl, batch = demand["osl"], demand["batch"]
    assert answer.e2e_s == pytest.approx(answer.ttft_s + (osl - 1) * answer.tpot_s, rel=1e-12)
    assert answer.tokens_per_s == pytest.approx(batch * osl / answer.e2e_s, rel=1e-12)
    assert answer.tokens_per_s_per_device * answer.devices == pytest.approx(answer.tokens_per_s, rel=1e-12)
    assert answer.devices == plan.layout.tp


@some
@given(plans, demands)
def test_the_operations_add_up_to_the_step(plan, demand):
    answer = estimate(plan, **demand)
    assert sum(op.seconds for op in answer.decode_ops) == pytest.approx(answer.tpot_s, rel=1e-9)
    assert sum(op.seconds for op in answer.prefill_ops) == pytest.approx(answer.ttft_s, rel=1e-9)
    for op in (*answer.decode_ops, *answer.prefill_ops):
        parts = (op.compute_s, op.hbm_s, op.network_s)
        assert max(parts) * (1 - 1e-9) <= op.seconds <= sum(parts) * (1 + 1e-9)


@some
@given(plans, demands)
def test_utilisations_are_shares_and_bounds_are_below(plan, demand):
    answer = estimate(plan, **demand)
    for share in (answer.mfu.prefill, answer.mfu.decode, answer.mbu.prefill, answer.mbu.decode):
        assert 0 < share <= 1 + 1e-12
    assert 0 < answer.lower_bound_s.prefill <= answer.prefill_s * (1 + 1e-12)
    assert 0 < answer.lower_bound_s.decode <= answer.tpot_s * (1 + 1e-12)


@some
@given(plans, demands)
def test_mfu_is_flops_at_peak_over_time_whatever_binds_along_the_way(plan, demand):
    """All of these multiply in bf16, so FLOPs over one peak are the time the arithmetic takes."""
    answer = estimate(plan, **demand)
    peak = plan.hardware.peak_flops_per_s["bf16"]
    for ops, seconds, share in (
        (answer.prefill_ops, answer.ttft_s, answer.mfu.prefill),
        (answer.decode_ops, answer.tpot_s, answer.mfu.decode),
    ):
        assert share == pytest.approx(sum(op.flops for op in ops) / peak / seconds, rel=1e-9)


def test_mfu_counts_no_waiting_where_the_bound_changes_during_decode():
    """Attention goes from compute-bound to memory-bound as the cache grows past a narrow ridge."""
    plan = plan_of("deepseek-v2")
    for batch in (64, 128, 256, 512):
        answer = estimate(plan, isl=1, osl=4000, batch=batch)
        flops = sum(op.flops for op in answer.decode_ops)
        expected = flops / plan.hardware.peak_flops_per_s["bf16"] / answer.tpot_s
        assert answer.mfu.decode == pytest.approx(expected, rel=1e-9)


@some
@given(plans, st.integers(2, 4000), st.integers(1, 40), st.data())
def test_a_chunked_prefill_is_the_sum_of_its_chunks(plan, isl, batch, data):
    chunk = data.draw(st.integers(max(1, isl // 12), isl))
    answer = estimate(plan, isl=isl, osl=2, batch=batch, chunk=chunk)
    seconds, start = 0.0, 0
    while start < isl:
        end = min(start + chunk, isl)
        group = Sequences(count=batch, query_len=end - start, kv_len=end, sampled=int(end == isl))
        seconds += serial_s(plan.cheaper(Step(groups=(group,))))
        start = end
    assert answer.ttft_s == pytest.approx(seconds, rel=1e-9)
    assert answer.ttft_s >= estimate(plan, isl=isl, osl=2, batch=batch).ttft_s * (1 - 1e-9)


@some
@given(plans, st.integers(2, 6000), st.integers(1, 40), st.data())
def test_a_cached_prefix_lowers_ttft_and_leaves_tpot(plan, isl, batch, data):
    cached = data.draw(st.integers(1, isl - 1))
    cold = estimate(plan, isl=isl, osl=8, batch=batch)
    warm = estimate(plan, isl=isl, osl=8, batch=batch, cached_prefix=cached)
    assert warm.ttft_s < cold.ttft_s
    assert warm.tpot_s == cold.tpot_s
    assert any("prefix" in line for line in warm.assumptions)


@some
@given(plans, demands, st.sampled_from((0.5, 0.9, 1.0)), st.integers(0, 2**33))
def test_fits_is_what_fit_says_of_the_last_token(plan, demand, utilization, reserve):
    answer = estimate(plan, **demand, utilization=utilization, reserve_bytes=reserve)
    ledger = fit(
        plan.model,
        plan.hardware.capacity_bytes,
        tokens=demand["isl"] + demand["osl"] - 1,
        seqs=demand["batch"],
        utilization=utilization,
        reserve_bytes=reserve,
        kv_format=plan.kv_format,
        layout=plan.layout,
    )
    assert answer.memory == ledger
    assert answer.fits == ledger.fits


def test_one_output_token_is_the_prefill_alone():
    answer = estimate(plan_of("llama-3.1-8b"), isl=1000, osl=1, batch=4)
    assert answer.e2e_s == answer.ttft_s


def test_a_long_output_is_sampled_evenly_with_both_ends():
    plan = plan_of("gemma-3-12b")
    sampled = estimate(plan, isl=100, osl=20_000, batch=4).tpot_s
    steps = [serial_s(plan.time(decode(4, kv_len))) for kv_len in range(101, 20_100, 7)]
    assert sampled == pytest.approx(sum(steps) / len(steps), rel=1e-3)


def test_an_uncalibrated_answer_says_that_it_is_a_bound():
    plan = plan_of("llama-3.1-8b")
    bound = estimate(plan)
    assert bound.calibration is None
    assert any("bound" in line for line in bound.assumptions)
    fitted = dataclasses.replace(
        plan, efficiency=Efficiency(name="lab", hbm=0.8, compute=0.6, held_out_mape=0.07)
    )
    answer = estimate(fitted)
    assert answer.calibration is not None
    assert (answer.calibration.name, answer.calibration.held_out_mape) == ("lab", 0.07)
    assert answer.tpot_s > bound.tpot_s
    assert answer.mfu.prefill <= bound.mfu.prefill
    assert not any("a bound, not a prediction" in line for line in answer.assumptions)


def test_the_lower_bound_knows_no_efficiency_above_one_and_stays_below():
    plan = dataclasses.replace(
        plan_of("llama-3.1-8b", 4), efficiency=Efficiency(name="lab", hbm=0.5, launch_s=1e-5)
    )
    timed = plan.time(decode(4, 1000))
    assert overlapped_s(timed, plan.hardware) <= serial_s(timed)


@pytest.mark.parametrize(
    "asked",
    [
        {"isl": 0},
        {"isl": -5},
        {"isl": 2**28},
        {"osl": 0},
        {"osl": 2**40},
        {"batch": 0},
        {"batch": 2**30},
        {"chunk": 0},
        {"chunk": -1},
        {"isl": 100_000, "chunk": 1},
        {"cached_prefix": -1},
        {"isl": 10, "cached_prefix": 10},
        {"utilization": 0.0},
        {"utilization": 1.5},
        {"utilization": float("nan")},
        {"reserve_bytes": -1},
    ],
)
def test_a_demand_that_cannot_be_is_refused(asked):
    with pytest.raises(BadInput):
        estimate(plan_of("llama-3.1-8b"), **asked)


def test_towers_encode_the_patches_of_every_prompt_before_the_prefill():
    plan = Plan.of("gemma-3-27b", "h100-sxm")
    text, image = estimate(plan, batch=2), estimate(plan, batch=2, patches=4096)
    added = [op for op in image.prefill_ops if op.name.startswith("tower.")]
    params = sum(tower.params for tower in plan.model.towers)
    assert sum(op.flops for op in added) == 2 * params * 2 * 4096
    assert image.prefill_s == pytest.approx(text.prefill_s + sum(op.seconds for op in added))
    assert image.tpot_s == text.tpot_s


def test_a_model_without_a_tower_has_no_patches_to_encode():
    with pytest.raises(BadInput) as caught:
        estimate(Plan.of("llama-3.1-8b", "h100-sxm"), patches=1)
    assert caught.value.where == "--patches"


def test_prompts_cut_into_single_tokens_still_store_what_the_encoder_gives():
    plan, asked = Plan.of("t5-11b", "h100-sxm"), {"isl": 4, "osl": 2, "batch": 2, "encoder_tokens": 1000}
    whole, cut = (estimate(plan, **asked, chunk=chunk) for chunk in (None, 1))
    assert {op.name for op in cut.prefill_ops} == {op.name for op in whole.prefill_ops}
