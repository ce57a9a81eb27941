"""`kvroof validate` and `kvroof calibrate --points` on the command line."""

import json
import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"

POINTS = """model,hw,framework,tp,isl,osl,concurrency,kv_dtype,ttft_ms,tpot_ms
llama-3.1-8b,h100-sxm,vllm,1,1024,256,1,auto,40,8.0
llama-3.1-8b,h100-sxm,vllm,1,1024,256,32,auto,150,12.5
llama-3.1-8b,h100-sxm,vllm,2,4096,256,32,fp8,300,14.0
qwen3-30b-a3b,h200-sxm,sglang,1,1024,256,16,auto,90,9.0
"""


@pytest.fixture
def points(tmp_path):
    path = tmp_path / "points.csv"
    path.write_text(POINTS, encoding="utf-8")
    return str(path)


def test_validation_has_the_keys_that_programs_read(kvroof, points):
    answer = kvroof("validate", "--points", points, "--by", "model,regime", "--json")
    assert (answer.code, answer.err) == (0, "")
    found = answer.json
    assert (found["points"], found["predicted"], found["left_out"]) == (4, 4, {})
    assert found["overall"]["tpot"].keys() == {"points", "mape", "median", "bias", "within"}
    assert {tuple(group["by"]) for group in found["groups"]} == {("model", "regime")}
    assert found["predictions"] == []


def test_rows_are_given_when_asked_for(kvroof, points):
    (first, *_) = kvroof("validate", "--points", points, "--rows", "--json").json["predictions"]
    assert first["point"]["tpot_s"] == pytest.approx(0.008)
    assert first["tpot_interval"][0] < first["tpot_s"] < first["tpot_interval"][1]


def test_the_table_says_the_error_and_what_it_is_not(kvroof, points):
    answer = kvroof("validate", "--points", points)
    assert answer.code == 0
    for words in ("4 of 4 measured points predicted", "TPOT", "1 sigma", "nothing is fitted"):
        assert words in answer.out


def test_without_a_file_the_published_points_are_judged(kvroof):
    found = kvroof("validate", "--by", "source", "--json").json
    assert found["predicted"] >= 20
    assert any("vLLM blog" in group["by"]["source"] for group in found["groups"])


def test_the_figure_is_one_file_that_needs_no_network(kvroof, points, tmp_path):
    out = tmp_path / "errors.html"
    assert kvroof("validate", "--points", points, "--plot", out).code == 0
    text = out.read_text(encoding="utf-8")
    assert "llama-3.1-8b on h100-sxm" in text
    assert "<script src=" not in text


def test_a_report_holds_every_class_of_evidence(kvroof, points, tmp_path):
    out = tmp_path / "accuracy.md"
    answer = kvroof("validate", "--points", points, "--report", out)
    assert answer.code == 0
    text = out.read_text(encoding="utf-8")
    for kind in ("parameters, catalog", "caches", "engine logs", "kernels, experts", "served, TPOT"):
        assert kind in answer.out
        assert f"| {kind} |" in text
    assert "llama-3.1-8b, h100-sxm, vllm, TP 2, 4,096/256, concurrency 32" in text
    first_table = text.split("\n\n")[2].splitlines()
    made = [row for row in first_table if not row.startswith("| served")]
    assert len(made) == 12
    (quoted,) = re.findall(r"^\| evidence \|.*?(?=\n\n)", README.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    for ours, theirs in zip(made, quoted.splitlines(), strict=True):
        assert ours == theirs, "the README quotes another row: copy the first table of the report"


def test_a_report_of_another_kind_is_refused_before_anything_is_computed(kvroof):
    answer = kvroof("validate", "--report", "accuracy.pdf")
    assert (answer.code, answer.out) == (2, "")
    assert "does not end in one of .html, .md" in answer.err


def test_what_a_benchmark_does_not_know_comes_from_options(kvroof, tmp_path):
    path = tmp_path / "result.json"
    result = {"model_id": "meta-llama/Llama-3.1-8B", "completed": 80, "max_concurrency": 8}
    result |= {"total_input_tokens": 80000, "total_output_tokens": 20000}
    result |= {"mean_ttft_ms": 60, "mean_tpot_ms": 9}
    path.write_text(json.dumps(result), encoding="utf-8")
    missing = kvroof("validate", "--points", path)
    assert missing.code == 2
    assert "--hw" in missing.err
    answer = kvroof("validate", "--points", path, "--hw", "h100-sxm", "--framework", "vllm", "--json")
    assert answer.json["predicted"] == 1


def test_a_few_points_make_a_profile_that_estimate_takes(kvroof, points, tmp_path):
    out = str(tmp_path / "mine.toml")
    asked = ("calibrate", "--points", points, "--hw", "h100-sxm", "--out", out)
    found = kvroof(*asked, "--json").json
    assert {"hardware", "device", "efficiency", "held_out_mape", "points", "path"} <= found.keys()
    assert (found["hardware"], found["points"], found["path"]) == ("h100-sxm", 3, out)
    assert found["efficiency"]["served"]["points"] == 3
    table = kvroof(*asked).out
    for words in (
        "What the points told",
        "start of every kernel",
        "before",
        "each point left out",
        "mine.toml",
    ):
        assert words in table
    plain, mine = (
        kvroof("estimate", "llama-3.1-8b", "h100-sxm", "--calibration", c, "--json").json
        for c in ("auto", out)
    )
    assert mine["calibration"]["name"] == "h100-sxm-vllm+points"
    assert mine["tpot_s"] != plain["tpot_s"]
    before, after = (
        kvroof("validate", "--points", points, "--hw", "h100-sxm", "--calibration", c, "--json").json[
            "overall"
        ]
        for c in ("auto", out)
    )
    assert after["tpot"]["mape"] < before["tpot"]["mape"]


@pytest.mark.parametrize(
    "args",
    [
        ("validate", "--points", "nowhere.csv"),
        ("validate", "--points", "{points}", "--by", "colour"),
        ("validate", "--points", "{points}", "--plot", "errors.pdf"),
        ("calibrate", "--points", "{points}"),
        ("calibrate", "--points", "{points}", "--from", "aiconfigurator"),
        ("calibrate", "--points", "{points}", "--hw", "h100-sxm", "--out", "mine.json"),
        ("calibrate", "--hw", "h200-sxm", "--tp", "2"),
        ("calibrate", "--quick", "--hw", "h200-sxm"),
        ("calibrate", "--from", "{points}"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(kvroof, points, args):
    answer = kvroof(*(arg.format(points=points) for arg in args))
    assert answer.code == 2
    assert answer.out == ""
    assert len(answer.err.splitlines()) == 1


def test_a_model_machine_or_engine_chooses_among_the_points(kvroof, points):
    for args, count in (
        (("--hw", "h100-sxm"), 3),
        (("--model", "Qwen/Qwen3-30B-A3B"), 1),
        (("--framework", "sglang", "--hw", "H200-SXM"), 1),
    ):
        assert kvroof("validate", "--points", points, *args, "--json").json["predicted"] == count
    assert kvroof("validate", "--points", points, "--hw", "a100-sxm-80gb").code == 2
