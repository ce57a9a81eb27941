"""`kvroof simulate` on the command line."""

import json

import pytest

ASKED = ("simulate", "llama-3.1-8b", "h100-sxm", "--osl", "8", "--isl", "256")
TIMES = {"mean", "p50", "p90", "p99"}


@pytest.mark.parametrize("policy", ["static", "continuous", "chunked", "disagg"])
def test_the_promised_keys_are_there(kvroof, policy):
    answer = kvroof(*ASKED, "--rate", "20", "--requests", "20", "--policy", policy, "--json")
    assert (answer.code, answer.err) == (0, "")
    ran = answer.json
    assert all(set(ran[key]) == TIMES for key in ("ttft_s", "tpot_s", "itl_s", "queue_s", "e2e_s"))
    assert ran["requests"] == ran["completed"] == 20
    assert {"goodput_rps", "tokens_per_s", "preemptions", "prefix_hit_rate", "makespan_s"} <= set(ran)


def test_the_same_seed_gives_the_same_run_and_another_one_another(kvroof):
    first, again, other = (
        kvroof(*ASKED, "--rate", "20", "--requests", "30", "--seed", seed, "--json").json
        for seed in ("1", "1", "2")
    )
    assert first == again != other


def test_a_trace_is_replayed_with_its_prefixes(kvroof, tmp_path):
    trace = tmp_path / "trace.jsonl"
    row = {"timestamp": 0, "input_length": 1024, "output_length": 4, "hash_ids": [1, 2]}
    later = {"timestamp": 4000, "input_length": 1536, "output_length": 4, "hash_ids": [1, 2, 3]}
    trace.write_text("\n".join(json.dumps(line) for line in (row, later)), "utf-8")
    ran = kvroof(*ASKED[:3], "--trace", str(trace), "--prefix-cache", "--json").json
    assert ran["completed"] == 2
    assert ran["prefix_hit_rate"] == pytest.approx(1024 / (1024 + 1536), rel=0.05)


def test_the_schedule_opens_in_a_trace_viewer(kvroof, tmp_path):
    out = tmp_path / "schedule.json"
    kvroof(*ASKED, "--concurrency", "4", "--requests", "8", "--out", str(out), "--json")
    events = json.loads(out.read_text("utf-8"))["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X"}
    assert list(tmp_path.iterdir()) == [out]


def test_people_get_a_table_with_the_definitions(kvroof):
    answer = kvroof(*ASKED, "--rate", "20", "--requests", "20", "--ttft", "1s", "--tpot", "50ms")
    assert "goodput (TTFT 1 s and TPOT 50 ms)" in answer.out
    assert "percentiles of gaps are over gaps" in answer.out


@pytest.mark.parametrize("json_output", [(), ("--json",)])
def test_it_answers_no_where_fewer_keep_the_limits_than_were_asked_for(kvroof, json_output):
    asked = (*ASKED, "--rate", "20", "--requests", "20", *json_output)
    assert kvroof(*asked).code == 0
    assert kvroof(*asked, "--ttft", "1us").code == 1
    assert kvroof(*asked, "--ttft", "10s").code == 0


def test_the_share_that_keeps_the_limits_is_said_first(kvroof):
    asked = (*ASKED, "--rate", "20", "--requests", "20", "--ttft", "1us")
    assert kvroof(*asked).out.startswith(
        "NO  0 of 20 requests (0.0%) keep TTFT 1 us, 90% are asked; all served"
    )
    assert ", 50% are asked" in kvroof(*asked, "--slo-percentile", "50").out
    asked = (*ASKED, "--rate", "20", "--requests", "20")
    median = f"{1e6 * kvroof(*asked, '--json').json['ttft_s']['p50'] + 1:.0f}us"
    share = 100 * kvroof(*asked, "--ttft", median, "--json").json["kept"] / 20
    assert 0 < share < 100
    for percent, code in ((share, 0), (share + 1, 1)):
        assert kvroof(*asked, "--ttft", median, "--slo-percentile", f"{percent:g}").code == code


