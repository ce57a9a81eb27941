"""`kvroof disagg` on the command line."""

import pytest

ASKED = ("disagg", "llama-3.1-8b", "--max-devices", "4", "--tp", "1", "--break-even", "none")


def test_the_promised_keys_are_there(kvroof):
    answer = kvroof(*ASKED, "--isl", "4000", "--osl", "500", "--json")
    assert (answer.code, answer.err) == (0, "")
    found = answer.json
    for way in ("aggregated", "disaggregated"):
        assert {"goodput_rps_per_device", "tokens_per_s_per_device", "ttft_s", "tpot_s", "devices"} <= set(
            found[way]
        )
    two = found["disaggregated"]
    assert two["prefill_instances"] + two["decode_instances"] <= 4
    assert found["kv_bytes_per_request"] == 4000 * 131_072  # before replication over ranks
    assert found["verdict"] in ("aggregate", "disaggregate", "tie")
    assert found["break_even"] == []
    assert found["assumptions"]


def test_people_get_the_verdict_first_with_its_margin(kvroof):
    out = kvroof(*ASKED).out
    assert out.splitlines()[0].split("  ")[0] in ("TIE", "ONE POOL", "TWO POOLS")
    assert "give or take" in out.splitlines()[0]
    assert "of the same 4 devices" in out


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--max-devices", "1"), "--max-devices"),
        (("--tp", "x"), "--tp"),
        (("--tp", "3"), "--tp"),
        (("--price", "h100-sxm"), "--price"),
        (("--price", "h200-sxm=2"), "--price"),
        (("--prefix-hit", "1.5"), "--prefix-hit"),
        (("--isl", "long"), "--isl"),
        (("--ttft", "1us", "--tpot", "1us"), "--ttft/--tpot"),
    ],
)
def test_a_question_that_cannot_be_is_one_line(kvroof, options, word):
    answer = kvroof(*ASKED, *options)
    assert answer.code == 2
    assert word in answer.err
    assert len(answer.err.strip().splitlines()) == 1
