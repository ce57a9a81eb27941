"""`kvroof optimize` and `kvroof estimate --sensitivity` as a user runs them."""

import csv
import json

import pytest

M, H = "llama-3.1-8b", "h100-sxm"
ONE = ("--isl", 1000, "--osl", 200, "--tp", 1, "--pp", 1, "--chunk", "whole")
BEST = """
    model hw tp pp ep dp devices batch isl osl chunk tokens_per_s tokens_per_s_per_device ttft_s tpot_s
    cost_per_mtok
""".split()


@pytest.fixture
def optimize(kvroof):
    """Return a function that asks `kvroof optimize` for JSON."""

    def ask(*args, code=0, model=M, hw=(H,)):
        answer = kvroof("optimize", model, *hw, *args, "--json")
        assert (answer.code, answer.err) == (code, "")
        return answer.json

    return ask


def test_the_promised_keys_are_there(optimize):
    found = optimize(*ONE, "--tpot", "20ms", "--verify")
    assert found["feasible"] is True
    assert set(BEST) <= set(found["best"])
    assert found["binding"] == ["tpot"]
    assert found["evaluations"] > 0
    assert 0 <= found["exhaustive_gap"] <= 0.005
    assert {"hbm_bandwidth", "compute", "memory", "tpot"} == set(found["shadow_prices"])
    for price in found["shadow_prices"].values():
        assert set(price) == {"value", "unit"}
    assert optimize(*ONE, "--tpot", "20ms")["exhaustive_gap"] is None


def test_the_defaults_are_those_of_an_estimate(optimize):
    best = optimize("--max-devices", 1)["best"]
    assert (best["isl"], best["osl"], best["devices"]) == (2048, 256, 1)
    assert best["cost_per_mtok"] is None


def test_what_cannot_be_kept_exits_with_1_and_still_shows_the_nearest(kvroof, optimize):
    found = optimize(*ONE, "--tpot", "1ms", code=1)
    assert found["feasible"] is False
    assert found["best"]["batch"] == 1
    assert found["excess"]["tpot"] > 1
    assert found["ways_out"][0]["option"].startswith("--tpot ")
    answer = kvroof("optimize", M, H, *ONE, "--tpot", "1ms")
    assert answer.code == 1
    assert answer.out.startswith("NO ")
    assert found["ways_out"][0]["option"] in answer.out


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--objective", "cost"), "--price"),
        (("--price", "b200-sxm=3"), "b200-sxm"),
        (("--price", "h100-sxm=x"), "--price"),
        (("--price", "h100-sxm=inf"), "is no price"),
        (("--isl", "1000/500"), "p90"),
        (("--isl", "many"), "--isl"),
        (("--slo-percentile", "100"), "--slo-percentile"),
        (("--chunk", "some"), "--chunk"),
        (("--utilization", "1.5"), "--utilization"),
        (("--rate", "0"), "--rate"),
        (("--rate", "1", "--verify"), "--rate"),
        (("--maximize", "batch", "--objective", "latency"), "--maximize"),
        (("--lengths-from", "nowhere.csv"), "nowhere.csv"),
        (("--kv-dtype", "fp7"), "fp7"),
        (("--table", "points.txt"), "points.txt"),
    ],
)
def test_what_cannot_be_asked_is_one_line_and_exit_2(kvroof, args, said):
    answer = kvroof("optimize", M, H, *args)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.count("\n") == 1
    assert said in answer.err


def test_an_unknown_machine_is_corrected(kvroof):
    answer = kvroof("optimize", M, "h10-sxm")
    assert answer.code == 2
    assert "h100-sxm" in answer.err


def test_prices_make_a_cost_and_several_machines_are_compared(optimize):
    found = optimize(
        *ONE,
        "--tpot",
        "50ms",
        "--objective",
        "cost",
        "--price",
        "h100-sxm=3",
        "--price",
        "l40s=9",
        hw=(H, "l40s"),
    )
    best = found["best"]
    assert best["hw"] == H
    assert best["cost_per_mtok"] == pytest.approx(3 / 3600 / best["tokens_per_s_per_device"] * 1e6)
    assert [other["hw"] for other in found["others"]] == ["l40s"]
    assert found["shadow_prices"]["hbm_bandwidth"]["value"] < 0


def test_each_machine_says_what_it_is_priced_with(optimize):
    said = optimize(*ONE, hw=(H, "mi300x"))["assumptions"]
    assert said[:2] == [
        "calibrated: h100-sxm with h100-sxm-vllm",
        "mi300x: times of a typical machine, not of this one",
    ]


def test_a_shared_decode_context_is_in_the_record_the_words_and_the_table(kvroof, tmp_path):
    table = tmp_path / "points.csv"
    asked = ("optimize", "llama-3.1-70b", H, *ONE[:4], "--tp", 16, "--pp", 1, "--max-devices", 16, "--dcp", 2)
    found = kvroof(*asked, "--chunk", "whole", "--table", table, "--json").json
    assert (found["best"]["tp"], found["best"]["dcp"]) == (16, 2)
    assert {row["dcp"] for row in csv.DictReader(table.read_text().splitlines())} == {"2"}
    assert "tp 16, dcp 2" in kvroof(*asked, "--chunk", "whole").out


