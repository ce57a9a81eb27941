"""Price each operation first, then add; what bounds them; which arithmetic a chip falls back to."""

import dataclasses

import pytest

from kvroof.catalog.models import load_model
from kvroof.catalog.profiles import load_hardware
from kvroof.cost.op import Op
from kvroof.ground.errors import BadInput, Unsupported
from kvroof.roofline.efficiency import Efficiency
from kvroof.roofline.plan import Plan, arithmetic_used
from kvroof.roofline.roofline import arithmetic, bound_of, overlapped_s, price, price_all, serial_s
from kvroof.spec.hardware import Hardware, Link
from kvroof.spec.workload import decode, prefill

MACHINE = Hardware(
    name="round",
    vendor="nobody",
    memory_bytes=80 * 10**9,
    hbm_bytes_per_s=1e12,
    peak_flops_per_s={"bf16": 1e15},
    scale_up=Link(name="wire", bytes_per_s=1e11, domain=8),
)
COMPUTE = Op(name="compute", kind="gemm", count=1, flops=1e12)
MEMORY = Op(name="memory", kind="gemm", count=1, weight_bytes=1e9)


def test_two_opposite_bound_operations_of_one_ms_take_two():
    timed = price_all((COMPUTE, MEMORY), MACHINE)
    assert [t.seconds for t in timed] == [1e-3, 1e-3]
    assert serial_s(timed) == 2e-3
    both = dataclasses.replace(COMPUTE, weight_bytes=1e9)
    assert price(both, MACHINE).seconds == 1e-3  # the roofline of the summed cost, which is not the answer
    assert overlapped_s(timed, MACHINE) == 1e-3


@pytest.mark.parametrize(
    ("op", "bound"),
    [
        (COMPUTE, "compute"),
        (MEMORY, "hbm"),
        (
            Op(name="c", kind="collective", count=1, message_bytes=1e9, collective="all_reduce", ranks=8),
            "network",
        ),
    ],
)
def test_an_operation_is_bound_by_what_it_waits_for(op, bound):
    assert bound_of(price_all((op,), MACHINE)) == bound


def test_launches_bound_what_is_too_small_for_anything_else():
    many = dataclasses.replace(COMPUTE, flops=1.0, count=1000)
    timed = price_all((many,), MACHINE, Efficiency(name="slow", launch_s=1e-5))
    assert bound_of(timed) == "overhead"
    assert serial_s(timed) == pytest.approx(1e-2)


def test_executions_of_an_operation_are_counted():
    once, often = (price(dataclasses.replace(COMPUTE, count=n), MACHINE).seconds for n in (1, 32))
    assert often == 32 * once


def test_an_efficiency_stretches_the_resource_it_is_about():
    op = Op(name="c", kind="gemm", count=1, flops=1e12, weight_bytes=1e9)
    moved = Op(name="m", kind="collective", count=1, message_bytes=1e9, collective="all_gather", ranks=2)
    half = Efficiency(name="half", compute=0.5, hbm=0.25, net=0.1, launch_s=1e-6)
    plain, slow = price(op, MACHINE), price(op, MACHINE, half)
    assert slow.compute_s == 2 * plain.compute_s
    assert slow.hbm_s == 4 * plain.hbm_s
    assert slow.overhead_s == 1e-6
    assert plain.overhead_s == 0
    free, slower = price(moved, MACHINE), price(moved, MACHINE, half)
    assert slower.network_s == pytest.approx(10 * free.network_s + 1e-6)


def test_the_lower_bound_leaves_out_activations_which_kernels_may_keep_on_chip():
    op = dataclasses.replace(MEMORY, activation_bytes=5e9)
    timed = price_all((op,), MACHINE)
    assert serial_s(timed) == 6e-3
    assert overlapped_s(timed, MACHINE) == 1e-3


# Arithmetic


def test_v100_runs_a_bf16_model_in_fp16():
    plan = Plan.of("llama-3.1-8b", "v100-sxm2-32gb")
    assert "bf16" not in plan.hardware.peak_flops_per_s
    timed = plan.time(prefill(1, 512))
    assert arithmetic_used(timed, plan.hardware) == ("fp16",)


def test_fp8_weights_on_a100_multiply_in_bf16():
    plan = Plan.of("llama-3.1-8b", "a100-sxm-80gb", weights_dtype="fp8")
    assert arithmetic_used(plan.time(prefill(1, 512)), plan.hardware) == ("bf16",)


def test_fp8_weights_on_h100_multiply_in_fp8_and_attention_does_not():
    plan = Plan.of("llama-3.1-8b", "h100-sxm", weights_dtype="fp8")
    used = {t.op.name: arithmetic(t.op, plan.hardware) for t in plan.time(prefill(1, 512))}
    assert used["qkv_proj"] == used["down_proj"] == "fp8"
    assert used["attention.full"] == used["lm_head"] == "bf16"


@pytest.mark.parametrize("dtype", ["int4", "mxfp4", "q4_0", "q8_0"])
def test_weight_only_formats_read_less_and_multiply_no_faster(dtype):
    wide, narrow = (
        Plan.of("llama-3.1-8b", "h100-sxm", weights_dtype=name).time(prefill(1, 4096))
        for name in ("bf16", dtype)
    )
    assert sum(t.compute_s for t in wide) == sum(t.compute_s for t in narrow)
    assert sum(t.hbm_s for t in wide) > sum(t.hbm_s for t in narrow)


def test_a_compute_dtype_that_the_chip_lacks_is_refused():
    plan = Plan.of("llama-3.1-8b", "a100-sxm-80gb", compute_dtype="fp8")
    with pytest.raises(BadInput) as caught:
        plan.time(decode(1, 100))
    assert caught.value.where == "--compute-dtype"
    assert "bf16" in caught.value.way_out


def test_a_compute_dtype_that_the_chip_has_is_forced_on_every_matrix():
    plan = Plan.of("llama-3.1-8b", "h100-sxm", compute_dtype="fp8")
    timed = plan.time(prefill(1, 4096))
    assert arithmetic_used(timed, plan.hardware) == ("fp8",)
    assert serial_s(timed) < serial_s(Plan.of("llama-3.1-8b", "h100-sxm").time(prefill(1, 4096)))


def test_a_chip_with_none_of_the_fallbacks_is_not_guessed():
    machine = dataclasses.replace(MACHINE, peak_flops_per_s={"int4": 1e15})
    with pytest.raises(Unsupported):
        price(COMPUTE, machine)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "deepseek-v3", "gpt-oss-20b", "gemma-3-27b"])
def test_memory_bound_decode_is_weights_and_cache_over_bandwidth(name):
    """At batch 1 nothing but the activations is above the time to read the weights and the cache."""
    model, machine = load_model(name), load_hardware("h200-sxm")
    plan = Plan.of(model, machine)
    timed = plan.time(decode(1, 2048))
    read = sum(t.op.count * (t.op.weight_bytes + t.op.kv_bytes) for t in timed)
    assert bound_of(timed) == "hbm"
    assert serial_s(timed) == pytest.approx(read / machine.hbm_bytes_per_s, rel=0.02)
