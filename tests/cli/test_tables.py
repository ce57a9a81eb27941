"""What a person reads: the verdict first, then what bounds it; and help that shows an example."""

import pytest

from kvroof.cli.main import VERBS

M, H = "llama-3.1-8b", "h100-sxm"


def test_fit_answers_first_then_says_by_how_much_and_how_far_it_goes(kvroof):
    out = kvroof("fit", M, H).out
    assert out.startswith("YES")
    for words in ("to spare", "capacity", "budget", "weights", "KV cache", "reserve", "headroom",
                  "longest context", "sequences of 8,192", "Assumptions"):  # fmt: skip
        assert words in out


def test_fit_says_no_with_ways_out_and_their_options(kvroof):
    out = kvroof("fit", "llama-3.1-70b", H).out
    assert out.startswith("NO")
    for words in ("short", "Ways out", "more devices", "--tp", "more memory", "--capacity"):
        assert words in out


def test_estimate_answers_the_four_questions_on_its_first_screen(kvroof):
    """Does it fit and by how much, the longest context, tokens per second, what bounds them."""
    lines = kvroof("estimate", M, H, "--calibration", "none").out.splitlines()
    screen = "\n".join(lines[:24])
    assert lines[0].startswith("YES")
    for words in ("to spare", "TTFT", "TPOT", "bound by", "compute", "HBM bandwidth", "tokens/s",
                  "longest context", "uncalibrated bound"):  # fmt: skip
        assert words in screen


def test_a_calibrated_estimate_names_its_profile_and_its_error(kvroof):
    answer = kvroof("estimate", M, H, "--json").json
    assert answer["calibration"]["name"] == "h100-sxm-vllm"
    assert 0 < answer["calibration"]["held_out_mape"] < 0.5
    for time in ("ttft_s", "tpot_s"):
        low, high = answer["interval"][time]
        assert low < answer[time] < high
    bound = kvroof("estimate", M, H, "--calibration", "none", "--json").json
    assert bound["calibration"] is None
    assert bound["interval"] is None
    assert answer["tpot_s"] > bound["tpot_s"] >= bound["lower_bound_s"]["decode"]
    assert answer["lower_bound_s"]["decode"] == bound["lower_bound_s"]["decode"]


def test_an_estimate_that_does_not_fit_says_no_first(kvroof):
    out = kvroof("estimate", "llama-3.1-70b", H).out
    assert out.startswith("NO")
    assert "short" in out.splitlines()[0] or "short" in out.splitlines()[1]


def test_kv_shows_payload_allocated_per_token_per_rank_and_kinds(kvroof):
    out = kvroof("kv", "gemma-3-27b", "deepseek-v3").out
    for words in ("payload", "allocated", "per rank", "B/token", "sliding", "1,024", "mla", "70,272", "bf16"):
        assert words in out


def test_compare_shows_footprint_and_bound_side_by_side(kvroof):
    out = kvroof("compare", M, "gemma-3-27b", "--hw", H).out
    for words in (M, "gemma-3-27b", "131,072", "81,920", "HBM bandwidth", "bound by"):
        assert words in out
    assert "--hw" in kvroof("compare", M).out


def test_list_show_and_doctor_print_what_they_found(kvroof):
    assert M in kvroof("list", "models").out
    assert H in kvroof("list", "hardware").out
    shown = kvroof("show", "gemma-3-27b").out
    assert "sliding 1,024" in shown
    assert "27,432,406,640" in shown
    machine = kvroof("show", H).out
    assert "3.35 TB/s" in machine
    assert "disagreements" in machine
    assert "jax" in kvroof("doctor").out


@pytest.mark.parametrize(
    ("args", "steps"),
    [
        (("kv", M), ("32 layers x", "= 131,072 B", "512 blocks of 16")),
        (("fit", M, H), ("budget = capacity x utilization", "headroom = budget - total")),
        (("estimate", M, H), ("HBM 3.35 TB/s", "989.4 TFLOP/s", "GFLOP", "compute")),
    ],
    ids=lambda value: value[0],
)
def test_explain_shows_how_each_number_came_about(kvroof, args, steps):
    out = kvroof(*args, "--explain").out
    for step in steps:
        assert step in out


def test_a_table_fits_the_width_of_a_pipe(kvroof):
    for args in (("kv", M), ("fit", M, H), ("estimate", M, H), ("compare", M, "--hw", H), ("list", "models")):
        assert max(len(line) for line in kvroof(*args).out.splitlines()) <= 120


@pytest.mark.parametrize("columns", [80, 100])
def test_a_pipe_is_as_wide_as_it_is_said_to_be_and_has_no_trailing_blanks(kvroof, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    verbs = (("kv", M), ("fit", M, H), ("estimate", M, H), ("compare", M, "--hw", H), ("list", "hardware"),
             ("list", "models"), ("show", H), ("show", M), ("doctor",))  # fmt: skip
    for args in verbs:
        lines = kvroof(*args).out.splitlines()
        assert max(map(len, lines)) <= columns, args
        assert lines == [line.rstrip() for line in lines]


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_help_shows_an_example_on_a_line_of_its_own(kvroof, verb):
    answer = kvroof(*([verb] if verb else []), "--help")
    assert answer.code == 0
    assert "\\b" not in answer.out
    assert any(line.strip().startswith(f"kvroof {verb}".strip() + " ") or line.strip() == f"kvroof {verb}"
               for line in answer.out.splitlines())  # fmt: skip


def test_every_verb_is_listed_with_what_it_answers(kvroof):
    out = kvroof("--help").out
    for verb in VERBS:
        assert any(line.split()[:1] == [verb] and len(line.split()) > 2 for line in out.splitlines())