def test_narrower_caches_can_be_compared(optimize):
    found = optimize(*ONE, "--kv-dtype", "auto", "--kv-dtype", "fp8", "--maximize", "batch")
    assert found["best"]["kv_dtype"] == "fp8"
    assert found["binding"] == ["memory"]


def test_the_longest_context_of_a_batch(optimize):
    few, many = (
        optimize(*ONE, "--maximize", "context", "--batch", batch, "--ttft", "5s")["best"] for batch in (1, 16)
    )
    assert (few["batch"], many["batch"]) == (1, 16)
    assert few["isl"] >= many["isl"]


def test_a_rate_gives_the_fewest_devices(optimize):
    limits = ("--ttft", "1s", "--tpot", "40ms")
    few, many = (optimize(*ONE, *limits, "--rate", rate)["best"]["devices"] for rate in (2, 80))
    assert few <= many
    short = optimize(*ONE, *limits, "--rate", 80, "--max-devices", 1, code=1)
    assert short["ways_out"][0]["to"] == many


def test_lengths_come_as_percentiles_or_from_a_trace(optimize, tmp_path):
    spread = optimize("--isl", "1000/3000", "--osl", "200/500", "--tp", 1, "--pp", 1, "--chunk", "whole")
    assert spread["best"]["isl"] > 1000
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n0,800,100\n1,1200,300\n")
    read = optimize("--lengths-from", trace, "--tp", 1, "--pp", 1, "--chunk", "whole")
    assert (read["best"]["isl"], read["best"]["osl"]) == (1000, 200)


def test_every_evaluated_point_can_be_written(optimize, tmp_path):
    path = tmp_path / "points.csv"
    found = optimize(*ONE, "--tpot", "20ms", "--table", path)
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert {row["hw"] for row in rows} == {H}
    best = found["best"]
    assert any(float(row["tpot_s"]) == best["tpot_s"] and row["feasible"] == "True" for row in rows)


def test_the_table_for_people_says_what_binds_and_what_more_is_worth(kvroof):
    answer = kvroof("optimize", M, H, *ONE, "--tpot", "20ms", "--verify")
    assert answer.code == 0
    for words in (
        "YES",
        "the TPOT limit",
        "per GB/s of HBM",
        "evaluations of the step model",
        "whole points",
    ):
        assert words in answer.out


def test_an_estimate_gives_its_elasticities(kvroof, monkeypatch):
    monkeypatch.setattr("kvroof.search.sweep.keep_compilations", lambda folder: None)
    answer = kvroof("estimate", M, H, "--calibration", "none", "--osl", 32, "--sensitivity", "--json")
    slopes = answer.json["sensitivity"]["tpot"]
    assert slopes["hbm_bandwidth"] + slopes["compute"] + slopes["link"] == pytest.approx(-1)
    assert "sensitivity" not in json.loads(kvroof("estimate", M, H, "--json").out)


@pytest.mark.parametrize("options", [("--chunk", 512), ("--spec-tokens", 2)])
def test_what_has_no_elasticities_is_refused_before_the_estimate(kvroof, monkeypatch, options):
    monkeypatch.setattr("kvroof.cli.estimate.estimate", lambda *a, **k: pytest.fail("the estimate ran"))
    refused = kvroof("estimate", M, H, "--sensitivity", *options)
    assert (refused.code, "--sensitivity" in refused.err) == (2, True)


def test_the_best_point_comes_with_the_line_that_starts_a_replica(optimize):
    found = optimize(*ONE, "--tpot", "20ms", "--engine", "vLLM")
    best, (line,) = found["best"], found["commands"]
    assert line.startswith("vllm serve meta-llama/")
    assert f"--max-num-seqs {best['batch']} " in line
    assert f"--tensor-parallel-size {best['tp']}" in line
    assert f"--max-model-len {best['isl'] + best['osl']:.0f} " in line
    assert "commands" not in optimize(*ONE, "--tpot", "20ms")


def test_with_a_rate_a_replica_admits_more_than_the_mean_in_flight(optimize):
    limits = ("--ttft", "1s", "--tpot", "40ms", "--engine", "vllm")
    found = optimize(*ONE, *limits, "--rate", 10)
    best, (line,) = found["best"], found["commands"]
    assert best["max_num_seqs"] > best["batch"] / best["replicas"]
    assert f"--max-num-seqs {best['max_num_seqs']} " in line


def test_a_frontier_is_all_that_none_beats(kvroof):
    asked = ("optimize", "llama-3.1-8b", "h100-sxm", "--max-devices", "1", "--frontier", "interactivity")
    found = kvroof(*asked, "--json").json
    x, y = ([point[axis] for point in found["points"]] for axis in "xy")
    assert x == sorted(x)
    assert y == sorted(y, reverse=True)
    shown = kvroof(*asked)
    assert (shown.code, shown.err) == (0, "")
    assert f"{len(x)} points that none beats" in shown.out
    assert found["x_axis"] in " ".join(shown.out.split())


@pytest.mark.parametrize("more", [("--rate", "4"), ("--verify",), ("--engine", "vllm")])
def test_a_frontier_is_not_one_point(kvroof, more):
    answer = kvroof("optimize", "llama-3.1-8b", "h100-sxm", "--frontier", "ttft", *more)
    assert (answer.code, answer.out) == (2, "")
    assert "--frontier" in answer.err
