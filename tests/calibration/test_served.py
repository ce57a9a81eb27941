"""Points files: every format says the same, and what cannot be is refused with its row and column."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvroof.calibration.measured import gather, published
from kvroof.calibration.served import COLUMNS, read_points, read_row
from kvroof.ground.errors import BadInput

ROW = {
    "model": "llama-3.1-8b", "hw": "h100-sxm", "framework": "vllm", "tp": 2, "isl": 1024, "osl": 256,
    "concurrency": 16, "kv_dtype": "fp8", "ttft_ms": 120.5, "tpot_ms": 9.25,
}  # fmt: skip


@pytest.fixture
def write(tmp_path):
    def made(text, name="points.csv"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return made


def as_csv(*rows):
    names = list(dict.fromkeys(key for row in rows for key in row))
    lines = [",".join(str(row.get(name, "")) for name in names) for row in rows]
    return "\n".join([",".join(names), *lines])


def test_csv_json_lines_and_a_list_say_the_same(write):
    other = ROW | {"concurrency": 32}
    texts = (as_csv(ROW, other), f"{json.dumps(ROW)}\n{json.dumps(other)}\n", json.dumps([ROW, other]))
    readings = [read_points(write(text, f"{n}.txt")).points for n, text in enumerate(texts)]
    assert readings[0] == readings[1] == readings[2]


def test_milliseconds_become_seconds(write):
    (point,) = read_points(write(as_csv(ROW))).points
    assert (point.ttft_s, point.tpot_s) == pytest.approx((0.1205, 0.00925))


def test_what_a_file_says_wins_over_the_command_line(write):
    (point,) = read_points(write(as_csv(ROW)), {"tp": "8", "dp": "4", "weights_dtype": "fp8"}).points
    assert (point.tp, point.dp, point.weights_dtype) == (2, 4, "fp8")
    assert point.devices == 8


@pytest.mark.parametrize("spelled", ["trtllm", "TensorRT-LLM", "trt-llm"])
def test_an_engine_has_one_name(write, spelled):
    (point,) = read_points(write(as_csv(ROW | {"framework": spelled}))).points
    assert point.framework == "tensorrt-llm"


def test_vllms_benchmark_is_read_as_it_is(write):
    # The keys of `vllm bench serve --save-result`.
    result = {
        "backend": "openai-chat", "model_id": "meta-llama/Llama-3.1-8B", "num_prompts": 160, "completed": 160,
        "max_concurrency": 16, "total_input_tokens": 160 * 1000, "total_output_tokens": 160 * 250,
        "mean_ttft_ms": 150.0, "median_ttft_ms": 120.0, "mean_tpot_ms": 10.0, "duration": 60.0,
    }  # fmt: skip
    path = write(json.dumps(result), "result.json")
    (point,) = read_points(path, {"hw": "h100-sxm", "framework": "vllm", "tp": "2"}).points
    assert (point.model, point.isl, point.osl, point.concurrency) == (
        "meta-llama/Llama-3.1-8B",
        1000,
        250,
        16,
    )
    assert (point.waves, point.tp, point.framework) == (10, 2, "vllm")
    assert (point.ttft_s, point.tpot_s) == (0.150, 0.010)


def test_sglangs_benchmark_is_read_as_it_is(write):
    # The keys of SGLang's bench_serving, one object per line.
    line = {
        "backend": "sglang", "random_input_len": 1024, "random_output_len": 256, "max_concurrency": 8,
        "completed": 40, "total_input_tokens": 40 * 900, "total_output_tokens": 40 * 200,
        "mean_ttft_ms": 90.0, "mean_tpot_ms": 8.0,
    }  # fmt: skip
    text = "\n".join(json.dumps(line | {"max_concurrency": n}) for n in (8, 16))
    points = read_points(write(text, "r.jsonl"), {"hw": "h100-sxm", "model": "llama-3.1-8b"}).points
    assert [p.concurrency for p in points] == [8, 16]
    assert {p.framework for p in points} == {"sglang"}
    assert {(p.isl, p.osl) for p in points} == {(900, 200)}


def test_genai_perf_is_read_as_it_is(write):
    # The keys of genai-perf's profile_export_genai_perf.json.
    result = {
        "time_to_first_token": {"unit": "ms", "avg": 200.0, "p50": 180.0},
        "inter_token_latency": {"unit": "us", "avg": 11000.0},
        "input_sequence_length": {"unit": "tokens", "avg": 1000.4},
        "output_sequence_length": {"unit": "tokens", "avg": 199.6},
        "input_config": {"model": ["llama-3.1-8b"], "perf_analyzer": {"stimulus": {"concurrency": 12}}},
    }
    (point,) = read_points(write(json.dumps(result), "p.json"), {"hw": "h100-sxm"}).points
    assert (point.model, point.concurrency, point.isl, point.osl) == ("llama-3.1-8b", 12, 1000, 200)
    assert (point.ttft_s, point.tpot_s) == pytest.approx((0.2, 0.011))


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"hw": ""}, "hw"),
        ({"isl": "many"}, "isl"),
        ({"isl": 12.5}, "isl"),
        ({"concurrency": 0}, "concurrency"),
        ({"tpot_ms": -3}, "tpot_ms"),
        ({"ttft_ms": "nan"}, "ttft_ms"),
        ({"tp": 1e12}, "tp"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_row_and_column(write, change, key):
    with pytest.raises(BadInput) as error:
        read_points(write(as_csv(ROW, ROW | change)))
    assert error.value.key == key
    assert "row 2" in error.value.one_line()


def test_a_point_needs_one_of_the_times(write):
    with pytest.raises(BadInput, match="neither"):
        read_points(write(as_csv(ROW | {"ttft_ms": "", "tpot_ms": ""})))
    (point,) = read_points(write(as_csv(ROW | {"ttft_ms": ""}))).points
    assert point.ttft_s is None


@pytest.mark.parametrize("text", ["", "model,hw\n", "{", "[1, 2]", '{"model": "x"}', 'a,b\n"unclosed'])
def test_a_file_without_points_is_refused(write, text):
    with pytest.raises(BadInput):
        read_points(write(text))


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(BadInput, match="cannot be read"):
        read_points(tmp_path / "none.csv")


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(
        st.sampled_from(COLUMNS),
        st.one_of(st.text(max_size=8), st.integers(), st.floats(), st.none(), st.booleans()),
    )
)
def test_any_row_is_a_point_or_a_named_fault(row):
    try:
        point = read_row(row, "row")
    except BadInput:
        return
    assert point.isl >= 1
    assert point.ttft_s or point.tpot_s


def test_every_published_point_says_where_it_is_from():
    points = published()
    assert len(points) >= 20
    assert all(len(point.source) > 20 for point in points)


def test_without_a_file_the_published_points_are_taken():
    found = gather()
    assert set(published()) <= set(found.points)


RESULT = {"model_id": "meta-llama/Llama-3.1-8B", "completed": 80, "max_concurrency": 8}
RESULT |= {"total_input_tokens": 80000, "total_output_tokens": 20000, "mean_ttft_ms": 60, "mean_tpot_ms": 9}
ODD = ("1e400", "1" + "0" * 400, "1" + "0" * 5000, "-1", "NaN", "null", "[]", "{}", '"x"')


@pytest.mark.parametrize("odd", ODD, ids=lambda text: text[:8])
@pytest.mark.parametrize("key", RESULT)
def test_what_no_run_counts_is_passed_over_or_refused(tmp_path, key, odd):
    path = tmp_path / "result.json"
    path.write_text(json.dumps(RESULT | {key: "@"}).replace('"@"', odd), "utf-8")
    try:
        points = read_points(path, {"hw": "h100-sxm", "model": "llama-3.1-8b"}).points
    except BadInput:
        return
    assert all(point.isl >= 1 and point.concurrency >= 1 for point in points)
