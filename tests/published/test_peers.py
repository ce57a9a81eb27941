"""What first principles say where 14 public tools disagree.

Source: a comparison of peers run on the same work (2026-11). H100 SXM at 989.4 TFLOP/s dense bf16 and
3.35e12 B/s, Llama-3.1-8B in bf16, causal pairs, LM head on the last position. None of genz-llm 0.0.16,
llm-analysis, LLM-Viewer, llm-cal, llm-d-planner, hf-mem or hf-vram-calc is right on every row.
"""

import pytest

import kvroof
from kvroof.spec.workload import decode

MIB = 2**20

RIGHT_MIB = {
    "deepseek-v3": 549,
    "deepseek-v2-lite": 243,
    "gemma-3-27b": 1056,
    "gpt-oss-20b": 195,
    "qwen3-30b-a3b": 768,
    "mistral-7b-v0.1": 512,
}
"""KV payload of one sequence of 8,192 tokens."""


@pytest.fixture(scope="module")
def plan():
    plan = kvroof.Plan.of("llama-3.1-8b", "h100-sxm")
    assert plan.hardware.peak_flops_per_s["bf16"] == 989.4e12
    assert plan.hardware.hbm_bytes_per_s == 3.35e12
    return plan


@pytest.mark.parametrize("name", RIGHT_MIB)
def test_payload_of_8192_tokens_is_the_right_column(name):
    assert kvroof.kv(kvroof.load_model(name), tokens=8192).payload_bytes == RIGHT_MIB[name] * MIB


def test_prefill_of_2048_tokens_is_bound_to_30_0_ms(plan):
    answer = kvroof.estimate(plan, isl=2048, osl=1, batch=1)
    assert answer.lower_bound_s.prefill == pytest.approx(30.0e-3, abs=0.05e-3)
    assert answer.bound.prefill == "compute"


def test_the_lm_head_on_every_position_would_cost_2_2_ms_more(plan):
    """32.2 ms is the other figure in use: engines sample the last position only."""
    head = 2 * 4096 * 128_256
    ops = {op.name: op for op in kvroof.estimate(plan, isl=2048, osl=1, batch=1).prefill_ops}
    assert ops["lm_head"].flops == head
    assert 2047 * head / 989.4e12 == pytest.approx(32.2e-3 - 30.0e-3, abs=0.06e-3)


@pytest.mark.parametrize(
    ("batch", "context", "bound_s", "fits"),
    [(8, 2048, 5.12e-3, True), (64, 8192, 24.99e-3, False)],
)
def test_a_decode_step_is_bound_by_weights_once_and_kv_per_sequence(plan, batch, context, bound_s, fits):
    """The table leaves out that each sequence writes a token: 2.5 us at batch 64."""
    answer = kvroof.estimate(plan, isl=context - 1, osl=2, batch=batch)
    written_s = batch * 131_072 / 3.35e12
    assert answer.lower_bound_s.decode - written_s == pytest.approx(bound_s, abs=0.005e-3)
    assert answer.bound.decode == "hbm"
    assert answer.fits == fits


def test_64_sequences_of_8192_need_84_8_gb(plan):
    """80 GB hold it neither nominally nor by what the driver shows; one tool says that it fits."""
    memory = kvroof.estimate(plan, isl=8191, osl=2, batch=64).memory
    assert memory.total_bytes == pytest.approx(84.8e9, abs=0.05e9)
    assert not memory.fits


@pytest.mark.parametrize(("capacity", "seqs"), [(80 * 10**9, 52), (80 * 2**30, 57)], ids=["GB", "GiB"])
def test_sequences_of_8192_at_90_percent_depend_on_what_80_means(plan, capacity, seqs):
    ledger = kvroof.fit(plan.model, capacity, tokens=8192, utilization=0.9)
    assert ledger.max_seqs == seqs


def test_experts_are_read_as_often_as_a_batch_touches_them():
    """Qwen3-30B-A3B, batch 64, 2,048 cached: 126 of 128 experts, about 21.6 ms; ignoring batch says 5.27."""
    plan = kvroof.Plan.of("qwen3-30b-a3b", "h100-sxm")
    stored = 48 * 128 * 3 * 2048 * 768 * 2

    def read(batch):
        return sum(
            t.op.count * t.op.weight_bytes for t in plan.time(decode(batch, 2048)) if t.op.kind == "moe"
        )

    assert read(1) == pytest.approx(stored * 8 / 128)
    assert round(128 * read(64) / stored) == 126
    answer = kvroof.estimate(plan, isl=2047, osl=2, batch=64)
    assert answer.lower_bound_s.decode == pytest.approx(21.6e-3, rel=0.01)
