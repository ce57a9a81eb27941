"""`kvroof calibrate`: points in, a profile and its held-out error out."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvroof.calibration.calibrate import calibrate
from kvroof.calibration.load import load_calibration
from kvroof.cli.calibrate import command
from kvroof.ground.errors import BadInput

SAMPLE = str(Path(__file__).parent / "data" / "h200_sxm.csv")


def test_a_machine_is_calibrated_from_its_own_points(tmp_path):
    out = str(tmp_path / "mine.toml")
    answer = calibrate(SAMPLE, "h200-sxm", "mine", out=out)
    assert answer.path == out
    assert answer.points == 32 * 6
    assert answer.held_out_mape["attention.decode"] < 0.1
    loaded = load_calibration(out, "h200-sxm")
    assert loaded is not None
    assert loaded.name == "h200-sxm-mine"
    assert loaded.mape.keys() == answer.held_out_mape.keys()


def test_the_json_has_the_keys_that_programs_read(tmp_path):
    out = str(tmp_path / "mine.toml")
    done = CliRunner().invoke(command, ["--from", SAMPLE, "--hw", "h200-sxm", "--out", out, "--json"])
    found = json.loads(done.output)
    assert {"hardware", "device", "efficiency", "held_out_mape", "points", "path"} <= found.keys()
    assert found["hardware"] == "h200-sxm"
    assert found["efficiency"]["kernels"]["gemm.bf16"]["hbm"] < 1


def test_the_table_says_what_the_points_did_not_tell():
    done = CliRunner().invoke(command, ["--from", SAMPLE, "--hw", "h200-sxm"])
    assert done.exit_code == 0
    assert "attention.decode" in done.output
    assert "not told by the points" in done.output


@pytest.mark.parametrize(
    ("source", "count", "out"), [("elsewhere", 32, None), (SAMPLE, 1, None), (SAMPLE, 32, "mine.json")]
)
def test_what_cannot_be_calibrated_is_refused(source, count, out):
    with pytest.raises(BadInput):
        calibrate(source, "h200-sxm", count=count, out=out)
