"""Published serving numbers, predicted from the model and the machine alone: every row with its error.

Nothing is fitted to these rows: step times come from the shipped kernel calibrations, constants of a closed
loop and of the front end from `serving/steady/closed_loop.py`. `reached` is the error that a row is known to
stay within; where that is large the docstring says what is known of why.
"""

import functools
from dataclasses import replace
from statistics import median

import pytest

from kvroof.calibration.load import load_calibration
from kvroof.catalog.profiles import load_hardware
from kvroof.roofline.plan import Plan
from kvroof.schedule.policies import Policy
from kvroof.serving.demand.lengths import fixed
from kvroof.serving.demand.traffic import traffic
from kvroof.serving.pools.disaggregation import TwoPools, split
from kvroof.serving.pools.goodput import Replica, replica
from kvroof.serving.pools.transfer import KVLink, kv_link, transferred_bytes
from kvroof.serving.steady.batching import one_pool
from kvroof.serving.steady.closed_loop import FRONT_END_S, closed_loop
from kvroof.serving.step_times import AffineTimes, PlanTimes
from kvroof.spec.hardware import Link

NIC = KVLink(name="400 Gb/s", bytes_per_s=50e9)


@functools.cache
def machine(name):
    """H800 is an H100 with 400 GB/s of NVLink; H20-3e an H20 with 4.8 TB/s of HBM3e. Source: NVIDIA."""
    if name == "h800":
        return replace(load_hardware("h100-sxm"), scale_up=Link(name="NVLink", bytes_per_s=200e9, domain=8))
    return replace(load_hardware("h20"), hbm_bytes_per_s=4.8e12) if name == "h20-3e" else load_hardware(name)


@functools.cache
def times(model, hardware, framework="vllm", **layout):
    profile = {"h800": "h100-sxm", "h20-3e": "h20"}.get(hardware, hardware)
    efficiency = load_calibration("auto", profile, framework)
    return PlanTimes(Plan.of(model, machine(hardware), efficiency=efficiency, **layout))


def errors(rows):
    """Return predicted over measured, less 1, of (predicted, measured) pairs."""
    return [predicted / measured - 1 for predicted, measured in rows]


SPLITWISE = {
    ("a100-sxm-80gb", 8, 128, 1): (65.35, 43.03),
    ("a100-sxm-80gb", 8, 1024, 1): (154.46, 44.97),
    ("a100-sxm-80gb", 8, 2048, 1): (274.22, 45.44),
    ("a100-sxm-80gb", 8, 8192, 1): (1549.82, 46.51),
    ("h100-sxm", 8, 128, 1): (58.19, 29.87),
    ("h100-sxm", 8, 4096, 1): (390.29, 30.56),
    ("h100-sxm", 4, 128, 1): (49.09, 28.36),
    ("h100-sxm", 4, 4096, 1): (463.46, 29.58),
    ("h100-sxm", 4, 8192, 1): (953.58, 29.72),
    ("h100-sxm", 8, 512, 1): (53.86, 30.56),
    ("h100-sxm", 8, 512, 16): (811.93, 34.17),
}
"""Llama-2-70B in fp16: prompt and token milliseconds by machine, TP, prompt tokens and batch.

Source: Mutinifni/splitwise-sim data/perf_model.csv, medians over repeats (Splitwise, arXiv 2311.18677).
"""


def splitwise(case):
    hardware, tp, prompt, batch = case
    steps = times("llama-2-70b", hardware, tp=tp)
    return steps.prefill_s(prompt, 0, batch) * 1e3, steps.decode_s(batch, prompt + 1) * 1e3


def test_splitwises_engine_of_2023_takes_twice_as_long_as_todays_kernels():
    """Median error 49 % for prompts and 61 % for tokens, all too fast: the aim of 20 % is not reached.

    The table is bound by its host. A token takes no longer with half of the GPUs (28.4 ms on four, 29.9 on
    eight), and hardly longer with sixteen times the batch (34.2 against 30.6): no model of the device alone
    says so. vLLM had no CUDA graphs then; the calibrations are of engines that have them.
    """
    rows = {case: errors(zip(splitwise(case), SPLITWISE[case], strict=True)) for case in SPLITWISE}
    prompts, tokens = (sorted(abs(row[i]) for row in rows.values()) for i in (0, 1))
    assert all(error < 0 for row in rows.values() for error in row)
    assert median(prompts) <= 0.52
    assert median(tokens) <= 0.64
    assert max(prompts) <= 0.79
    assert max(tokens) <= 0.69


