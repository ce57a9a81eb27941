"""`kvroof plot`: every kind makes the figure it says, in the form asked for, or says in one line why not."""

import html
import json
import re
import shlex
import shutil
from importlib.util import find_spec
from unittest.mock import create_autospec

import pytest

from kvroof.search.sensitivity import Sensitivity, sensitivity

KINDS = {
    "roofline": "llama-3.1-8b h100-sxm --batch 4 --osl 16",
    "footprint": "gemma-3-27b deepseek-v3 --tokens 131072",
    "memory": "llama-3.1-70b h100-sxm --tp 2 --seqs 4",
    "capacity": "llama-3.1-8b h100-sxm --tpot 20ms,50ms",
    "frontier": "llama-3.1-8b h100-sxm b200-sxm",
    "load": "llama-3.1-8b h100-sxm --ttft 1s --policy continuous --calibration none",
    "schedule": "llama-3.1-8b h100-sxm --rate 20 --requests 6 --osl 8",
    "blocks": "--lengths 100,72,40 --shared-prefix 32",
}
SLOW = ("pools", "measured", "sensitivity")
"""Solved, predicted or differentiated; their figures are drawn from small records in tests/view."""


@pytest.fixture
def draw(kvroof, tmp_path):
    """Return a function that draws a kind into a file and returns the answer and the page."""

    def ask(kind, words, name="x.html"):
        path = tmp_path / name
        answer = kvroof("plot", kind, *shlex.split(words), "--out", path, "--json")
        assert (answer.code, answer.err) == (0, ""), answer
        return answer.json, path

    return ask


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_writes_one_page_with_its_answer_as_title(draw, kind):
    said, path = draw(kind, KINDS[kind])
    text = html.unescape(path.read_text(encoding="utf-8"))
    assert said["bytes"] == path.stat().st_size < 6_000_000
    assert re.search(r"\d|bound by", said["title"])
    assert f'<h1 id="figure-title">{said["title"]}</h1>' in text
    assert said["caption"] in text
    assert f"kvroof plot {kind} " in text


def numbers(path):
    """Return the figure in a page, as plain data."""
    held = re.search(r'<script type="application/json"[^>]*>(.*?)</script>', path.read_text(encoding="utf-8"))
    return json.loads(held[1])["data"]


def test_the_footprint_ends_at_the_bytes_that_kv_answers(draw, kvroof):
    _, path = draw("footprint", "gemma-3-27b --tokens 131072")
    line = numbers(path)[0]
    asked = kvroof("kv", "gemma-3-27b", "--tokens", 131072, "--json").json[0]
    assert (line["x"][-1], line["y"][-1]) == (131_072, asked["payload_bytes"])
    assert 1024 in line["x"]  # where the window is full


def test_the_capacity_at_a_length_is_what_fit_answers(draw, kvroof):
    _, path = draw("capacity", "llama-3.1-8b h100-sxm --tokens 8192")
    full = next(t for t in numbers(path) if t["name"] == "memory is full")
    asked = kvroof("fit", "llama-3.1-8b", "h100-sxm", "--tokens", 8192, "--json").json
    assert full["y"][full["x"].index(8192)] == asked["max_seqs"]


def test_the_time_of_an_equal_time_line_is_kept_with_its_sequences_and_not_with_many_more(draw, kvroof):
    _, path = draw("capacity", "llama-3.1-8b h100-sxm --tokens 8192 --tpot 20ms --calibration none")
    line = next(t for t in numbers(path) if t["name"] == "TPOT 20 ms")
    most = line["y"][line["x"].index(8192)]
    asked = ("compare", "llama-3.1-8b", "--hw", "h100-sxm", "--tokens", 8192, "--json", "--seqs")
    assert kvroof(*asked, most).json[0]["tpot_s"] <= 0.020
    assert kvroof(*asked, round(1.1 * most) + 1).json[0]["tpot_s"] > 0.020


