"""The exact ledger, the relaxed one and the gradient read the same line.

The slope of a time is checked against central differences where no operation is within 1 % of the
ridge between two resources; there the time has a kink and no slope.
"""

import dataclasses

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvroof.ground.numeric import relax
from kvroof.memory.allocators import equal_lengths
from kvroof.memory.kv import cache_bytes
from kvroof.roofline.plan import Plan
from kvroof.roofline.roofline import overlapped_s, serial_s
from kvroof.spec.params import params_total, weight_bytes
from kvroof.spec.precision import parse_kv_format
from kvroof.spec.workload import decode

from .strategies import batches, executions, few, llamas, machines, models, steps, tokens

pytestmark = pytest.mark.usefixtures("x64")

STEP = 1e-5
EXACT = {"rel": 1e-12, "abs": 0}
SLOPE = {"rel": 1e-5, "abs": 0}


def central(function, x):
    """Return the slope of `function` at `x` by a central difference of one part in 10**5."""
    return float(function(x * (1 + STEP)) - function(x * (1 - STEP))) / (2 * x * STEP)


def off_ridge(timed):
    """Return whether every operation is bound clearly by one resource."""
    for t in timed:
        *_, second, first = sorted((float(t.compute_s), float(t.hbm_s), float(t.network_s)))
        if first and second / first > 0.99:
            return False
    return True


def with_kv_heads(model, heads):
    groups = []
    for group in model.layers:
        mixers = tuple(dataclasses.replace(m, num_kv_heads=heads) for m in group.layer.mixers)
        groups.append(
            dataclasses.replace(group, layer=dataclasses.replace(group.layer, mixers=mixers)),
        )
    return dataclasses.replace(model, layers=tuple(groups))


@few
@given(models, st.integers(0, 2**30), batches, st.sampled_from(("bf16", "fp8", "fp32", "q8_0/iq4_nl")))
def test_the_relaxed_payload_is_the_exact_one(model, n, seqs, dtype):
    kv_format = parse_kv_format(dtype, model)
    demand = equal_lengths(n, seqs)
    exact = cache_bytes(model, demand, kv=kv_format)
    relaxed = cache_bytes(relax(model), relax(demand), kv=relax(kv_format))
    assert isinstance(exact, int)
    assert str(relaxed.dtype) == "float64"
    assert float(relaxed) == pytest.approx(exact, **EXACT)


@few
@given(models)
def test_the_relaxed_weights_are_the_exact_ones(model):
    relaxed = relax(model)
    assert float(params_total(relaxed)) == pytest.approx(params_total(model), **EXACT)
    assert float(weight_bytes(relaxed)) == pytest.approx(weight_bytes(model), **EXACT)


@few
@given(models, machines(), steps, executions)
def test_the_relaxed_time_is_the_exact_one(model, machine, step, latent):
    plan = Plan.of(model, machine)
    loose = dataclasses.replace(
        plan, model=relax(model), hardware=relax(machine), formats=relax(plan.formats)
    )
    exact, relaxed = plan.time(step, latent), loose.time(relax(step), latent)
    assert float(serial_s(relaxed)) == pytest.approx(serial_s(exact), rel=1e-12)
    assert float(overlapped_s(relaxed, loose.hardware)) == pytest.approx(
        overlapped_s(exact, machine), rel=1e-12
    )


@few
@given(llamas, st.integers(1, 10**6), batches, st.sampled_from(("bf16", "fp8")))
def test_the_slope_of_the_payload_in_kv_heads_is_its_difference(model, n, seqs, dtype):
    import jax

    relaxed, demand = relax(model), relax(equal_lengths(n, seqs))
    kv_format = parse_kv_format(dtype, model)
    heads = float(model.layers[0].layer.mixers[0].num_kv_heads)

    def payload(heads):
        return cache_bytes(with_kv_heads(relaxed, heads), demand, kv=relax(kv_format))

    slope = float(jax.grad(payload)(heads))
    assert slope == pytest.approx(central(payload, heads), **SLOPE)
    assert slope == pytest.approx(cache_bytes(model, equal_lengths(n, seqs), kv=kv_format) / heads, **SLOPE)


@few
@given(models, st.integers(4, 10**6), batches)
def test_the_slope_of_the_payload_in_tokens_is_its_growth(model, n, seqs):
    import jax

    windows = {g.layer.mixers[0].reach.window for g in model.layers}
    assume(all(window is None or abs(n / window - 1) > 0.01 for window in windows))
    relaxed, whole = relax(model), relax(equal_lengths(n, seqs))

    def payload(length):
        return cache_bytes(relaxed, dataclasses.replace(whole, lengths=((length, whole.lengths[0][1]),)))

    growth = cache_bytes(model, equal_lengths(n + 1, seqs)) - cache_bytes(model, equal_lengths(n, seqs))
    assert float(jax.grad(payload)(float(n))) == pytest.approx(growth, rel=1e-9)
    assert central(payload, float(n)) == pytest.approx(growth, rel=1e-5, abs=1e-3)


@few
@given(models, machines(), tokens, batches, executions)
def test_the_slope_of_a_step_in_the_logarithm_of_a_rate_is_its_difference(model, machine, n, batch, latent):
    import jax
    import jax.numpy as jnp

    plan, step = Plan.of(model, machine), decode(batch, n)
    assume(off_ridge(plan.time(step, latent)))

    def seconds(scale, which):
        hbm = machine.hbm_bytes_per_s * (scale if which == "hbm" else 1.0)
        peaks = {k: v * (scale if which == "compute" else 1.0) for k, v in machine.peak_flops_per_s.items()}
        faster = dataclasses.replace(machine, hbm_bytes_per_s=hbm, peak_flops_per_s=peaks)
        return serial_s(dataclasses.replace(plan, hardware=faster).time(step, latent))

    whole = seconds(1.0, "neither")
    slopes = {}
    for which in ("hbm", "compute"):
        slopes[which] = float(jax.grad(lambda x, w=which: seconds(jnp.exp(x), w) / whole)(0.0))
        steady = central(lambda x, w=which: seconds(x, w) / whole, 1.0)
        assert slopes[which] == pytest.approx(steady, rel=1e-4, abs=1e-7)
    # Uncalibrated, a time is all compute and memory: doubling both halves it.
    assert sum(slopes.values()) == pytest.approx(-1, rel=1e-9)


@few
@given(models, machines(), st.integers(16, 5000), batches)
def test_the_slope_of_a_step_in_kv_len_is_its_difference(model, machine, n, batch):
    import jax

    plan = Plan.of(model, machine)
    windows = {g.layer.mixers[0].reach.window for g in model.layers}
    assume(all(window is None or abs(n / window - 1) > 0.05 for window in windows))
    assume(off_ridge(plan.time(decode(batch, n))))

    def seconds(kv_len):
        return serial_s(plan.time(decode(batch, kv_len)))

    whole = seconds(n)
    slope = float(jax.grad(seconds)(float(n))) * n / whole
    assert slope == pytest.approx(central(seconds, float(n)) * n / whole, rel=1e-4, abs=1e-7)
    assert slope >= 0


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gemma-3-27b", "qwen3-30b-a3b", "deepseek-v3"])
@pytest.mark.parametrize("tp", [1, 2])
def test_a_relaxed_plan_is_timed_under_jit_as_it_is_outside(name, tp):
    import jax

    plan, step = Plan.of(name, "h100-sxm", tp=tp), decode(8, 1000)
    jitted = jax.jit(lambda plan, step: serial_s(plan.time(step)))
    assert float(jitted(relax(plan), relax(step))) == pytest.approx(serial_s(plan.time(step)), rel=1e-12)
