"""The local device, calibrated on made-up and real timings: what is fitted, what judges, what is written."""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from kvroof.calibration.build import Fitting, build
from kvroof.calibration.fit import choose
from kvroof.calibration.load import load_calibration
from kvroof.calibration.local import calibrate as local
from kvroof.calibration.local.bench import Effort, Timing
from kvroof.calibration.local.calibrate import calibrate_local, calibrate_shapes
from kvroof.calibration.local.collectives import as_messages, crossings, fastest_link, messages
from kvroof.calibration.local.device import local_device
from kvroof.calibration.local.host import line
from kvroof.calibration.local.measured import MeasuredHere, reached
from kvroof.calibration.local.priors import local_prior
from kvroof.calibration.local.shapes import (
    ACCELERATOR,
    DEFAULT,
    QUICK,
    Shapes,
    shapes_for,
)
from kvroof.calibration.points import SERVED_S
from kvroof.calibration.profile import Host
from kvroof.catalog.profiles import load_hardware
from kvroof.ground.errors import BadInput
from kvroof.roofline.efficiency import Kernel

H200 = load_hardware("h200-sxm")
FITTING = Fitting(share=local.SHARE, prior=local_prior, unlike=float("inf"))
FREE = Host(step_s=1e-4, seq_s=1e-6, source="stated by a test")
TINY = Shapes(
    products=((4, 64, 64), (16, 64, 128), (64, 128, 64), (32, 128, 128)),
    attention=(),
    layers=((4, 64),),
    dtypes=("fp32",),
    passes=(2**22,),
)
BRIEF = Effort(repeats=3, bench_s=0.01, limit_s=60)
KNOWN = Kernel(t0_s=5e-6, hbm=0.6, compute=0.5, sharpness=2.0)


def made_up(noise=0.0):
    """Return timings of the quick shapes on an H200 whose products are `KNOWN`, the host's calls free."""
    draw, found = np.random.default_rng(0), []
    for bench in QUICK.benches(2**25):
        peak = H200.peak_flops_per_s[bench.dtype]
        did = bench.work
        seconds = 50 * KNOWN.seconds(did.flops, did.hbm_bytes, peak, H200.hbm_bytes_per_s)
        seconds *= bench.inner * np.exp(noise * draw.standard_normal())
        if bench.family != "dispatch":
            found.append(Timing(bench=bench, seconds=seconds / bench.inner, shortest=seconds, repeats=3))
    return tuple(found)


def profile_of(timings):
    here = MeasuredHere(timings=timings, provenance="made up", version="1")
    return here, build(here, H200, "jax", fitting=FITTING, host=FREE)


def held_out(here, family):
    (points,) = (p for p in here.points(H200, "jax") if p.family == family)
    chosen = choose(points, FITTING.of(points), local_prior(family).mean)
    return sorted(set(range(len(points))) - set(chosen.tolist())), points


@pytest.mark.parametrize("family", ["gemm.fp32", "attention.decode.fp32"])
def test_points_that_judge_are_not_fitted(family):
    timings = made_up(noise=0.05)
    here, before = profile_of(timings)
    judges, points = held_out(here, family)
    assert 0.2 * len(points) <= len(judges) <= 0.5 * len(points)
    own = [i for i, t in enumerate(timings) if t.bench.family == family]
    moved = list(timings)
    for judge in judges:
        moved[own[judge]] = replace(moved[own[judge]], seconds=3 * moved[own[judge]].seconds)
    _, after = profile_of(tuple(moved))
    for name in ("t0_s", "hbm", "compute", "sharpness"):
        assert getattr(after.kernels[family], name) == getattr(before.kernels[family], name)
    assert after.kernels[family].held_out_mape > before.kernels[family].held_out_mape


def test_the_error_is_of_the_points_that_judge():
    from kvroof.calibration.load import kernel_of

    here, profile = profile_of(made_up(noise=0.1))
    judges, points = held_out(here, "gemm.fp32")
    rest = points.take(np.array(judges))
    ratio = rest.predict(kernel_of(profile.kernels["gemm.fp32"])) / rest.seconds
    long = rest.seconds > SERVED_S
    assert profile.kernels["gemm.fp32"].held_out == long.sum()
    assert profile.kernels["gemm.fp32"].held_out_mape == pytest.approx(np.abs(ratio[long] - 1).mean())


