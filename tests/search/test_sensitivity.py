"""Elasticities by gradient against their laws and against differences of the model itself."""

import numpy as np
import pytest

from kvroof.roofline.plan import Plan
from kvroof.search.points import Steps
from kvroof.search.sensitivity import FIXED, NAMES, RATES, changed, sensitivity
from kvroof.search.sweep import double_precision
from kvroof.serving.latency import estimate
from kvroof.spec.workload import decode, prefill

CASES = [
    ("mistral-7b-v0.1", {"tp": 2, "pp": 1}, True),
    ("qwen3-30b-a3b", {"tp": 1, "pp": 2}, False),
]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case[0])
def deployed(request, choose):
    model, axes, calibrated = request.param
    plan = choose(model, "h100-sxm", calibrated=calibrated, **axes)[0]
    return plan, sensitivity(plan, isl=1000, osl=32, batch=6)


def test_rates_and_fixed_times_make_up_all_of_a_time(deployed):
    plan, found = deployed
    for slopes in (found.ttft, found.tpot):
        assert sum(slopes[n] for n in FIXED) - sum(slopes[n] for n in RATES) == pytest.approx(1, abs=1e-9)
        if plan.efficiency.name is None:
            assert [slopes[n] for n in FIXED] == [0, 0]


def test_more_bandwidth_helps_and_more_of_anything_stored_hurts(deployed):
    _, found = deployed
    for slopes in (found.ttft, found.tpot):
        assert all(slopes[name] <= 0 for name in RATES)
        assert all(slopes[name] >= 0 for name in NAMES if name not in RATES)


def test_an_elasticity_is_the_difference_that_a_small_change_makes(deployed):
    plan, found = deployed
    step, lengths = 1e-4, np.linspace(1001, 1031, 31)
    scales = np.array([[1 + step], [1 - step]])
    for name in NAMES:
        if name == "kv_heads" and plan.efficiency.name is not None:
            continue  # work items count whole heads, which a small change makes one more of
        factors = dict.fromkeys(NAMES, np.ones((2, 1))) | {name: scales}
        steps, batch, context = Steps(plan=changed(plan, factors)), 6 * factors["batch"], factors["context"]
        first = np.log(steps.seconds(prefill(batch, 1000 * context)))[:, 0]
        later = np.log(steps.seconds(decode(batch, lengths * context)).mean(axis=1))
        for slopes, (up, down) in ((found.ttft, first), (found.tpot, later)):
            assert slopes[name] == pytest.approx((up - down) / (2 * step), rel=1e-3, abs=2e-5), name


def test_a_window_matters_only_beyond_it(choose):
    (plan,) = choose("mistral-7b-v0.1", "h100-sxm", tp=2, pp=1)
    short, long = (sensitivity(plan, isl=isl, osl=32, batch=4) for isl in (500, 8000))
    assert short.tpot["window"] == 0 < long.tpot["window"]


@pytest.mark.parametrize("calibrated", [True, False])
def test_gradients_are_finite_at_ten_thousand_points_and_equal_differences(choose, calibrated):
    import jax
    import jax.numpy as jnp

    (plan,) = choose("mistral-7b-v0.1", "h100-sxm", calibrated=calibrated, tp=2, pp=1)
    rng = np.random.default_rng(0)
    batch, length = np.exp(rng.uniform(0, 12, 10_000)), np.exp(rng.uniform(0, 14, 10_000))
    batch[:2], length[:2] = [1, 2**24], [1, 2**27]
    times = Steps(plan=plan)

    def total(batch, length):
        return jnp.log(times.seconds(decode(batch, length))).sum()

    with double_precision():
        slopes = [np.asarray(s) for s in jax.grad(total, (0, 1))(jnp.asarray(batch), jnp.asarray(length))]

    def log_seconds(batch, length):
        return np.log(times.seconds(decode(batch, length)))

    step = 1e-5
    for axis, slope in enumerate(slopes):
        assert np.isfinite(slope).all()
        up, down, near, far = (
            log_seconds(*[x * (1 + k * step * (i == axis)) for i, x in enumerate((batch, length))])
            for k in (1, -1, 2, -2)
        )
        value = (batch, length)[axis]
        rough, fine = (near - far) / (4 * step * value), (up - down) / (2 * step * value)
        smooth = np.abs(rough - fine) <= 1e-7 * np.maximum(np.abs(fine), 1e-3 / value)
        assert smooth.mean() > 0.7
        wrong = np.abs(slope - fine) > 1e-6 * np.maximum(np.abs(fine), 1e-3 / value)
        assert not (wrong & smooth).any()


def test_a_plan_that_is_changed_by_nothing_takes_the_same_time(deployed):
    plan, _ = deployed
    same: Plan = changed(plan, dict.fromkeys(NAMES, 1.0))
    assert same.seconds(decode(5, 777)) == pytest.approx(plan.seconds(decode(5, 777)), rel=1e-12)


def test_the_towers_take_part_in_the_first_token_alone():
    """More patches per prompt, the same prompt: what a longer context costs is a smaller share of TTFT."""
    plan, asked = Plan.of("gemma-3-27b", "h200-sxm"), {"isl": 2048, "osl": 2, "batch": 1}
    plain, pictured = (sensitivity(plan, **asked, patches=patches) for patches in (0, 4096))
    without, towers = (estimate(plan, **asked, patches=patches).ttft_s for patches in (0, 4096))
    assert pictured.ttft["context"] * towers == pytest.approx(plain.ttft["context"] * without)
    assert pictured.ttft["batch"] > plain.ttft["batch"]
    assert sum(pictured.ttft[rate] for rate in RATES) == pytest.approx(-1)
    assert pictured.tpot == plain.tpot