MOONCAKE_VLLM = {
    128: (46.09, 0.54, 20, 36.53),
    256: (48.04, 0.61, 38, 60.78),
    512: (59.91, 0.92, 74, 78.73),
    1024: (67.29, 1.50, 146, 95.23),
    2048: (85.31, 2.51, 290, 112.88),
    4096: (124.42, 4.75, 578, 119.0),
    16384: (387.52, 16.43, 2.25 * 1024, 137.09),
}
"""Qwen3-8B, TP 8 to TP 8 on two nodes of 8 H800 with 8 x 400 Gb/s, concurrency 1, by prompt tokens.

Mean TTFT and transfer (ms), MiB of KV (printed as MB) and GiB/s. Source: Mooncake
docs/source/performance/vllm/vllm-v1-pd-performance.md.
"""
MOONCAKE_SGLANG = {128: (129.21, 2.07, 49), 1024: (125.84, 3.96, 394), 2048: (172.05, 6.43, 789)} | {
    4096: (304.02, 10.95, 1580)
}
"""Qwen3-235B-A22B in bf16, two nodes of 8 H20-3e with 4 x 400 GbE: TTFT, transfer (ms) and MB, likewise.

Source: Mooncake docs/source/performance/sglang/sglang-benchmark-results-v1.md.
"""


@pytest.mark.parametrize("tokens", MOONCAKE_VLLM)
def test_the_bytes_vllm_sends_are_those_of_the_blocks_of_prompt_and_first_token(tokens):
    """Blocks of 16: 129 tokens are 9 blocks, 20.25 MiB, printed as 20."""
    sent = transferred_bytes(times("qwen3-8b", "h800", tp=8).plan, tokens + 1)
    assert int(sent / 2**20) == pytest.approx(MOONCAKE_VLLM[tokens][2], abs=2.3 if tokens > 5000 else 0)


@pytest.mark.parametrize("tokens", MOONCAKE_SGLANG)
def test_the_bytes_sglang_sends_count_heads_that_two_ranks_hold_twice(tokens):
    plan = times("qwen3-235b-a22b", "h20-3e", "sglang", tp=8).plan
    sent = transferred_bytes(plan, tokens, whole_blocks=False)
    assert sent / 1e6 == pytest.approx(MOONCAKE_SGLANG[tokens][2], rel=0.006)


def test_no_published_transfer_is_faster_than_its_links_and_most_take_several_times_as_long():
    """At line rate every row is a bound: 63 to 91 % too fast on 8 x 400 Gb/s, 28 to 88 % on 4.

    What the links reach is measured, not derived: the tables fit 0.39 ms + bytes / 146 GB/s and 1.8 ms +
    bytes / 171 GB/s. A start and an efficiency can be given to a link; by default it is a bound.
    """
    plan = times("qwen3-8b", "h800", tp=8).plan
    rows = [(NIC.seconds(transferred_bytes(plan, n + 1), 8), v[1] / 1e3) for n, v in MOONCAKE_VLLM.items()]
    assert all(-0.92 <= error <= -0.6 for error in errors(rows))
    plan = times("qwen3-235b-a22b", "h20-3e", "sglang", tp=8).plan
    rows = [(NIC.seconds(transferred_bytes(plan, n), 4), v[1] / 1e3) for n, v in MOONCAKE_SGLANG.items()]
    assert all(-0.9 <= error <= -0.25 for error in errors(rows))
    known = kv_link("fit", 171e9 / 4, start_s=1.8e-3)
    for tokens, (_, milliseconds, _) in MOONCAKE_SGLANG.items():
        assert known.seconds(transferred_bytes(plan, tokens), 4) * 1e3 == pytest.approx(
            milliseconds, rel=0.05
        )


def first_token_s(steps, tokens, width, front_ends):
    """Return TTFT through two pools, alone: both front ends, prefill, transfer at line rate, one decode."""
    sent = NIC.seconds(transferred_bytes(steps.plan, tokens), width)
    own = steps.prefill_s(tokens) + steps.decode_s(1, tokens + 1)
    return front_ends * FRONT_END_S + own + sent


def test_mooncakes_ttft_through_vllm_is_within_20_per_cent_in_the_median():
    """A request passes the front ends of both engines, one after the other: 25 ms each, the stated prior.

    By row, from 128 tokens on: +25, +23, +3, 0, -7, -17 and -34 %.
    """
    steps = times("qwen3-8b", "h800", tp=8)
    rows = [(first_token_s(steps, n, 8, 2), v[0] / 1e3) for n, v in MOONCAKE_VLLM.items()]
    found = [abs(error) for error in errors(rows)]
    assert median(found) <= 0.20
    assert max(found) <= 0.38


