"""`kvroof disagg` on the command line."""

import pytest

from kvroof.cli.disagg import _machines

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


PAIR = ("disagg", "llama-3.1-8b", "h100-sxm", "--max-devices", "2", "--break-even", "none",
        "--ttft", "1s", "--tpot", "30ms")  # fmt: skip


def test_a_rate_beyond_both_ways_is_answered_no_with_what_they_do(kvroof):
    answer = kvroof(*PAIR, "--rate", "500")
    assert answer.code == 1
    assert answer.out.startswith("NO  neither way serves 500 req/s on 2 devices (at most ")
    rows = [line.split() for line in answer.out.splitlines() if line.startswith((" one pool", " two pools"))]
    assert len(rows) == 4, "goodputs and times of both"
    most = max(float(row[2]) for row in rows[:2])
    assert f"(at most {most:.3g})" in answer.out
    assert not any(row[-1] == "-" for row in rows), "each names what bounds its goodput"


def test_limits_that_nothing_keeps_are_answered_no_with_the_nearest(kvroof):
    answer = kvroof(*PAIR[:-4], "--ttft", "1ms", "--tpot", "30ms")
    assert (answer.code, answer.err) == (1, "")
    assert answer.out.startswith("NO  no deployment keeps the limits at any rate")
    found = kvroof(*PAIR[:-4], "--ttft", "1ms", "--tpot", "30ms", "--json").json
    assert (found["served_by"], found["disaggregated"]) == ("neither", None)
    assert found["aggregated"]["ttft_s"] > 0.001


def test_a_rate_that_both_serve_comes_with_the_line_that_starts_each_pool(kvroof):
    answer = kvroof(*PAIR, "--rate", "10", "--engine", "vLLM", "--json")
    found = answer.json
    assert (answer.code, found["served_by"]) == (0, "either")
    assert found["aggregated"]["limit"] in ("ttft", "tpot", "memory", "prefill", "decode")
    assert found["disaggregated"]["limit"] in ("prefill", "decode", "link")
    lines = {name: line for name, (line,) in found["commands"].items()}
    assert all(line.startswith("vllm serve meta-llama/") and "\n" not in line for line in lines.values())
    roles = {role: [line for name, line in lines.items() if role in name] for role in ("prefill", "decode")}
    assert all('"kv_role":"kv_producer"' in line for line in roles["prefill"])
    assert all('"kv_role":"kv_consumer"' in line for line in roles["decode"])
    (one,) = [line for name, line in lines.items() if "one pool" in name]
    assert "--kv-transfer-config" not in one
    (pool,) = found["aggregated"]["pools"]
    assert f"--max-num-seqs {pool['max_num_seqs']} " in one
    assert "--max-model-len 2304 " in one


OWN = """name = "own"
vendor = "me"
[memory_bytes]
value = 80_000_000_000
source = "mine"
[hbm_bytes_per_s]
value = 2e12
source = "mine"
[peak_flops_per_s.bf16]
value = 4e14
source = "mine"
density = "dense"
"""


def test_instances_without_a_link_are_left_out_and_said_unless_they_are_asked_for(kvroof, tmp_path):
    own = tmp_path / "own.toml"
    own.write_text(OWN, "utf-8")
    asked = ("disagg", "llama-3.2-1b", own, "--link", "100Gb/s", "--max-devices", "4", "--break-even", "none")
    free = kvroof(*asked, "--json")
    assert free.code == 0
    (said,) = [line for line in free.json["assumptions"] if "left out" in line]
    assert said.startswith("instances of 2 x own are left out")
    assert "[scale_up]" in said
    fixed = kvroof(*asked, "--tp", "2")
    assert fixed.code == 2
    assert "[scale_up]" in fixed.err


def test_machines_after_the_model_are_candidates_of_both_pools(kvroof):
    def names(*given):
        return [[machine.name for machine in side] for side in _machines(*given)]

    assert names((), None, None) == [["h100-sxm"]] * 2
    assert names(("h200-sxm",), None, None) == names((), "h200-sxm", None) == [["h200-sxm"]] * 2
    assert names(("h200-sxm", "b200-sxm", "h200-sxm"), None, None) == [["h200-sxm", "b200-sxm"]] * 2
    assert names((), None, "h200-sxm") == [["h100-sxm"], ["h200-sxm"]]
    assert kvroof("disagg", "llama-3.1-8b", "h100-sxm", "--decode", "h200-sxm").code == 2


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
    ],
)
def test_a_question_that_cannot_be_is_one_line(kvroof, options, word):
    answer = kvroof(*ASKED, *options)
    assert answer.code == 2
    assert word in answer.err
    assert len(answer.err.strip().splitlines()) == 1
