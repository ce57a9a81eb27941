"""Fits: what points tell is learnt, what they do not tell stays at its prior, and errors are held out."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvroof.calibration.fit import LIMITS, choose, fit_family, fit_kernel, judge
from kvroof.calibration.points import SERVED_S, Points, thinned
from kvroof.calibration.priors import prior_of
from kvroof.calibration.sources import OwnPoints
from kvroof.calibration.work import decode
from kvroof.catalog.profiles import load_hardware
from kvroof.ground.errors import BadInput
from kvroof.roofline.efficiency import Kernel

H200 = load_hardware("h200-sxm")
SAMPLE = Path(__file__).parent / "data" / "h200_sxm.csv"
MEASURED = {points.family: points for points in OwnPoints(path=SAMPLE).points(H200, "vllm")}
TRUTH = Kernel(
    t0_s=14e-6, hbm=0.7, compute=0.5, sharpness=2.0, item_s=200e-9, depth_s=6e-6, depth_power=0.5
)  # fmt: skip


def made(seconds_of: Kernel, count: int = 400, family: str = "attention.decode") -> Points:
    """Decode points over a wide grid whose seconds are exactly a kernel's; nothing is served from a cache."""
    rng = np.random.default_rng(3)
    batch, kv_len = 2.0 ** rng.integers(0, 9, count), 2.0 ** rng.integers(8, 17, count)
    kv_heads = 2.0 ** rng.integers(0, 4, count)
    did = decode(batch, kv_len, 8 * kv_heads, kv_heads, np.full(count, 128.0), 2.0)
    points = Points(
        family=family,
        flops=did.flops,
        hbm_bytes=did.hbm_bytes,
        items=did.items,
        depth=did.depth,
        scores=did.scores,
        seconds=np.ones(count),
        peak_flops_per_s=H200.peak_flops_per_s["bf16"],
        hbm_bytes_per_s=H200.hbm_bytes_per_s,
    )
    return replace(points, seconds=points.predict(seconds_of))


def fitted_to(loosened: float) -> Kernel:
    """The fit to 32 of `TRUTH`'s own points, under priors `loosened` times as wide as the shipped ones."""
    points, prior = made(TRUTH), prior_of("attention.decode", H200.llc_bytes)
    loose = {name: loosened * width for name, width in prior.loose.items() if not name.startswith("llc")}
    mean = replace(prior.mean, llc_bytes=0.0, compute=TRUTH.compute)
    kernel, _ = fit_kernel(
        points.take(choose(points, 32, prior.mean)), replace(prior, mean=mean, loose=loose)
    )
    return kernel


@pytest.mark.parametrize("name", ["t0_s", "hbm", "sharpness", "item_s", "depth_s"])
def test_without_a_prior_to_speak_of_the_true_parameters_are_recovered(name):
    assert getattr(fitted_to(100.0), name) == pytest.approx(getattr(TRUTH, name), rel=0.05)


@pytest.mark.parametrize("name", ["hbm", "item_s", "depth_s"])
def test_a_prior_pulls_towards_itself(name):
    mean = getattr(prior_of("attention.decode", H200.llc_bytes).mean, name)
    apart = [abs(np.log(getattr(fitted_to(width), name) / mean)) for width in (0.3, 1.0, 100.0)]
    assert apart == sorted(apart)


def test_a_fit_to_a_kernels_own_seconds_predicts_the_rest():
    fitted = fit_family(made(TRUTH), None)
    assert fitted.mape < 0.05
    assert fitted.held_out > 100


def test_what_points_cannot_tell_stays_at_the_prior_and_is_named():
    prior = prior_of("gemm.bf16", H200.llc_bytes)
    points = MEASURED["gemm.bf16"]
    memory_bound = points.take(points.flops / points.hbm_bytes < 20)
    kernel, at_prior = fit_kernel(memory_bound, prior)
    assert "compute" in at_prior
    assert kernel.compute == prior.mean.compute
    assert "hbm" not in at_prior


def test_a_parameter_that_is_not_fitted_is_named_too():
    fitted = fit_family(MEASURED["attention.decode"], H200.llc_bytes)
    assert "compute" in fitted.at_prior


@pytest.mark.parametrize(
    ("family", "most"),
    [
        ("gemm.bf16", 0.12),
        ("attention.decode", 0.10),
        ("attention.prefill", 0.20),
        ("mla.decode", 0.15),
        ("mla.prefill", 0.10),
        ("moe.fp8_block", 0.25),
    ],
)
def test_half_of_a_measured_sample_predicts_the_other_half(family, most):
    fitted = fit_family(MEASURED[family], H200.llc_bytes, count=32)
    assert (fitted.points, fitted.mape < most) == (32, True)
    bound = judge(MEASURED[family], Kernel())
    assert fitted.mape < bound.mape / 2


@pytest.mark.parametrize("family", MEASURED)
def test_fitted_shares_of_a_peak_stay_possible(family):
    kernel = fit_family(MEASURED[family], H200.llc_bytes).kernel
    for name, (least, most) in LIMITS.items():
        assert least <= getattr(kernel, name) <= most


@pytest.mark.parametrize("family", MEASURED)
def test_points_are_chosen_once_each_and_before_they_are_timed(family):
    points, prior = MEASURED[family], prior_of(family, H200.llc_bytes).mean
    chosen = choose(points, 24, prior)
    assert len(set(chosen.tolist())) == len(chosen) <= 24
    other = replace(points, seconds=points.seconds[::-1].copy())
    assert chosen.tolist() == choose(other, 24, prior).tolist()


def test_errors_are_judged_on_served_points_only():
    points = MEASURED["attention.decode"]
    assert judge(points, Kernel()).held_out == int((points.seconds > SERVED_S).sum())


def test_a_launching_host_is_seen():
    points = made(TRUTH)
    slow = replace(points, seconds=np.maximum(points.seconds, 90e-6))
    assert fit_family(slow, None).eager
    assert not fit_family(points, None).eager


def test_a_fit_needs_points_with_positive_seconds():
    points = MEASURED["gemm.bf16"]
    with pytest.raises(BadInput):
        fit_kernel(replace(points, seconds=0 * points.seconds), prior_of("gemm.bf16", None))


def test_thinning_keeps_few_points_as_they_are():
    points = MEASURED["gemm.bf16"]
    assert thinned(points, 100) is points
    assert len(thinned(points, 10)) == 10
