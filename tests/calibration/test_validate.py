"""Predictions against measured points: the errors are what they say, and the forms keep their laws."""

import math
from dataclasses import replace

import pytest

from kvroof.calibration.deployments import Deployments, Seconds
from kvroof.calibration.measured import published
from kvroof.calibration.served import ServedPoint
from kvroof.calibration.validate import BY, errors, predict, validate
from kvroof.ground.errors import BadInput
from kvroof.roofline.roofline import serial_s
from kvroof.serving.spread import around

POINT = ServedPoint(
    name="p", model="llama-3.1-8b", hardware="h100-sxm", framework="vllm", isl=1024, osl=256, concurrency=16,
    ttft_s=0.1, tpot_s=0.01,
)  # fmt: skip
MOE = replace(POINT, model="qwen3-30b-a3b", concurrency=32)


def measured_as_predicted(point, factor=1.0):
    found = predict(point, Deployments())
    return replace(point, ttft_s=found.ttft_s / factor, tpot_s=found.tpot_s / factor)


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
def test_points_off_by_a_factor_are_off_by_that_factor(factor):
    points = [measured_as_predicted(replace(POINT, concurrency=c), factor) for c in (1, 8, 64)]
    answer = validate(points)
    for found in (answer.overall.ttft, answer.overall.tpot):
        assert found.bias == pytest.approx(factor - 1)
        assert found.mape == found.median == pytest.approx(abs(factor - 1))
        assert found.within == (1.0 if factor == 1 else 0.0)


def test_errors_are_mean_median_and_signed_mean():
    found = errors([(1.1, 1.0), (0.9, 1.0), (1.4, 1.0)], [around(1.0, 0.2)] * 3)
    assert (found.points, found.mape) == (3, pytest.approx(0.2))
    assert (found.median, found.bias) == (pytest.approx(0.1), pytest.approx(0.4 / 3))
    assert found.within == 1.0
    assert errors([], []) is None


def test_groups_hold_every_point_once():
    points = [replace(POINT, concurrency=c, framework=f) for c in (4, 32, 128) for f in ("vllm", "sglang")]
    for name in BY:
        answer = validate(points, by=(name,))
        assert sum(group.tpot.points for group in answer.groups) == len(points) == answer.overall.tpot.points
    assert len(validate(points, by=("regime", "framework")).groups) == 6


def test_a_time_that_was_not_measured_is_not_judged():
    answer = validate([replace(POINT, ttft_s=None), POINT])
    assert (answer.overall.ttft.points, answer.overall.tpot.points) == (1, 2)


def test_what_cannot_be_predicted_is_counted_by_reason():
    strange = (replace(POINT, model="nobody-9b"), replace(POINT, tp=7), replace(POINT, mode="disaggregated"))
    answer = validate([POINT, *strange], left_out={"broken": 5})
    assert (answer.predicted, answer.points) == (1, 9)
    assert sum(answer.left_out.values()) == 8
    with pytest.raises(BadInput, match="none of 3 points"):
        validate(strange)


@pytest.mark.parametrize(("points", "by"), [([], ("model",)), ([POINT], ("colour",))])
def test_nothing_to_judge_and_unknown_groups_are_refused(points, by):
    with pytest.raises(BadInput):
        validate(points, by=by)


@pytest.mark.parametrize("point", [POINT, replace(POINT, tp=4), MOE, replace(MOE, tp=2, ep=2)])
def test_more_requests_at_once_never_make_a_token_faster(point):
    deployments = Deployments()
    times = [deployments.loop(replace(point, concurrency=c)).tpot_s for c in (1, 2, 8, 32, 128)]
    assert times == sorted(times)


def test_replicas_share_the_requests():
    two, one = replace(MOE, tp=1, dp=2, ep=2, concurrency=64), replace(MOE, concurrency=32)
    assert Deployments().loop(two).seqs == Deployments().loop(one).seqs == 32


def test_an_engine_that_mixes_stalls_the_others_for_less():
    mixing, apart = (replace(POINT, framework=f, concurrency=64) for f in ("vllm", "sglang"))
    plans = Deployments("h100-sxm-vllm")
    assert plans.loop(mixing).tpot_s < plans.loop(apart).tpot_s
    assert plans.loop(mixing).decode_s == plans.loop(apart).decode_s


def test_requests_that_the_memory_does_not_admit_wait_in_ttft():
    long = replace(POINT, isl=16384, osl=1024)
    plans = Deployments()
    few, many = (plans.loop(replace(long, concurrency=c)) for c in (16, 64))
    assert plans.admitted(replace(long, concurrency=64)) == many.seqs < 64
    assert few.seqs == 16
    assert many.ttft_s > many.osl * many.tpot_s * (64 - many.seqs) / many.seqs > few.ttft_s


def test_engines_that_reserve_whole_requests_admit_fewer():
    long = replace(POINT, isl=4096, osl=8192, concurrency=256)
    eager, careful = (
        Deployments("none").admitted(replace(long, framework=f)) for f in ("vllm", "tensorrt-llm")
    )
    assert careful < eager < 256


def test_parts_of_a_step_sum_to_the_step():
    deployments = Deployments()
    steps = deployments.steps(replace(POINT, tp=2))
    parts = (lambda timed: sum(t.network_s for t in timed), lambda timed: sum(t.overhead_s for t in timed))
    rest = Seconds(steps, lambda timed: serial_s(timed) - sum(part(timed) for part in parts))
    whole = Seconds(steps)
    for ask in (
        lambda s: s.decode_s(8, 2048.5),
        lambda s: s.prefill_s(512),
        lambda s: s.mixed_s(512, 0, 1, 8, 2048),
    ):
        total = ask(rest) + sum(ask(Seconds(steps, part)) for part in parts)
        assert total == pytest.approx(ask(whole))


def test_a_bound_has_no_spread_and_is_below_what_is_calibrated():
    bound, fitted = (predict(POINT, Deployments(name)) for name in ("none", "auto"))
    assert bound.tpot_interval == (bound.tpot_s, bound.tpot_s)
    assert bound.tpot_s < fitted.tpot_s
    assert fitted.tpot_interval[0] < fitted.tpot_s < fitted.tpot_interval[1]


def test_intercepts_of_published_latency_lines_are_within_27_per_cent():
    # vLLM blog 2026-04-22: inter-token latency of gpt-oss-20b against context, 4.05 ms on H100 and 3.15 ms on
    # B200 where the line starts; the shortest context measured is 256.
    lines = [p for p in published() if p.model == "gpt-oss-20b" and p.isl == 256]
    assert len(lines) == 4
    for point in lines:
        assert predict(point, Deployments()).tpot_s == pytest.approx(point.tpot_s, rel=0.27)


def test_served_runs_of_vllms_blog_are_within_a_fifth():
    # vLLM blog 2026-04-22: 150 requests of 20,000 in and 2,000 out, 8 at once, one H100.
    runs = [p for p in published() if p.concurrency == 8]
    answer = validate(runs)
    assert answer.overall.tpot.points == answer.overall.ttft.points == 4
    assert answer.overall.tpot.mape < 0.2
    assert answer.overall.ttft.mape < 0.31
    assert math.isfinite(answer.overall.ttft.bias)