def test_a_kernel_of_the_form_is_found_again():
    _, profile = profile_of(made_up())
    assert profile.kernels["gemm.fp32"].held_out_mape < 0.1


def test_the_dispatch_of_a_program_is_no_kernels_time():
    timings = made_up()
    call = next(b for b in QUICK.benches(None) if b.family == "dispatch")
    here = MeasuredHere(
        timings=(*timings, Timing(bench=call, seconds=1e-4, shortest=1e-4, repeats=3)), provenance=""
    )
    one = next(t for t in timings if t.bench.inner > 1 and t.seconds > 1e-4)
    assert here.seconds(one) == pytest.approx(one.seconds - 1e-4 / one.bench.inner)


def test_a_machine_without_a_pass_over_memory_is_not_described():
    with pytest.raises(BadInput, match="copy"):
        reached([t for t in made_up() if t.bench.family.startswith("gemm")])


@pytest.mark.parametrize("shapes", [QUICK, DEFAULT, ACCELERATOR])
def test_every_family_has_points_to_fit_and_points_that_judge(shapes):
    families: dict[str, set[str]] = {}
    for bench in shapes.benches(2**25):
        assert bench.shape not in families.setdefault(bench.family, set())
        families[bench.family].add(bench.shape)
    kernels = {name: len(held) for name, held in families.items() if name not in ("copy", "read", "dispatch")}
    assert {"gemm.fp32", "gemm.bf16", "attention.decode.fp32", "attention.prefill.fp32"} <= kernels.keys()
    assert all(count - round(local.SHARE * count) >= 2 for count in kernels.values())


def test_a_hurry_measures_less():
    for platform in ("cpu", "gpu"):
        quick, whole = (len(shapes_for(platform, q).benches(2**25)) for q in (True, False))
        assert quick < whole
    assert local.QUICK.limit_s < 60


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Return a calibration of tiny shapes; the host's time is stated, since the engine compiles for long."""
    folder = tmp_path_factory.mktemp("here")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "_host", lambda *given: FREE)
        places = (str(folder / "mine.toml"), str(folder / "mine-hardware.toml"))
        return calibrate_shapes(local_device(), TINY, BRIEF, places=places)


def test_the_shapes_asked_for_are_measured_and_no_others(found):
    asked = [b for b in TINY.benches(2**25) if b.family not in ("copy", "read", "dispatch")]
    assert sorted((k.family, k.shape) for k in found.kernels) == sorted((b.family, b.shape) for b in asked)
    assert found.left_out == 0
    assert all(kernel.seconds > 0 and kernel.predicted_s > 0 for kernel in found.kernels)
    assert sum(kernel.fitted for kernel in found.kernels) == found.points


def test_what_is_written_is_read_again(found):
    machine = load_hardware(found.hardware_path)
    assert machine.name == found.hardware
    assert machine.memory_bytes == found.machine.memory_bytes
    assert machine.hbm_bytes_per_s == pytest.approx(found.reached.bytes_per_s, rel=1e-3)
    loaded = load_calibration(found.path, machine.name)
    assert loaded.kernels.keys() == found.rates.kernels.keys()
    for name, kernel in found.rates.kernels.items():
        assert loaded.kernels[name].hbm == pytest.approx(kernel.hbm, rel=1e-3)
    assert (loaded.host_step_s, loaded.host_seq_s) == (1e-4, 1e-6)
    assert loaded.name == f"{machine.name}-jax"


def test_a_profile_says_what_it_was_measured_with(found):
    assert found.efficiency.source.startswith("measured here")
    assert "jax" in found.efficiency.source
    assert found.profile is not None
    assert f"jax {local_device().jax_version}" in found.profile.hbm_bytes_per_s.source