def test_the_bars_are_what_the_gradient_of_the_deployment_answers(draw, monkeypatch):
    found = Sensitivity(ttft={"compute": -0.9}, tpot={"hbm_bandwidth": -0.7})
    asked = create_autospec(sensitivity, return_value=found)
    monkeypatch.setattr("kvroof.search.sensitivity.sensitivity", asked)
    _, path = draw("sensitivity", "llama-3.1-8b h100-sxm --tp 2 --isl 100 --osl 20 --batch 3")
    (plan,), options = asked.call_args
    assert (plan.layout.tp, options) == (2, {"isl": 100, "osl": 20, "batch": 3})
    tpot, ttft = ({y: x for y, x in zip(t["y"], t["x"], strict=True) if x} for t in numbers(path))
    assert (tpot, ttft) == ({"HBM bandwidth": -0.7}, {"arithmetic peak": -0.9})


@pytest.mark.parametrize(
    ("axes", "moved", "held"), [("rate-tpot", "tpot", "ttft"), ("rate-ttft", "ttft", "tpot")]
)
def test_a_map_of_rates_asks_the_same_question_under_each_limit(draw, monkeypatch, axes, moved, held):
    asked = []
    monkeypatch.setattr("kvroof.cli.serving_sweeps.pool_choice", lambda q: asked.append(q))
    words = f"llama-3.1-8b h100-sxm --axes {axes} --{moved} 20ms,10ms --{held} 1s --max-devices 2"
    words += " --slo-percentile 99"
    said, path = draw("pools", words)
    assert [(getattr(q.limits, f"{moved}_s"), getattr(q.limits, f"{held}_s")) for q in asked] == [
        (0.01, 1.0),
        (0.02, 1.0),
    ]
    assert asked[0].aggregated is asked[1].aggregated
    assert {q.limits.percentile for q in asked} == {0.99}
    assert "99 % of the requests" in said["caption"]
    assert said["title"] == f"Neither one pool nor two keep any of these {moved.upper()} limits"
    assert [t["y"] for t in numbers(path)] == [[0, 0], [0, 0]]


def test_a_schedule_is_the_same_for_the_same_seed_and_another_for_another(draw):
    words = KINDS["schedule"]
    first, again = draw("schedule", words)[1].read_bytes(), draw("schedule", words)[1].read_bytes()
    other = draw("schedule", f"{words} --seed 1")[1].read_bytes()
    assert first == again != other


def test_blocks_that_are_shared_are_held_by_all(draw):
    _, path = draw("blocks", "--lengths 40,40 --shared-prefix 32 --num-blocks 8")
    _, pool = numbers(path)
    assert [text for text in pool["text"][0] if "+" in text] == ["0+1", "0+1"]


def test_help_lists_each_kind_with_an_example(kvroof):
    lines = [line.split() for line in kvroof("plot", "--help").out.splitlines() if "--out" in line]
    assert [words[:2] for words in lines] == [["kvroof", "plot"]] * len(lines)
    assert {words[2] for words in lines} == {*KINDS, *SLOW}


@pytest.mark.parametrize("kind", [*KINDS, *SLOW])
def test_the_help_of_each_kind_has_its_example(kvroof, kind):
    answer = kvroof("plot", kind, "--help")
    assert answer.code == 0
    assert f"kvroof plot {kind} " in answer.out
    assert f"--out {kind}.html" in answer.out


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("blocks --out x.pdf", "--out"),
        ("blocks --out no/such/folder/x.html", "folder does not exist"),
        ("blocks", "--out"),
        ("blocks --lengths 10,40 --shared-prefix 32 --out x.html", "--shared-prefix"),
        ("blocks --lengths 900 --shared-prefix 0 --num-blocks 4 --out x.html", "--num-blocks"),
        ("roofline llama-3.1-8 h100-sxm --out x.html", "llama-3.1-8"),
        ("roofline llama-3.1-8b h100 --out x.html --calibration nothing", "nothing"),
        ("capacity llama-3.1-8b h100-sxm --tpot soon --out x.html", "--tpot"),
        ("frontier llama-3.1-405b h100-sxm --out x.html", "not one request fits"),
        ("schedule llama-3.1-405b h100-sxm --out x.html", "leaves no room"),
        ("pools llama-3.1-8b h100-sxm --max-devices 1 --out x.html", "--max-devices"),
        ("pools llama-3.1-8b h100-sxm --tpot 20ms,30ms --out x.html", "--axes rate-tpot"),
        ("pools llama-3.1-8b h100-sxm --axes rate-tpot --ttft 1s --out x.html", "--tpot"),
        ("pools llama-3.1-8b h100-sxm --axes rate-ttft --ttft 1s --isl 64,128 --out x.html", "--isl"),
        ("pie llama-3.1-8b --out x.html", "pie"),
    ],
)
def test_what_cannot_be_drawn_is_one_line_and_leaves_no_file(kvroof, tmp_path, monkeypatch, words, part):
    monkeypatch.chdir(tmp_path)
    answer = kvroof("plot", *words.split())
    assert (answer.code, answer.out) == (2, "")
    assert len(answer.err.splitlines()) == 1
    assert part in answer.err
    assert list(tmp_path.iterdir()) == []


