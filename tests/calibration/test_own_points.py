"""A deployment's own points tell what they can, leave the rest at its prior, and the profile keeps it."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvroof.calibration.calibrate import calibrate_points
from kvroof.calibration.deployments import Deployments
from kvroof.calibration.load import load_calibration, moved
from kvroof.calibration.own_points import PRIORS, adjust
from kvroof.calibration.profile import Served, read_profile
from kvroof.calibration.served import ServedPoint
from kvroof.ground.errors import BadInput, KvroofError
from kvroof.roofline.efficiency import IDENTITY

BASE = ServedPoint(
    model="llama-3.1-8b", hardware="h100-sxm", framework="vllm", isl=1024, osl=512, concurrency=1, tpot_s=0.01
)
GRID = [
    replace(BASE, concurrency=c, isl=isl, tp=tp)
    for tp in (1, 4)
    for c, isl in ((1, 512), (16, 2048), (128, 1024))
]
"""Points that differ in batch, length and ranks, so that every factor leaves a trace."""


def truth(points, **factors):
    """Return the points as they would be measured with these factors on the shipped profile."""
    efficiency = moved(
        load_calibration("h100-sxm-vllm", "h100-sxm"), Served(points=1, source="test", **factors)
    )
    plans = Deployments(efficiency=efficiency)
    loops = [plans.loop(p) for p in points]
    return [replace(p, ttft_s=t.ttft_s, tpot_s=t.tpot_s) for p, t in zip(points, loops, strict=True)]


def found(points):
    return adjust(points, Deployments("h100-sxm-vllm"), "test")


def test_points_that_the_profile_predicts_move_nothing():
    answer = found(truth(GRID))
    assert answer.before["tpot"] == pytest.approx(0, abs=1e-9)
    assert all(m.factor == pytest.approx(1, abs=1e-3) for m in answer.moved)


@settings(max_examples=6, deadline=None)
@given(
    launch=st.floats(0.6, 1.5),
    host_step=st.floats(0.5, 2.0),
    wire=st.floats(0.7, 1.4),
    group=st.floats(0.75, 1.3),
)
def test_whatever_slowed_the_deployment_is_made_good(launch, host_step, wire, group):
    factors = {"launch": launch, "host_step": host_step, "wire": wire, "group": group}
    answer = found(truth(GRID, **factors))
    assert answer.after["tpot"] < 0.05
    assert answer.after["tpot"] <= answer.before["tpot"] + 0.01


@pytest.mark.parametrize("name", ["launch", "host_step", "wire", "group"])
@pytest.mark.parametrize("factor", [0.6, 1.7])
def test_a_part_moves_the_way_it_was_moved(name, factor):
    answer = found(truth(GRID, **{name: factor}))
    (one,) = (m for m in answer.moved if m.name == name)
    assert one.told
    assert (one.factor - 1) * (factor - 1) > 0.02
    assert answer.after["tpot"] < 0.5 * answer.before["tpot"]


def test_what_the_points_do_not_tell_stays_at_its_prior():
    alone = [p for p in GRID if p.tp == 1]
    answer = found(truth(alone, launch=0.7))
    (wire,) = (m for m in answer.moved if m.name == "wire")
    assert (wire.factor, wire.told) == (1.0, False)
    assert "wire" in answer.served.at_prior
    assert wire.posterior == pytest.approx(PRIORS["wire"])


def test_one_point_is_enough_to_move_and_too_few_to_judge():
    answer = found(truth(GRID[:1], group=1.2))
    assert answer.left_out == {"ttft": None, "tpot": None}
    assert answer.after["tpot"] < answer.before["tpot"]


def test_points_held_back_are_predicted_better_after_than_before():
    points = truth(GRID, launch=0.6, group=1.25)
    given_ones, rest = points[::2], points[1::2]
    served = found(given_ones).served
    after = Deployments(efficiency=moved(load_calibration("h100-sxm-vllm", "h100-sxm"), served))
    before = Deployments("h100-sxm-vllm")
    off = [sum(abs(plans.loop(p).tpot_s / p.tpot_s - 1) for p in rest) for plans in (before, after)]
    assert off[1] < 0.5 * off[0]


def test_a_slow_point_does_not_drag_the_others_along():
    points = truth(GRID)
    broken = [replace(points[0], tpot_s=10 * points[0].tpot_s), *points[1:]]
    (group,) = (m for m in found(broken).moved if m.name == "group")
    assert group.factor < 1.3


def test_a_factor_on_everything_scales_every_time():
    plain = load_calibration("h200-sxm-vllm", "h200-sxm")
    slower = moved(plain, Served(points=1, source="test", group=1.5))
    point = replace(BASE, hardware="h200-sxm", tp=2, concurrency=8)
    one, other = (Deployments(efficiency=e).loop(point) for e in (plain, slower))
    assert other.tpot_s == pytest.approx(1.5 * one.tpot_s)
    assert other.decode_s == pytest.approx(1.5 * one.decode_s)


@pytest.mark.parametrize(
    "points",
    [
        [],
        [BASE, replace(BASE, hardware="h200-sxm")],
        [BASE, replace(BASE, framework="sglang")],
        [replace(BASE, model="nobody-9b")],
    ],
)
def test_points_of_no_one_deployment_are_refused(points):
    with pytest.raises(KvroofError):
        adjust(points, Deployments(), "test")


def test_a_machine_without_a_profile_has_nothing_to_move():
    with pytest.raises(BadInput, match="no profile"):
        adjust([BASE], Deployments(efficiency=IDENTITY), "test")


CSV = """model,hw,framework,tp,isl,osl,concurrency,ttft_ms,tpot_ms
llama-3.1-8b,h100-sxm,vllm,1,1024,256,1,40,9.0
meta-llama/Llama-3.1-8B,H100-SXM,vllm,1,1024,256,32,150,13.5
llama-3.1-8b,h100-sxm,vllm,1,4096,256,32,400,21.0
llama-3.1-8b,h100-sxm,sglang,1,1024,256,8,60,9.5
"""


@pytest.fixture
def runs(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text(CSV, encoding="utf-8")
    return str(path)


def test_the_profile_keeps_what_the_points_told(runs, tmp_path):
    out = str(tmp_path / "mine.toml")
    answer = calibrate_points(runs, known={"framework": "vllm"}, out=out)
    assert (answer.points, answer.hardware, answer.models) == (3, "h100-sxm", ("llama-3.1-8b",))
    profile = read_profile(out)
    assert profile.name == "h100-sxm-vllm+points"
    assert profile.served.points == 3
    assert "runs.csv" in profile.served.source
    for one in answer.moved:
        assert getattr(profile.served, one.name) == pytest.approx(one.factor, rel=1e-3)
    loaded = load_calibration(out, "h100-sxm")
    assert loaded.kernels["gemm.bf16"].t0_s == pytest.approx(
        profile.kernels["gemm.bf16"].t0_s * profile.served.launch * profile.served.group
    )
    assert any("runs.csv" in note for note in loaded.notes)


def test_a_moved_profile_is_moved_from_where_it_was_fitted(runs, tmp_path):
    first, second = str(tmp_path / "a.toml"), str(tmp_path / "b.toml")
    once = calibrate_points(runs, known={"framework": "vllm"}, out=first)
    again = calibrate_points(runs, known={"framework": "vllm"}, calibration=first, out=second)
    assert [m.factor for m in again.moved] == pytest.approx([m.factor for m in once.moved], rel=1e-2)


def test_two_engines_in_a_file_have_to_be_told_apart(runs):
    with pytest.raises(BadInput, match="--framework"):
        calibrate_points(runs)


@pytest.mark.parametrize(
    ("known", "out"),
    [({"hw": "h200-sxm"}, None), ({"framework": "vllm"}, "mine.json"), ({"hw": "h9000"}, None)],
)
def test_what_cannot_be_calibrated_is_refused(runs, known, out):
    with pytest.raises(BadInput):
        calibrate_points(runs, known=known, out=out)
