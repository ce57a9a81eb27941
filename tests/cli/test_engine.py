"""`kvroof engine`: a run that can be watched, read by a program, and traced."""

import importlib.util
import json

import pytest

SMALL = ("--requests", 3, "--prompt", 14, "--output", 5)


def test_a_run_shows_rounds_tables_requests_and_bytes(kvroof, tmp_path):
    trace = tmp_path / "run.json"
    answer = kvroof("engine", "llama-3.1-8b", *SMALL, "--prefix-share", 8, "--trace", trace)
    assert answer.code == 0, answer.err
    for shown in (
        "round by round",
        "Block tables",
        "0->",
        "TTFT",
        "ITL mean",
        "ledger, same lengths",
        "equal",
    ):
        assert shown in answer.out
    events = json.loads(trace.read_text())["traceEvents"]
    rounds = [event for event in events if event["ph"] == "X" and event["name"].startswith("round")]
    assert rounds
    assert {"pid", "tid", "ts", "dur"} <= rounds[0].keys()
    assert {event["tid"] for event in events if event["name"].startswith("prefill")} == {1, 2, 3}


def test_a_program_reads_the_run(kvroof):
    answer = kvroof("engine", "llama-3.1-8b", *SMALL, "--hand-off", "--json")
    assert answer.code == 0, answer.err
    run, first = answer.json["run"], answer.json["prefill_run"]
    assert [len(request["output"]) for request in run["requests"]] == [5, 5, 5]
    assert [request["ttft_s"] for request in run["requests"]] == [None] * 3
    assert all(request["ttft_s"] > 0 for request in first["requests"])
    assert run["allocated_bytes"] == run["ledger_bytes"]
    assert answer.json["peak"]["held_bytes"] == answer.json["peak"]["ledger_bytes"]
    assert len(answer.json["transfers"]) == 3
    assert {"request", "kv_len", "blocks"} <= run["rounds"][0]["tables"][0].keys()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--requests", 0), "--requests"),
        (("--prefix-share", 24), "--prefix-share"),
        (("--blocks", 0), "blocks"),
        (("--blocks", 2), "request"),
        (("--policy", "chunked", "--max-num-batched-tokens", 2), "--max-num-batched-tokens"),
    ],
)
def test_what_cannot_run_is_refused_in_one_line(kvroof, options, named):
    answer = kvroof("engine", "llama-3.1-8b", *options)
    assert answer.code == 2
    assert named in answer.err
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize(("model", "part"), [("deepseek-v3.2", "mla+dsa"), ("whisper-tiny", "cross")])
def test_a_model_that_the_engine_does_not_run_is_refused_by_its_part(kvroof, model, part):
    answer = kvroof("engine", model)
    assert answer.code == 2
    assert part in answer.err


def test_a_missing_library_comes_with_the_command_that_installs_it(kvroof, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr("kvroof.cli.engine.find_spec", lambda name: None if name == "flax" else found(name))
    answer = kvroof("engine", "llama-3.1-8b")
    assert answer.code == 2
    assert "pip install 'kvroof[engine]'" in answer.err
