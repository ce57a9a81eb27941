"""`kvroof engine` beside a calibration: each round with its prediction, padding counted as work."""

import pytest

from kvroof.calibration.profile import Calibration, Host, KernelTable, write_profile

SMALL = ("engine", "llama-3.1-8b", "--requests", 3, "--prompt", 14, "--output", 4)


@pytest.fixture
def mine(tmp_path):
    """Return a profile of an H200, which is not what this runs on: times are checked against nothing."""
    table = KernelTable(t0_s=1e-5, hbm=0.5, compute=0.5, sigma=0.1)
    profile = Calibration(
        name="mine", hardware="h200-sxm", framework="jax", source="stated by a test", made_with="a test",
        host=Host(step_s=1e-3, seq_s=1e-5, source="stated"),
        kernels=dict.fromkeys(("gemm.fp32", "attention.decode", "elementwise"), table),
    )  # fmt: skip
    path = tmp_path / "mine.toml"
    write_profile(profile, path)
    return path


def test_every_round_has_its_prediction(kvroof, mine):
    found = kvroof(*SMALL, "--calibration", mine, "--json").json
    predicted, run = found["predicted"], found["run"]
    assert found["prefill_predicted"] is None
    assert [done["index"] for done in predicted["rounds"]] == [done["index"] for done in run["rounds"]]
    assert [d["measured_s"] for d in predicted["rounds"]] == [d["seconds"] for d in run["rounds"]]
    assert predicted["measured_makespan_s"] == run["makespan_s"]
    total = sum(done["predicted_s"] for done in predicted["rounds"])
    assert predicted["predicted_makespan_s"] == pytest.approx(total)
    assert predicted["makespan_ratio"] == pytest.approx(total / run["makespan_s"])
    assert predicted["median_step_error"] is not None
    assert predicted["executed_tokens"] > predicted["tokens"]
    assert predicted["stand_ins"] == {
        "attention.prefill.fp32": "a bound", "attention.decode.fp32": "attention.decode"
    }  # fmt: skip


def test_a_person_sees_both_times_and_what_stood_in(kvroof, mine):
    out = kvroof(*SMALL, "--calibration", mine, "--hand-off").out
    for shown in ("predicted", "Predicted against measured", "prompts", "with padding", "by a relative"):
        assert shown in out
    assert "no prediction" not in out


def test_a_hand_off_is_predicted_on_both_sides(kvroof, mine):
    found = kvroof(*SMALL, "--calibration", mine, "--hand-off", "--json").json
    assert {done["kind"] for done in found["prefill_predicted"]["rounds"]} == {"prefill"}
    assert {done["kind"] for done in found["predicted"]["rounds"]} == {"decode"}


def test_without_a_calibration_one_line_says_how_to_get_one(kvroof):
    answer = kvroof(*SMALL)
    assert "kvroof calibrate --quick --out mine.toml" in " ".join(answer.out.split())
    assert "predicted" not in answer.out.partition("Assumptions")[0]
    assert kvroof(*SMALL, "--json").json["predicted"] is None


def test_a_wider_engine_can_be_asked_for(kvroof, mine):
    found = kvroof(*SMALL, "--hidden-size", 32, "--layers", 1, "--vocab-size", 64, "--json").json
    assert found["layers"] == 1
    tiny = found["params_total"]
    assert kvroof(*SMALL, "--json").json["params_total"] > tiny


@pytest.mark.usefixtures("few_kernels")
def test_this_device_can_be_measured_first(kvroof):
    found = kvroof(*SMALL, "--calibrate", "--json").json
    assert found["predicted"]["calibration"].endswith("-jax")
    assert found["predicted"]["predicted_makespan_s"] > 0


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--hardware", "h100-sxm"), "--hardware"),
        (("--calibration", "nowhere.toml"), "nowhere.toml"),
        (("--calibration", "h200-sxm-vllm", "--calibrate"), "--calibrate"),
        (("--hidden-size", 4), "--hidden-size"),
        (("--layers", 0), "--layers"),
        (("--vocab-size", 1), "--vocab-size"),
    ],
)
def test_what_cannot_be_predicted_with_is_refused_in_one_line(kvroof, options, named):
    answer = kvroof(*SMALL, *options)
    assert answer.code == 2
    assert named in answer.err
    assert answer.err.count("\n") == 1


def test_a_machine_of_no_catalog_is_looked_for_beside_its_calibration(kvroof, mine, tmp_path):
    unknown = tmp_path / "other.toml"
    unknown.write_text(mine.read_text("utf-8").replace("h200-sxm", "cpu-of-nobody"), "utf-8")
    answer = kvroof(*SMALL, "--calibration", unknown)
    assert answer.code == 2
    assert "give --hardware FILE" in answer.err
    from kvroof.catalog.names import data_folder

    profile = (data_folder("hardware") / "h200-sxm.toml").read_text("utf-8")
    beside = tmp_path / "other-hardware.toml"
    beside.write_text(
        profile.replace('"h200-sxm"', '"cpu-of-nobody"').replace("NVIDIA H200", "None"), "utf-8"
    )
    found = kvroof(*SMALL, "--calibration", unknown, "--json").json
    assert found["predicted"]["hardware"] == "cpu-of-nobody"