def test_all_of_a_trace_is_asked_by_its_name(kvroof, tmp_path):
    trace = tmp_path / "trace.jsonl"
    row = {"timestamp": 0, "input_length": 30, "output_length": 4}
    trace.write_text("\n".join(json.dumps(row | {"timestamp": 1000 * n}) for n in range(3)), "utf-8")
    asked = (*ASKED[:3], "--trace", trace, "--json", "--requests")
    assert [kvroof(*asked, many).json["requests"] for many in ("all", "2")] == [3, 2]
    assert kvroof(*ASKED, "--rate", "2", "--requests", "all").err.startswith("kvroof: --requests all: ")


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ((), "--rate"),
        (("--rate", "1", "--concurrency", "2"), "--rate"),
        (("--rate", "1", "--requests", "0"), "--requests"),
        (("--rate", "-1"), "--rate"),
        (("--rate", "1", "--link", "400Gb/s"), "--policy"),
        (("--rate", "1", "--out", "/no/such/folder/x.json"), "/no/such/folder"),
        (("--trace", "no-such-file.csv"), "no-such-file.csv"),
    ],
)
def test_a_question_that_cannot_be_is_one_line(kvroof, options, word):
    answer = kvroof(*ASKED[:3], "--requests", "3", *options)
    assert answer.code == 2
    assert word in answer.err
    assert len(answer.err.strip().splitlines()) == 1


def test_a_traces_hashes_choose_the_block_unless_one_is_asked_for(kvroof, tmp_path):
    trace = tmp_path / "trace.jsonl"
    row = {"timestamp": 0, "input_length": 1030, "output_length": 4, "hash_ids": [1, 2, 3]}
    trace.write_text("\n".join(json.dumps(row | {"timestamp": 1000 * n}) for n in range(3)), "utf-8")
    asked = ("simulate", "llama-3.1-8b", "h100-sxm", "--trace", trace)
    lines = [line.strip() for line in kvroof(*asked).out.splitlines()]
    assert "- blocks of 16 tokens" in lines
    assert "blocks of 512 tokens; --block-size 16 is the engine's" in kvroof(*asked, "--prefix-cache").out
    assert "blocks of 32 tokens" in kvroof(*asked, "--prefix-cache", "--block-size", "32").out


@pytest.mark.parametrize(
    ("given", "where"),
    [
        (("--trace", "x.csv", "--isl", "256"), "--isl"),
        (("--trace", "x.csv", "--osl", "8"), "--osl"),
        (("--trace", "x.csv", "--seed", "1"), "--seed"),
        (("--concurrency", "2", "--seed", "1"), "--seed"),
        (
            ("--rate", "2", "--policy", "static", "--max-num-batched-tokens", "512"),
            "--max-num-batched-tokens",
        ),
        (("--rate", "2", "--swap-space", "8GiB"), "--swap-space"),
    ],
)
def test_an_option_that_nothing_would_read_is_refused(kvroof, given, where):
    answer = kvroof(*ASKED[:3], *given)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith(f"kvroof: {where}: ")


def test_what_is_preempted_is_swapped_if_asked(kvroof):
    crowd = (*ASKED[:3], "--rate", "30", "--requests", "60", "--isl", "1500", "--osl", "600")
    recomputed, swapped = (
        kvroof(*crowd, "--reserve", "58GB", "--preemption", how, "--json").json
        for how in ("recompute", "swap")
    )
    assert swapped["preemptions"] > 0
    assert swapped["makespan_s"] != recomputed["makespan_s"]


def test_two_pools_are_priced_by_one_rule(kvroof):
    out = kvroof(*ASKED[:3], "--rate", "2", "--requests", "3", "--policy", "disagg", "--decode", "mi300x").out
    assert "calibrated: h100-sxm with h100-sxm-vllm" in out
    assert "mi300x: times of a typical machine, not of this one" in out
