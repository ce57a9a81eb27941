"""Layouts in time: stages of a pipeline, groups of ranks, a context shared among ranks, mixed steps."""

import pytest

from kvroof.calibration.load import load_calibration
from kvroof.roofline.efficiency import Efficiency
from kvroof.roofline.plan import Plan
from kvroof.roofline.roofline import serial_s
from kvroof.spec.workload import decode, mixed, prefill, verify

CALIBRATED = load_calibration("h200-sxm-vllm", "h200-sxm")


def plan(model="llama-3.1-70b", **layout):
    return Plan.of(model, "h200-sxm", **layout)


def named(timed):
    return {t.op.name: t for t in timed}


def test_a_full_pipeline_decodes_at_the_pace_of_its_slowest_stage():
    one, two = plan(), plan(pp=2)
    step = serial_s(two.time(decode(64, 4096)))
    half = serial_s(one.time(decode(32, 4096)))
    assert step == pytest.approx(half, rel=0.02)  # two batches of 32, each crossing 40 layers at a time
    assert step < serial_s(one.time(decode(64, 4096)))  # each device reads the cache of half the layers


def test_a_lone_sequence_waits_for_every_stage():
    alone, staged = plan(), plan(pp=4)
    assert serial_s(staged.time(decode(1, 4096))) >= serial_s(alone.time(decode(1, 4096))) * 0.999


@pytest.mark.parametrize("stages", [2, 4])
def test_a_prompt_has_to_fill_the_pipeline(stages):
    timed = plan(pp=stages).time(prefill(stages, 4096))
    whole, bubble = serial_s(timed), named(timed)["pipeline_bubble"].seconds
    # m equal batches over s stages: m + s - 1 turns, of which s - 1 are waiting
    assert bubble / whole == pytest.approx((stages - 1) / (2 * stages - 1), rel=0.05)


def test_stages_pass_on_one_residual_per_token_and_batch():
    sent = named(plan(pp=2).time(decode(64, 4096)))["stage_send"]
    assert sent.net_bytes == 64 * 8192 * 2


def test_the_stages_hold_the_model_between_them():
    assert sum(plan(pp=2).layout.devices * [plan(pp=2).weights_bytes]) >= plan().weights_bytes


def test_groups_of_ranks_take_an_equal_share_of_the_requests():
    assert serial_s(plan(dp=4).time(decode(64, 4096))) == serial_s(plan().time(decode(16, 4096)))
    assert plan(dp=4).layout.devices == 4


def test_ranks_that_share_a_context_read_a_share_of_it_and_exchange_queries_and_outputs():
    whole, shared = (named(plan("deepseek-v3", tp=8, dcp=d).time(decode(8, 2**17))) for d in (1, 4))
    name = next(name for name in whole if name.startswith("attention.") and "reduce" not in name)
    assert shared[name].op.kv_bytes == pytest.approx(whole[name].op.kv_bytes / 4)
    assert shared[name].op.flops == pytest.approx(whole[name].op.flops)
    assert {"query_all_gather", "output_reduce_scatter"} <= set(shared) - set(whole)


def test_a_mixed_step_reads_the_weights_once_and_each_phase_runs_its_own_kernels():
    both = plan(tp=4)
    chunk, running = prefill(1, 512), decode(64, 4096)
    together = both.time(mixed(chunk, running))
    assert serial_s(together) < serial_s(both.time(chunk)) + serial_s(both.time(running))
    assert serial_s(together) > serial_s(both.time(running))
    families = [t.op.family for t in together if t.op.kind == "attention"]
    assert families == ["attention.prefill", "attention.decode"]


def test_in_a_mixed_step_decodes_stay_absorbed_whatever_the_prompt_does():
    both = plan("deepseek-v2-lite")
    timed = both.time(mixed(prefill(1, 512), decode(64, 4096)), "expanded")
    families = {t.op.family for t in timed if t.op.kind == "attention"}
    assert families == {"mla.prefill", "mla.decode"}


def test_verifying_drafted_tokens_reads_the_cache_once_for_all_of_them():
    one = plan(tp=4)
    alone, checked = named(one.time(decode(8, 4099))), named(one.time(verify(8, 4099, 3)))
    name = next(name for name in alone if name.startswith("attention.") and alone[name].op.kv_bytes)
    assert checked[name].op.kv_bytes < 1.01 * alone[name].op.kv_bytes
    assert checked[name].op.flops == pytest.approx(4 * alone[name].op.flops, rel=1e-3)
    assert checked["lm_head"].op.flops == 4 * alone["lm_head"].op.flops


def test_kernels_between_products_move_the_residual_only_where_they_are_timed():
    bound = named(plan().time(decode(64, 4096)))["norms"]
    timed = named(Plan.of("llama-3.1-70b", "h200-sxm", efficiency=CALIBRATED).time(decode(64, 4096)))["norms"]
    assert bound.op.activation_bytes == 0
    assert timed.op.activation_bytes == 3 * 2 * 64 * 8192 * 2


def test_adapters_are_read_as_often_as_a_batch_uses_distinct_ones():
    few, many = (
        named(Plan.of("llama-3.1-8b", "h200-sxm", adapters=n).time(decode(32, 128)))["lora"].op
        for n in (1, 10_000)
    )
    assert many.weight_bytes == pytest.approx(32 * few.weight_bytes, rel=1e-2)
    assert many.flops == few.flops
    hidden, mlp, kv = 4096, 14336, 1024
    sides = (hidden + hidden + 2 * kv) + 2 * hidden + (2 * hidden + 2 * mlp) + (mlp + hidden)
    assert few.weight_bytes * few.count / 32 == pytest.approx(16 * (sides + 2 * hidden) * 2, rel=0.3)


def test_an_uncalibrated_efficiency_is_the_identity():
    assert Efficiency().name is None
