"""Kernels and wires: the identity is the bound, and calibrated times are smooth and monotone."""

import jax
import numpy as np
import pytest

from kvroof.calibration.load import kernel_of, load_calibration
from kvroof.calibration.profile import calibration_names, read_profile
from kvroof.ground.record import register_pytrees
from kvroof.roofline.efficiency import IDENTITY, Kernel, Wire
from kvroof.roofline.plan import Plan
from kvroof.spec.workload import decode, prefill

PEAK, BW = 1e15, 4e12
ALL = [(n, f) for n in calibration_names() for f in read_profile(n).kernels]
SOME = ALL[:: max(1, len(ALL) // 40)]


def kernel(name: str, family: str) -> Kernel:
    return kernel_of(read_profile(name).kernels[family])


@pytest.mark.parametrize(("flops", "moved"), [(1e12, 1e9), (1e9, 1e9), (0, 0), (4e12, 1.6e10)])
def test_the_identity_is_the_bound(flops, moved):
    for family in ("gemm.bf16", "attention.decode", "moe.fp8"):
        seconds = IDENTITY.kernel(family).seconds(flops, moved, PEAK, BW, items=9, depth=9, scores=9)
        assert seconds == max(flops / PEAK, moved / BW)
    assert IDENTITY.wire("all_reduce").seconds(8e6, 8, 4e11, 2) == 2 * 7 / 8 * 8e6 / 4e11
    assert IDENTITY.host_step_s == IDENTITY.host_seq_s == 0


@pytest.mark.parametrize(("name", "family"), SOME)
def test_a_calibrated_time_is_never_below_the_bound(name, family):
    k = kernel(name, family)
    for flops, moved in ((1e9, 1e6), (1e12, 1e8), (1e10, 1e9)):
        assert k.seconds(flops, moved, PEAK, BW) >= max(flops / PEAK, moved / BW)


@pytest.mark.parametrize(("name", "family"), SOME)
@pytest.mark.parametrize("warm", [False, True])
def test_more_work_never_takes_less_time(name, family, warm):
    k, grid = kernel(name, family), np.logspace(3, 13, 300)
    assert (np.diff(k.seconds(1e9, grid, PEAK, BW, warm=warm)) >= 0).all()
    assert (np.diff(k.seconds(grid, 1e6, PEAK, BW, warm=warm)) >= 0).all()
    for part in ("items", "depth", "scores"):
        times = k.seconds(1e9, 1e6, PEAK, BW, warm=warm, **{part: grid[:90]})
        assert (np.diff(np.atleast_1d(times)) >= 0).all()


@pytest.mark.parametrize(("name", "family"), SOME)
def test_a_warm_cache_never_slows(name, family):
    k, grid = kernel(name, family), np.logspace(3, 12, 100)
    cold, warm = k.seconds(0, grid, PEAK, BW), k.seconds(0, grid, PEAK, BW, warm=True)
    assert (warm <= cold * (1 + 1e-12)).all()


@pytest.mark.parametrize("warm", [False, True])
def test_floats_numpy_and_jax_agree_and_gradients_are_finite(warm):
    register_pytrees()
    k = kernel("h200-sxm-vllm", "attention.prefill")
    with jax.enable_x64(True):

        def seconds(kernel, flops, moved, items, depth, scores):
            return kernel.seconds(flops, moved, PEAK, BW, items=items, depth=depth, scores=scores, warm=warm)

        for work in ((1e12, 1e8, 512.0, 2048.0, 1e9), (0.0, 1e6, 0.0, 0.0, 0.0), (0.0,) * 5):
            exact = seconds(k, *work)
            assert seconds(k, *(np.array([w]) for w in work))[0] == pytest.approx(exact, rel=1e-12)
            assert float(jax.jit(seconds)(k, *work)) == pytest.approx(exact, rel=1e-12)
            slopes = jax.grad(seconds, argnums=(0, 1, 2, 3, 4, 5))(k, *work)
            assert all(np.isfinite(leaf) for leaf in jax.tree_util.tree_leaves(slopes))


def test_a_sharp_soft_maximum_is_the_hard_one():
    soft = Kernel(hbm=0.8, compute=0.6, sharpness=30.0)
    hard = Kernel(hbm=0.8, compute=0.6)
    assert soft.seconds(1e12, 1e10, PEAK, BW) == pytest.approx(hard.seconds(1e12, 1e10, PEAK, BW), rel=1e-2)


def test_a_split_chain_grows_with_the_root_of_its_length():
    k = Kernel(sharpness=2.0, depth_s=1e-6, depth_power=0.5)
    assert k.seconds(0, 0, PEAK, BW, depth=4 * 1024 - 1) == pytest.approx(2e-6)


def test_a_wire_takes_the_cheaper_algorithm():
    wire = Wire(ring_s=1e-5, start_s=4e-6, per_rank=0.1, net=0.8)
    small, large = wire.seconds(1e3, 8, 4e11, 2), wire.seconds(1e9, 8, 4e11, 2)
    assert small == pytest.approx(4e-6 * 1.6 + 7 * 1e3 / 3.2e11)
    assert large == pytest.approx(1e-5 * 1.6 + 2 * 7 / 8 * 1e9 / 3.2e11)


def test_ranks_behind_one_bridge_share_it():
    crowded = Wire(net=1.0, crowding=2.0)
    assert crowded.seconds(8e6, 8, 1e11) == pytest.approx(16 * Wire().seconds(8e6, 8, 1e11))


@pytest.mark.parametrize("name", ["deepseek-v3.2", "deepseek-v4-flash", "t5-11b", "qwen3-next-80b-a3b"])
def test_no_operation_of_a_calibrated_step_runs_at_the_peak_for_want_of_a_kernel(name):
    """What has no kernel of its own is priced with its nearest relative's, indexers and scans too."""
    calibration = load_calibration("auto", "h200-sxm")
    plan = Plan.of(name, "h200-sxm", efficiency=calibration)
    encoder = 64 if name == "t5-11b" else 0
    for step in (prefill(1, 4096, encoder_len=encoder), decode(8, 4096, encoder_len=encoder)):
        ops = [timed.op for timed in plan.time(step)]
        names = {op.name for op in ops}
        bare = [o.name for o in ops if not o.collective and calibration.family(o.family or o.kind) is None]
        assert set(bare) <= {"host"}
        assert not encoder or "attention.cross" in names