def test_mooncakes_ttft_through_sglang_is_off_by_half():
    """By row, from 128 tokens on: -47, +37, +72 and +83 %. The aim of 20 % is not reached.

    H20 has a seventh of H100's arithmetic at the same bandwidth, and no calibration of its own: the shares
    of the peak that H100's expert kernels reach are carried over, and are too low for it.
    """
    steps = times("qwen3-235b-a22b", "h20-3e", "sglang", tp=8)
    rows = [(first_token_s(steps, n, 4, 1), v[0] / 1e3) for n, v in MOONCAKE_SGLANG.items()]
    found = [abs(error) for error in errors(rows)]
    assert median(found) <= 0.62
    assert max(found) <= 0.95


@pytest.mark.parametrize(
    ("isl", "osl", "tpot_ms", "per_device", "reached"),
    [(1024, 8192, 10.93, 50.7, 0.05), (8192, 1024, 12.05, 349.9, 0.05), (1024, 1024, 22.73, 42.6, 1.3)],
)
def test_inferencex_of_deepseek_r1_on_h200(isl, osl, tpot_ms, per_device, reached):
    """R1 fp8, SGLang 0.5.7, TP 8, concurrency 4: mean TPOT and all tokens per second and GPU.

    Two rows within 2 %. The third, with fewer tokens but twice the TPOT of the first, is one run at odds with
    the other two: -53 and +116 %. Source: SemiAnalysisAI/InferenceX issue 870.
    """
    found = closed_loop(times("deepseek-r1", "h200-sxm", "sglang", tp=8), isl=isl, osl=osl, concurrency=4)
    assert found.tpot_s * 1e3 == pytest.approx(tpot_ms, rel=min(reached, 0.6))
    assert found.tokens_per_s * (1 + isl / osl) / 8 == pytest.approx(per_device, rel=reached)


def test_one_request_over_two_nodes_is_bound_by_more_than_kernels_and_wires():
    """DeepSeek-R1 on 16 H100 over InfiniBand, one request, 128 in and out: 23.1 ms, predicted 63 % too fast.

    Two nodes launch 61 layers together without graphs over the network; that host time is in no kernel table.
    Source: tenstorrent/tt-inference-server issue 356 (SGLang).
    """
    found = times("deepseek-r1", "h100-sxm", "sglang", tp=16).decode_s(1, 192)
    assert -0.68 <= found / 0.0231 - 1 <= 0


@pytest.mark.parametrize(
    ("model", "kv_dtype", "ttft_ms", "itl_ms", "tokens_per_s"),
    [
        ("llama-3.1-8b", "bf16", 763.6, 15.18, 450.3),
        ("llama-3.1-8b", "fp8", 742.8, 12.93, 517.5),
        ("gpt-oss-20b", "bf16", 468.9, 8.09, 831.6),
        ("gpt-oss-20b", "fp8", 451.7, 7.90, 853.0),
    ],
)
def test_vllms_closed_loop_of_eight_long_prompts_on_h100(model, kv_dtype, ttft_ms, itl_ms, tokens_per_s):
    """150 requests of about 20k in and 2k out, 8 at a time: ITL within 6 %, TTFT within 25 %.

    Source: vLLM blog, "FP8 KV cache", 2026-04-22 (vLLM 0.19.1). The rate is of the whole run, which ends with
    fewer than 8 requests: 8 to 15 % below that of the loop.
    """
    steps = times(model, "h100-sxm", kv_dtype=kv_dtype)
    found = closed_loop(steps, isl=20_000, osl=2000, concurrency=8, waves=150 / 8, mixes=True)
    assert found.tpot_s * 1e3 == pytest.approx(itl_ms, rel=0.06)
    assert found.ttft_s * 1e3 == pytest.approx(ttft_ms, rel=0.25)
    assert found.tokens_per_s == pytest.approx(tokens_per_s, rel=0.19)


@pytest.mark.parametrize(
    ("hardware", "ranks", "redundant", "batch", "context", "per_node", "reached"),
    [
        pytest.param("h800", 128, 0, 88, 4989, 14_800, 0.26, id="DeepSeek, day 6"),
        pytest.param("h100-sxm", 72, 32, 256, 2100, 22_300, 0.22, id="LMSYS, 9 nodes"),
    ],
)
def test_large_expert_parallel_decode(hardware, ranks, redundant, batch, context, per_node, reached):
    """DeepSeek-V3 tokens per second and node of 8: 22 and 18 % too few; the engines overlap two batches.

    Sources: deepseek-ai/open-infra-index, day 6 (20-22 tokens per second and user at a mean KV length of
    4,989: 88 sequences per GPU; units of 144, here 128 ranks, which divide the experts); LMSYS 2025-05-05
    (2,000-token inputs, as quoted by a third party).
    """
    layout = {"dp": ranks, "ep": ranks, "redundant_experts": redundant}
    steps = times("deepseek-v3", hardware, "sglang", **layout)
    found = 8 * batch / steps.decode_s(batch * ranks, context)
    assert found == pytest.approx(per_node, rel=reached)