def test_both_files_answer_an_estimate(found, kvroof):
    answer = kvroof(
        "estimate", "llama-3.1-8b", found.hardware_path, "--calibration", found.path, "--isl", 64, "--osl", 8,
        "--batch", 1, "--json",
    )  # fmt: skip
    assert answer.code in (0, 1), answer.err
    assert answer.json["calibration"]["name"] == found.efficiency.name
    assert kvroof("show", found.hardware_path).code == 0


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({"out": "mine.json"}, "--out"),
        ({"out": "nowhere/at/all/mine.toml"}, "--out"),
        ({"out": "a.toml", "hardware_out": "a.toml"}, "--hardware-out"),
        ({"hardware_out": "cpu.yaml"}, "--hardware-out"),
    ],
)
def test_files_are_refused_before_anything_is_measured(files, named, monkeypatch):
    monkeypatch.setattr(local, "calibrate_shapes", lambda *a, **k: pytest.fail("measured"))
    with pytest.raises(BadInput) as refused:
        calibrate_local(quick=True, **files)
    assert refused.value.where.startswith(named)


def test_a_missing_library_is_named_with_the_command_that_brings_it(monkeypatch):
    monkeypatch.setattr(local, "find_spec", lambda name: None)
    with pytest.raises(BadInput) as refused:
        calibrate_local(quick=True)
    assert refused.value.way_out == "pip install 'kvroof[engine]'"


def test_the_host_is_a_line_through_medians():
    x = np.repeat(np.arange(1.0, 9.0), 5)
    y = 2e-3 + 1e-4 * x
    y[::5] *= 3
    assert line(x, y) == pytest.approx((2e-3, 1e-4))
    assert line(x, 5e-3 - 1e-4 * x)[1] == 0


def test_host_times_come_from_rounds_of_the_engine():
    from kvroof.calibration.load import efficiency_of
    from kvroof.calibration.local.host import host_times
    from kvroof.engine.scaling import Scale

    _, profile = profile_of(made_up())
    free = efficiency_of(profile)
    small = Scale(hidden_size=16, num_layers=1, head_dim=2, vocab_size=16)
    host = host_times(H200, replace(free, host_step_s=0.0, host_seq_s=0.0), 1e-6, 1, small)
    assert 1e-6 <= host.step_s < 1
    assert "rounds of the engine" in host.source


def crossing(benches):
    """Return timings of messages over a link of 1 GB/s that starts in 50 us."""
    made = []
    for bench in benches:
        passes = 2 if "all_reduce" in bench.family else 1
        ranks, size = bench.work.items, bench.work.hbm_bytes
        seconds = 5e-5 + passes * (ranks - 1) / ranks * size / 1e9
        made.append(Timing(bench=bench, seconds=seconds, shortest=seconds, repeats=3))
    return made


def test_collectives_among_devices_become_wires():
    crossed = crossings(crossing(messages(QUICK.messages, 4)))
    assert {c.ranks for c in crossed} == {2, 4}
    rate = fastest_link(crossed)
    assert 0.8e9 < rate <= 1e9
    assert {m.collective for m in as_messages(crossed, rate, "1")} == {
        "all_reduce", "all_gather", "reduce_scatter", "all_to_all"
    }  # fmt: skip


def test_one_device_has_no_collective():
    assert messages(QUICK.messages, 1) == []
    assert fastest_link([]) is None


def test_two_devices_of_one_cpu_are_measured_with_their_link():
    program = """
from kvroof.calibration.local import calibrate as local
from kvroof.calibration.local import collectives
from kvroof.calibration.local.bench import Effort
from kvroof.calibration.local.device import local_device
from kvroof.calibration.local.shapes import Shapes
from kvroof.calibration.profile import Host
collectives.NAMES = ("all_reduce", "all_gather")
local._host = lambda *given: Host(step_s=1e-4, seq_s=0.0, source="stated")
tiny = Shapes(products=((64, 128, 128),), attention=(), layers=(), dtypes=("fp32",), passes=(2**22,),
              messages=(2**13, 2**15, 2**17, 2**20))
found = local.calibrate_shapes(local_device(), tiny, Effort(repeats=3, bench_s=0.01, limit_s=60))
assert found.machine.scale_up.domain == 2
print(sorted(found.efficiency.wires))
"""
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | flags, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['all_gather', 'all_reduce']"