def test_without_kaleido_one_line_says_what_to_install(kvroof, tmp_path, monkeypatch):
    monkeypatch.setattr("kvroof.view.picture.find_spec", lambda name: None)
    answer = kvroof("plot", "blocks", "--out", tmp_path / "x.png")
    assert (answer.code, len(answer.err.splitlines())) == (2, 1)
    assert "pip install" in answer.err
    assert "Chrom" in answer.err


@pytest.mark.skipif(find_spec("kaleido") is None, reason="needs the package kaleido")
def test_without_a_browser_one_line_says_what_to_install(kvroof, tmp_path, monkeypatch):
    import kaleido
    from kaleido.errors import ChromeNotFoundError

    def no_browser(*args, **options):
        raise ChromeNotFoundError

    monkeypatch.setattr(kaleido, "calc_fig_sync", no_browser)
    answer = kvroof("plot", "blocks", "--out", tmp_path / "x.svg")
    assert (answer.code, len(answer.err.splitlines())) == (2, 1)
    assert "apt-get install chromium" in answer.err


@pytest.mark.skipif(find_spec("kaleido") is None, reason="needs the package kaleido")
@pytest.mark.parametrize("fault", ["BrowserFailedError", "BrowserClosedError"])
def test_a_browser_that_does_not_start_is_one_line_as_well(kvroof, tmp_path, monkeypatch, fault):
    import kaleido
    from kaleido import errors

    def fails(*args, **options):
        raise getattr(errors, fault)("long story", "of several parts")

    monkeypatch.setattr(kaleido, "calc_fig_sync", fails)
    answer = kvroof("plot", "blocks", "--out", tmp_path / "x.svg")
    assert (answer.code, answer.out, len(answer.err.splitlines())) == (2, "", 1)
    assert "does not start" in answer.err
    assert "kaleido_get_chrome" in answer.err


@pytest.mark.skipif(
    find_spec("kaleido") is None or not any(map(shutil.which, ("chromium", "google-chrome", "chrome"))),
    reason="needs the package kaleido and a Chrome",
)
def test_a_picture_has_the_title_and_the_caption_in_it(draw):
    said, path = draw("blocks", KINDS["blocks"], "x.svg")
    text = path.read_text(encoding="utf-8")
    assert text.startswith("<svg")
    assert said["title"] in text
    assert "16 tokens in a block" in text


def test_split_pools_are_drawn_beside_one_pool_under_the_same_arrivals(draw, monkeypatch):
    monkeypatch.setattr("kvroof.cli.serving_sweeps.LOADS", (0.1, 0.6, 0.95))
    said, path = draw("frontier", "llama-3.1-8b h100-sxm --isl 4096 --split 1:1")
    assert [t["name"] for t in numbers(path)] == ["h100-sxm", "h100-sxm 1P:1D, disaggregated"]
    assert "Poisson arrivals" in said["caption"]
    for line in numbers(path):
        assert line["y"] == sorted(line["y"])
        assert line["x"] == sorted(line["x"], reverse=True)
