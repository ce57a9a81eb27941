"""Words that are mistyped, given twice or short of a unit: one line says what was meant."""

import pytest

from kvroof.catalog import models
from kvroof.cli import deployed, disagg

M, H = "llama-3.1-8b", "h100-sxm"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("estiamte", M, H), "did you mean estimate"),
        (("plot", "rooflin", M, H), "did you mean roofline"),
        (("plot", "disagg", M, H), "did you mean pools"),
        (("plot", "simulate", M, H), "did you mean schedule"),
        (("fit", M, H, "--tensor-parallel-size", "2"), "did you mean --tp?"),
        (("fit", M, H, "--isl", "3000"), "did you mean --tokens?"),
        (("estimate", M, H, "--max-num-seqs", "3"), "did you mean --batch?"),
        (("disagg", M, "--hw", H), "did you mean --prefill or --decode?"),
        (("estimate", M, "--hw", H), "estimate MODEL HW"),
        (("report", M, H, "--ttft", "1s"), "kvroof optimize, disagg, simulate and plot pools"),
        (("kv", M, "--tokns", "3"), "--tokens"),
    ],
)
def test_a_word_that_is_called_otherwise_here_gets_its_name(kvroof, asked, said):
    answer = kvroof(*asked)
    assert (answer.code, answer.out) == (2, "")
    assert said in answer.err
    assert len(answer.err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("asked", "option"),
    [
        (("compare", M, "gemma-3-27b", "--hw", H, "--hw", "b200-sxm"), "--hw"),
        (("disagg", M, "--prefill", H, "--prefill", "h200-sxm"), "--prefill"),
        (("fit", M, H, "--engine", "vllm", "--engine", "sglang"), "--engine"),
        (("simulate", M, H, "--trace", "a.csv", "--trace", "b.csv"), "--trace"),
    ],
)
def test_no_name_is_dropped_for_a_later_one(kvroof, asked, option):
    answer = kvroof(*asked)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith(f"kvroof: {option}: was given 2 times")


def test_what_may_be_several_is_and_of_numbers_the_last_counts(kvroof):
    """A way out is added to the command that it mends."""
    assert kvroof("fit", M, H, "--seqs", "4", "--seqs", "5", "--json").json["seqs"] == 5
    again = kvroof("fit", M, H, "--kv-dtype", "bf16", "--kv-dtype", "fp8", "--json").json
    assert again == kvroof("fit", M, H, "--kv-dtype", "fp8", "--json").json


@pytest.mark.parametrize("verb", ["optimize", "disagg", "simulate"])
def test_a_time_without_a_unit_is_not_guessed(kvroof, verb):
    answer = kvroof(verb, M, H, "--tpot", "30")
    assert answer.code == 2
    assert answer.err == "kvroof: --tpot: 30 has no unit; write 30ms or 30s\n"
    assert kvroof("simulate", M, H, "--think", "30").code == 2
    assert kvroof("plot", "pools", M, H, "--tpot", "20ms,30", "--out", "x.html").code == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--capacity", "80"), "80 bytes?; write 80GB or 80GiB"),
        (("--capacity", "80G"), "write 80GB or 80GiB"),
        (("--capacity", "1.5 t"), "write 1.5TB or 1.5TiB"),
        (("--capacity", "80GB", "--reserve", "3"), "3 bytes?; write 3GB or 3GiB"),
        (("--capacity", "80GB", "--weights", "16"), "16 bytes?"),
    ],
)
def test_a_size_without_its_unit_is_asked_for(kvroof, words, said):
    answer = kvroof("fit", M, *words)
    assert answer.code == 2
    assert said in answer.err


def test_bytes_and_nothing_are_sizes(kvroof):
    ledger = kvroof("fit", M, "--capacity", "80000000000", "--reserve", "0", "--json").json
    assert (ledger["capacity_bytes"], ledger["reserve_bytes"]) == (80 * 10**9, 0)
    assert kvroof("fit", M, "--capacity", "80GB", "--reserve", "5B", "--json").json["reserve_bytes"] == 5


@pytest.mark.parametrize("verb", ["optimize", "disagg"])
@pytest.mark.parametrize(("share", "said"), [("0.99", "write 99"), ("0", "1 to 99"), ("100", "1 to 99")])
def test_a_share_is_not_a_percentage(kvroof, verb, share, said):
    answer = kvroof(verb, M, H, "--slo-percentile", share)
    assert answer.code == 2
    assert answer.err.startswith("kvroof: --slo-percentile: ")
    assert said in answer.err


@pytest.mark.parametrize("verb", ["optimize", "disagg", "simulate", "plot schedule"])
@pytest.mark.parametrize("rate", ["-3", "0", "nan", "often"])
def test_a_rate_that_cannot_be_is_refused_before_the_work(kvroof, monkeypatch, verb, rate):
    for module in (models, disagg, deployed):
        monkeypatch.setattr(module, "load_model", lambda *_, **__: pytest.fail("work began"))
    answer = kvroof(*verb.split(), M, H, "--rate", rate)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("kvroof: --rate: ")


def test_engines_are_known_by_any_case(kvroof):
    asked = ("fit", M, H, "--json", "--engine")
    assert kvroof(*asked, "vLLM").json == kvroof(*asked, "vllm").json
    assert kvroof("kv", M, "--allocator", "SGLang").code == 0
