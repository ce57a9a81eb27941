"""`kvroof calibrate` of the local device: two files, the commands that use them, and what is refused."""

from pathlib import Path

import pytest

from kvroof.calibration.load import load_calibration
from kvroof.catalog.profiles import load_hardware

pytestmark = pytest.mark.usefixtures("few_kernels")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_alone_it_measures_this_device_and_says_what_to_do_next(kvroof, here):
    answer = kvroof("calibrate", "--quick", "--out", "mine.toml")
    assert answer.code == 0, answer.err
    machine = load_hardware("mine-hardware.toml")
    assert load_calibration("mine.toml", machine.name) is not None
    for shown in ("The device", "held-out error", "gemm.fp32", "kvroof show ./mine-hardware.toml", "jax"):
        assert shown in answer.out
    assert max(map(len, answer.out.splitlines())) <= 120
    (command,) = [line for line in answer.out.splitlines() if "kvroof estimate" in line]
    words = command.strip(" -").split()[1:]
    estimate = kvroof(*words)
    assert estimate.code in (0, 1), estimate.err
    assert f"{machine.name}-jax" in estimate.out


def test_a_program_reads_what_was_measured(kvroof, here):
    found = kvroof("calibrate", "--quick", "--out", "a.toml", "--hardware-out", "b.toml", "--json").json
    assert {"hardware", "device", "efficiency", "held_out_mape", "points", "path"} <= found.keys()
    assert (found["path"], found["hardware_path"]) == ("a.toml", "b.toml")
    assert found["efficiency"]["host"]["step_s"] == 1e-4
    assert found["profile"]["hbm_bytes_per_s"]["value"] == found["machine"]["hbm_bytes_per_s"]
    fitted = [kernel["fitted"] for kernel in found["kernels"]]
    assert True in fitted
    assert False in fitted
    assert found["held_out_mape"].keys() == {kernel["family"] for kernel in found["kernels"]}
    assert Path("b.toml").read_text("utf-8").startswith("# Written by kvroof calibrate")


def test_without_a_file_nothing_is_written_and_it_says_so(kvroof, here):
    answer = kvroof("calibrate", "--quick")
    assert answer.code == 0
    assert "give --out mine.toml" in answer.out
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--quick", "--hw", "h100-sxm"), "--quick"),
        (("--quick", "--points", "runs.csv"), "--quick"),
        (("--hardware-out", "cpu.toml", "--from", "points.csv"), "--hardware-out"),
        (("--tp", "2"), "--tp"),
        (("--calibration", "none"), "--calibration"),
        (("--count", "8"), "--hw"),
        (("--out", "mine.json"), "--out"),
    ],
)
def test_options_of_another_kind_of_calibration_are_refused_in_one_line(kvroof, here, options, named):
    answer = kvroof("calibrate", *options)
    assert answer.code == 2
    assert named in answer.err
    assert answer.err.count("\n") == 1
