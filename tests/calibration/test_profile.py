"""Profiles: what is written is read back, every shipped one passes, and slips are named."""

import tomllib

import pytest

from kvroof.calibration.build import pooled
from kvroof.calibration.load import (
    RELATIVES,
    TRANSFER_SIGMA,
    efficiencies,
    known_calibration,
    load_calibration,
)
from kvroof.calibration.profile import (
    calibration_folder,
    calibration_names,
    check_calibration,
    profile_toml,
    read_profile,
    write_profile,
)
from kvroof.catalog.profiles import hardware_names, load_hardware
from kvroof.ground.errors import BadInput, UnknownName
from kvroof.roofline.efficiency import Efficiency, Kernel

SHIPPED = calibration_names()
MEASURED = [name for name in SHIPPED if name != "generic"]
GOOD = tomllib.loads(profile_toml(read_profile("h200-sxm-vllm")))


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_profile_passes_the_checker(name):
    profile = read_profile(name)
    assert profile.name == name
    assert profile.hardware in {*hardware_names(), ""}
    assert "elementwise" in profile.kernels


@pytest.mark.parametrize("name", MEASURED)
def test_every_shipped_family_says_how_far_off_it_is(name):
    for family, table in read_profile(name).kernels.items():
        assert table.stated or (table.points == 32 and table.held_out_mape is not None), family
        assert table.sigma > 0


@pytest.mark.parametrize("name", ["h200-sxm-vllm", "generic"])
def test_a_profile_that_is_written_is_read_back(name, tmp_path):
    profile = read_profile(name)
    write_profile(profile, tmp_path / "copy.toml")
    assert read_profile(str(tmp_path / "copy.toml")) == profile
    assert profile_toml(profile) == (calibration_folder() / f"{name}.toml").read_text()


def test_quotes_and_backslashes_survive():
    odd = check_calibration(GOOD | {"notes": ['a "quoted" \\ note, é']}, "x")
    assert check_calibration(tomllib.loads(profile_toml(odd)), "x") == odd


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"hbm": 1.2}, "kernels.gemm.bf16.hbm"),
        ({"t0_s": 4.3}, "kernels.gemm.bf16.t0_s"),
        ({"sharpness": 0.5}, "kernels.gemm.bf16.sharpness"),
        ({"hmb": 0.8}, "hmb"),
        ({"hbm": "0.8"}, "hbm"),
        ({"compute": float("nan")}, "kernels.gemm.bf16.compute"),
    ],
)
def test_a_slip_is_named(change, key):
    kernels = GOOD["kernels"] | {"gemm.bf16": GOOD["kernels"]["gemm.bf16"] | change}
    with pytest.raises(BadInput, match=key.replace(".", r"\.")):
        check_calibration(GOOD | {"kernels": kernels}, "mine.toml")


@pytest.mark.parametrize("name", ["h200-sxm-vlm", "../x", "x/y.toml", "auto.toml"])
def test_a_profile_that_is_not_there_is_one_error(name):
    with pytest.raises(BadInput):
        read_profile(name)


def test_auto_takes_the_machines_own_profile_vllms_first():
    found = load_calibration("auto", "h200-sxm")
    assert isinstance(found, Efficiency)
    assert found.name == "h200-sxm-vllm"
    asked = load_calibration("auto", "h200-sxm", framework="sglang")
    assert asked is not None
    assert asked.name == "h200-sxm-sglang"


@pytest.mark.parametrize("name", ["tpu-v5e", "mi300x", "trainium2"])
def test_auto_has_nothing_for_chips_without_relatives(name):
    assert load_calibration("auto", name) is None


def test_none_is_a_bound():
    assert load_calibration("none", "h200-sxm") is None


@pytest.mark.parametrize("chip", RELATIVES)
def test_a_relative_stands_in_with_a_wider_error_and_says_so(chip):
    load_hardware(chip)
    found, own = load_calibration("auto", chip), load_calibration("auto", RELATIVES[chip])
    assert found is not None
    assert own is not None
    assert chip in (found.name or "")
    assert "transferred" in found.notes[0]
    assert all(found.sigma[f] >= max(own.sigma[f], TRANSFER_SIGMA) for f in own.sigma)
    assert (found.held_out_mape or 0) > (own.held_out_mape or 0)


def test_a_bound_is_never_compared_with_a_prediction():
    def names(calibration, *machines):
        return [found.name for found in efficiencies(calibration, machines).values()]

    assert names("auto", "mi300x") == [None]
    assert names("auto", "mi300x", "tpu-v5e") == [None, None]
    assert names("auto", "h100-sxm", "mi300x") == ["h100-sxm-vllm", "generic"]
    assert names("auto", "h100-sxm", "h200-sxm") == ["h100-sxm-vllm", "h200-sxm-vllm"]
    assert names("none", "h100-sxm", "mi300x") == [None, None]


def test_an_unknown_calibration_gets_the_nearest_names():
    with pytest.raises(UnknownName, match="h200-sxm-vllm"):
        known_calibration("h200-sxm-vlm")
    assert known_calibration("auto") == "auto"


def test_a_pool_of_one_is_that_profile_without_its_cache_and_loans():
    one = read_profile("h200-sxm-vllm")
    pool = pooled([one], "one")
    own = one.kernels["attention.decode"]
    kernel = pool.kernels["attention.decode"]
    assert (kernel.t0_s, kernel.hbm, kernel.llc_bytes) == (own.t0_s, own.hbm, 0.0)
    assert not any(one.kernels[f].borrowed for f in pool.kernels)


def test_families_fall_back_to_relatives_and_then_to_shares():
    found = load_calibration("h200-sxm-vllm", "h200-sxm")
    assert found is not None
    assert found.family("attention.decode.fp8") == "attention.decode.fp8"
    assert found.family("attention.prefill.int8") == "attention.prefill"
    assert found.family("gemm.int8") == "gemm.bf16"
    assert found.family("moe.nvfp4") == "moe.fp8_block"
    assert found.family("scan") == found.family("vector") == "elementwise"
    assert Efficiency(hbm=0.5).kernel("gemm.bf16") == Kernel(hbm=0.5)