@pytest.mark.parametrize(
    ("hardware", "redundant", "prompts", "tokens", "per_node", "reached"),
    [
        pytest.param("h800", 0, 2, 4096, 32_200, 0.1, id="DeepSeek, day 6, not cached"),
        pytest.param("h100-sxm", 32, 8, 2048, 52_300, 0.37, id="LMSYS, 4 nodes"),
    ],
)
def test_large_expert_parallel_prefill(hardware, redundant, prompts, tokens, per_node, reached):
    """DeepSeek-V3 on 32 ranks, input tokens per second and node: +2 % and -32 %.

    DeepSeek's 73.7k tokens are a mean over a day and hold 56.3 % cache hits; what is run is 32.2k. LMSYS
    overlaps two batches and measures at full load.
    """
    steps = times("deepseek-v3", hardware, "sglang", dp=32, ep=32, redundant_experts=redundant)
    found = 8 * prompts * tokens / steps.prefill_s(tokens, 0, prompts * 32)
    assert found == pytest.approx(per_node, rel=reached)


def test_two_pools_of_half_a_box_are_worse_than_one_of_all_of_it_at_low_rates():
    """gpt-oss-120b on 8 H200: TP 8 against TP 4 and TP 4 was worse split in all metrics.

    Source: ai-dynamo/dynamo issue 3774, which gives no lengths and no rate; three of each kind are tried.
    """
    efficiency = load_calibration("auto", "h200-sxm", "vllm")
    for isl, osl in ((1024, 1024), (4000, 500), (8192, 512)):
        asked = traffic(fixed(isl), fixed(osl))
        whole, half = (
            replica(Plan.of("gpt-oss-120b", "h200-sxm", tp=tp, efficiency=efficiency), asked) for tp in (8, 4)
        )
        policy = Policy(name="chunked", max_num_seqs=1024, max_num_batched_tokens=8192)
        one = one_pool(whole.times, asked, 1.0, policy)
        link = kv_link("NVLink", 450e9)
        two = split(
            TwoPools(prefill=half, prefill_instances=1, decode=half, decode_instances=1, link=link),
            asked,
            1.0,
        )
        assert two.ttft_s.mean > one.ttft_s.mean
        assert two.tpot_s.mean > one.tpot_s.mean


def test_a_prefill_in_every_step_makes_the_median_gap_a_mixed_one():
    """DeepSeek-R1 in FP4 on 8 GB200 (DP 8), 1,024 in and 200 out at 24 requests per second.

    Published: the median gap is 275 ms with a prefill in every step and 32 ms when it is held back, means of
    237 and 139. Predicted with V3.1's NVFP4 checkpoint: the median is a mixed step too, but of 62 ms (-77 %),
    mean 45 (-81 %). When prefill runs apart the median is 21 ms (-35 %) and the mean 119 (-14 %).
    Source: vllm-project/vllm PR 44558.
    """
    steps = times("deepseek-v3.1-nvfp4", "gb200-nvl72", dp=8, ep=8)
    asked, seqs, tokens = traffic(fixed(1024), fixed(200)), 2048, 8 * 8192
    found = {
        name: one_pool(
            steps, asked, 24.0, Policy(name=name, max_num_seqs=seqs, max_num_batched_tokens=tokens)
        )
        for name in ("chunked", "continuous")
    }
    mixed, apart = found["chunked"].itl_s, found["continuous"].itl_s
    assert mixed.p50 > 2 * float(steps.decode_s(found["chunked"].seqs, asked.context))
    assert apart.p50 < mixed.p50 < apart.p99
    assert apart.p50 == pytest.approx(0.0321, rel=0.45)
    assert apart.mean == pytest.approx(0.1394, rel=0.30)
    assert mixed.p50 == pytest.approx(0.2749, rel=0.85)


def test_scaling_book_three_prefill_servers_feed_one_that_decodes():
    """910 ms a prompt of 8,192, 19 ms a step of 32 sequences, 512 tokens out: a ratio of 3 to 1.

    Both pools are then loaded alike. Source: "How to Scale Your Model", Applied inference (JAX scaling book).
    """
    steps = AffineTimes(prefill_start_s=0.910, decode_start_s=0.019, token_s=0.0)
    server = Replica(
        name="v5e",
        hardware="tpu-v5e",
        times=steps,
        devices=16,
        max_seqs=32,
        kv_bytes=lambda tokens: tokens,
    )
    pools = TwoPools(
        prefill=server,
        prefill_instances=3,
        decode=server,
        decode_instances=1,
        link=kv_link("ICI", 1e12),
    )
    found = split(pools, traffic(fixed(8192), fixed(513)), 2.0)
    assert found.loads["prefill"] / found.loads["decode"] == pytest.approx(1, rel=0.01)
    assert found.loads["prefill"] == pytest.approx(2.0 * 0.910 / 3)
