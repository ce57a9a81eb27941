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
    assert "within the model's error (one sigma: about two in three)" in " ".join(out.split())
    assert "of the same 4 devices" in out


def test_a_bound_is_not_held_against_a_prediction(kvroof):
    both = kvroof(*ASKED, "--decode", "mi300x", "--json").json
    assert both["calibrations"] == {"h100-sxm": "h100-sxm-vllm", "mi300x": "generic"}
    assert "calibrated: h100-sxm with h100-sxm-vllm" in both["assumptions"]
    assert "mi300x: times of a typical machine, not of this one" in both["assumptions"]
    bounds = kvroof(*ASKED, "--decode", "mi300x", "--calibration", "none", "--json").json
    assert set(bounds["calibrations"].values()) == {None}
    assert bounds["assumptions"][0].startswith("a bound")


def test_prices_of_both_chips_make_it_a_comparison_at_equal_cost(kvroof):
    prices = ("--price", "h100-sxm=4", "--price", "h200-sxm=2")
    found = kvroof(*ASKED, "--decode", "h200-sxm", *prices, "--json").json
    assert found["aggregated"]["devices"] > 4


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--max-devices", "1"), "--max-devices"),
        (("--tp", "x"), "--tp"),
        (("--tp", "3"), "--tp"),
        (("--price", "h100-sxm"), "--price"),
        (("--price", "h200-sxm=2"), "--price"),
        (("--price", "h100-sxm=2", "--price", "h200-sxm=2"), "h200-sxm is not among the machines"),
        (("--decode", "h200-sxm", "--price", "h100-sxm=2"), "h200-sxm has no price"),
        *((("--price", f"h100-sxm={price}"), "is no price") for price in ("inf", "nan", "-1", "0", "1e300")),
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
