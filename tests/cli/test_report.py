"""`kvroof report`: the file it writes, and that its commands give back its numbers."""

import html
import re
import shlex

import pytest


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return tmp_path_factory.mktemp("report")


ASKED = ("llama-3.1-8b", "h100-sxm", "mi300x", "--isl", 1024, "--osl", 32, "--batch", 4, "--kv-dtype", "fp8")


@pytest.fixture
def text(kvroof, files):
    """Return the report of a model on two machines, one of which was never measured."""
    path = files / "report.html"
    if not path.exists():
        answer = kvroof("report", *ASKED, "--out", path)
        assert (answer.code, answer.err) == (0, "")
        assert answer.out.startswith("YES  llama-3.1-8b fits on h100-sxm")
    return path.read_text(encoding="utf-8")


def commands(text):
    return [html.unescape(found) for found in re.findall(r'<pre tabindex="0">(.*?)</pre>', text)]


def test_it_answers_for_every_machine_in_one_file_below_six_megabytes(text):
    assert len(text.encode()) < 6_000_000
    assert "<h1>llama-3.1-8b on h100-sxm, mi300x</h1>" in text
    assert text.count("<strong>YES</strong>") == 2
    assert "none: a bound" not in text  # beside a prediction the second machine is a typical one
    assert "h100-sxm-vllm" in text
    assert "mi300x: times of a typical machine, not of this one" in text


def test_the_commands_in_it_keep_every_option_and_run(text, kvroof, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = commands(text)
    assert all(("--kv-dtype fp8" in line) == (" show " not in line) for line in made)
    for line in made:
        if " report " not in line:
            answer = kvroof(*shlex.split(line)[1:])
            assert (answer.code, answer.err) == (0, ""), line


@pytest.mark.parametrize("hw", ["h100-sxm", "mi300x"])
def test_the_command_of_the_times_prints_the_times_of_the_report(text, kvroof, hw):
    (line,) = [line for line in commands(text) if line.startswith(f"kvroof estimate llama-3.1-8b {hw}")]
    shown = kvroof(*shlex.split(line)[1:]).out
    for name in ("TTFT", "TPOT"):
        (time,) = re.findall(rf"{name} ([\d.]+ [mu]?s)", shown)
        assert f"<td>{name} {time}</td>" in text


def test_the_command_that_makes_it_makes_the_same_file(text, kvroof, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (line,) = [line for line in commands(text) if line.startswith("kvroof report")]
    assert kvroof(*shlex.split(line)[1:]).code == 0
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == text


def test_a_model_that_fits_nowhere_is_reported_with_exit_1(kvroof, tmp_path):
    answer = kvroof(
        "report", "llama-3.1-405b", "h100-sxm", "--osl", 4, "--out", tmp_path / "r.html", "--json"
    )
    assert (answer.code, answer.err) == (1, "")
    assert answer.json["fits"] == {"h100-sxm": False}
    assert "<strong>NO</strong>" in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_a_file_with_a_wicked_name_is_shown_and_not_run(kvroof, write_config, tmp_path):
    path = write_config("<img src=x onerror=alert(1)>")
    assert kvroof("report", path, "h100-sxm", "--osl", 4, "--out", tmp_path / "r.html").code == 0
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "<img" not in text
    assert "&lt;img src=x onerror=alert(1)&gt;" in text


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("llama-3.1-8b h100-sxm --out r.pdf", "--out"),
        ("llama-3.1-8b h100-sxm --out no/such/folder/r.html", "--out"),
        ("llama-3.1-8b --out r.html", "HW"),
        ("llama-3.1-8b h100-sxn --out r.html", "h100-sxn"),
    ],
)
def test_bad_input_is_one_line_and_leaves_no_file(kvroof, tmp_path, monkeypatch, words, part):
    monkeypatch.chdir(tmp_path)
    answer = kvroof("report", *words.split())
    assert (answer.code, answer.out) == (2, "")
    assert len(answer.err.splitlines()) == 1
    assert part in answer.err
    assert list(tmp_path.iterdir()) == []
