"""Everything that the README, the contributors' guide and each verb's help tell a reader to run, runs.

Commands are run once, however often they are told. Left out are those that install, and those that the gate
runs itself; `LEFT_OUT` has the reason of each.
"""

import dataclasses
import html
import io
import json
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from importlib.util import find_spec
from pathlib import Path

import pytest

import kvroof
from kvroof.catalog.config import Config
from kvroof.catalog.families import llama_like
from kvroof.catalog.families.family import build
from kvroof.catalog.models import model_names, read_entry
from kvroof.catalog.names import data_folder
from kvroof.catalog.profiles import hardware_names
from kvroof.cli.main import VERBS, run
from kvroof.cli.plot import KINDS

ROOT = Path(__file__).parents[1]
README, GUIDE, NOTEBOOKS = (
    (ROOT / name).read_text("utf-8") for name in ("README.md", "CONTRIBUTING.md", "notebooks/README.md")
)
FIGURES = ROOT / "notebooks" / "figures"
HARDWARE = data_folder("hardware")
LEFT_OUT = {
    "python -m pip install": "the gate installs the project",
    "pip install": "the gate installs the project",
    "python -m venv": "the gate makes an environment",
    "source ": "the gate uses the environment it makes",
    "pre-commit install": "changes the clone; the gate runs what its hooks run",
    ".ci/run": "is the gate, which runs this test",
    "ruff ": "a step of the gate",
    "mypy": "a step of the gate",
    "lint-imports": "a step of the gate",
    "python -m tests.fuzz": "takes as long as one likes; tests/fuzz tries every reader a little",
    "python -m pytest": "a part of the suite that is running; the benchmarks are left out of it on purpose",
}
LACKS = {
    "kvroof calibrate --hw": "pip install 'kvroof[silicon]'",
}
"""Commands that need an extra which the tests do without, with what they say in its absence."""

RUNS = """model,hw,framework,tp,isl,osl,concurrency,ttft_ms,tpot_ms
llama-3.1-8b,h100-sxm,vllm,1,1024,256,1,40,8.0
llama-3.1-8b,h100-sxm,vllm,1,1024,256,32,150,12.5
"""
BENCHMARK = {
    "backend": "vllm",
    "model_id": "meta-llama/Llama-3.1-8B",
    "max_concurrency": 16,
    "random_input_len": 1024,
    "random_output_len": 256,
    "mean_ttft_ms": 90.0,
    "mean_tpot_ms": 10.0,
}
LOG = """kv_cache_size=3.81GiB gpu_memory_utilization=0.90
# GPU blocks: 1952, # CPU blocks: 2048
Maximum concurrency for 20000 tokens per request: 1.56x
"""
"""Source: github.com/vllm-project/vllm/issues/10517."""


def blocks(text: str, language: str) -> list[str]:
    """Return the fenced blocks of a language."""
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def shell_lines(text: str) -> Iterator[str]:
    """Yield the commands of the bash blocks, continued lines joined and `&&` taken apart."""
    for block in blocks(text, "bash"):
        for line in block.replace("\\\n", " ").splitlines():
            for part in line.split("&&"):
                if command := re.sub(r"\s+#.*|\s+", lambda m: "" if "#" in m[0] else " ", part).strip():
                    yield command


def answered(words: list[str]) -> tuple[int, str, str]:
    """Return the exit code, the output and the complaints of the command, run in this process."""
    out, err, before, code = io.StringIO(), io.StringIO(), sys.argv, 0
    sys.argv = ["kvroof", *words]
    try:
        with redirect_stdout(out), redirect_stderr(err):
            run()
    except SystemExit as stop:
        code = int(stop.code or 0)
    finally:
        sys.argv = before
    return code, out.getvalue(), err.getvalue()


def examples(*verb: str) -> list[str]:
    """Return the lines of a help that start with `kvroof`, up to where their comment starts."""
    lines = (line.strip().split("   ")[0] for line in answered([*verb, "--help"])[1].splitlines())
    return [line for line in lines if line.startswith("kvroof ")]


def table_commands(text: str) -> list[str]:
    """Return the commands in the first column of the tables."""
    cells = re.findall(r"^\|([^|]*`kvroof [^|]*)\|", text, flags=re.MULTILINE)
    return [command for cell in cells for command in re.findall(r"`(kvroof [^`]*)`", cell)]


HELP = {(verb,): examples(verb) for verb in VERBS} | {
    ("plot", kind): examples("plot", kind) for kind in KINDS
}
SHELL = [*shell_lines(README), *shell_lines(GUIDE), *shell_lines(NOTEBOOKS)]
TOLD = [*table_commands(README), *(line for line in SHELL if line.startswith("kvroof "))]
PICTURES = [line for line in SHELL if "--out notebooks/figures/" in line]
COMMANDS = sorted(
    {*TOLD, *(line for lines in HELP.values() for line in lines)} - {"kvroof show NAME", *PICTURES}
)


@pytest.fixture
def folder(tmp_path, monkeypatch, config_s, few_kernels):
    """Make the folder of a reader who has the files that the commands name, and go there.

    What is measured of this device is little.
    """
    deeper = tmp_path / "path" / "to"
    deeper.mkdir(parents=True)
    for place in (tmp_path, deeper):
        (place / "config.json").write_text(config_s.read_text("utf-8"), "utf-8")
    (tmp_path / "runs.csv").write_text(RUNS, "utf-8")
    (tmp_path / "result.json").write_text(json.dumps(BENCHMARK), "utf-8")
    (tmp_path / "YOUR.log").write_text(LOG, "utf-8")
    shipped = HARDWARE / "calibrations" / "h100-sxm-vllm.toml"
    (tmp_path / "mine.toml").write_text(shipped.read_text("utf-8"), "utf-8")
    points = ROOT / "tests" / "calibration" / "data" / "h200_sxm.csv"
    (tmp_path / "points.csv").write_text(points.read_text("utf-8"), "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_that_a_reader_is_told_runs(command, folder):
    code, out, err = answered(shlex.split(command)[1:])
    if code == 2 and any(part in command and words in err for part, words in LACKS.items()):
        pytest.skip(err.strip())
    if "the measured hardware: hbm_bytes_per_s" in err:
        pytest.skip("other work leaves this machine less than 1 GB/s, which no profile may say")
    assert code in (0, 1), err
    assert out
    written = re.findall(r"--(?:out|plot|trace|table|report) (\S+)", command)
    assert [name for name in written if not (folder / name).stat().st_size] == []


@pytest.mark.parametrize("verb", HELP, ids=" ".join)
def test_every_help_has_an_example_of_its_own(verb):
    assert any(line.startswith(" ".join(["kvroof", *verb])) for line in HELP[verb])


def test_what_is_not_run_is_left_out_for_a_reason():
    others = [
        line for line in SHELL if not line.startswith(("kvroof ", "python -m kvroof", "python -m pdoc"))
    ]
    assert [line for line in others if not line.startswith(tuple(LEFT_OUT))] == []
    assert [start for start in LEFT_OUT if not any(line.startswith(start) for line in others)] == []


def test_every_fenced_block_has_a_test():
    """Those of bash and console are run above; there is one of toml and one of python in the guide."""
    fences = re.findall(r"^```(\w*)$", README + GUIDE, flags=re.MULTILINE)
    assert {name for name in fences if name} <= {"bash", "console", "toml", "python"}
    assert (len(blocks(GUIDE, "toml")), len(blocks(GUIDE, "python"))) == (1, 1)


def test_the_sessions_of_the_readme_show_what_the_commands_print(folder):
    """Lines stand in the output in their order; an ellipsis stands for lines that are left out."""
    sessions = blocks(README, "console")
    assert sessions
    for session in sessions:
        command, *shown = session.splitlines()
        code, out, _ = answered(shlex.split(command.removeprefix("$ "))[1:])
        assert code == 0
        printed = iter([" ".join(line.split()) for line in out.splitlines()])
        wanted = [" ".join(line.split()) for line in shown if line.strip() not in ("", "...")]
        assert [line for line in wanted if line not in printed] == []


def test_the_python_of_the_readme_runs_and_prints_what_its_comments_say(capsys):
    """A comment that starts with a number states what the line prints, to three digits."""
    for block in blocks(README, "python"):
        exec(compile(block, "README.md", "exec"), {})
        printed = [float(line) for line in capsys.readouterr().out.split()]
        stated = [float(number) for number in re.findall(r"#\s*([\d.]+(?:e-?\d+)?)", block)]
        assert printed == pytest.approx(stated, rel=5e-3)


def test_the_readme_counts_the_catalog():
    (counts,) = re.findall(r"(\d+) models, (\d+) accelerators", README)
    assert [int(count) for count in counts] == [len(model_names()), len(hardware_names())]


def test_pictures_of_the_readme_are_there_and_modest():
    named = re.findall(r"!\[([^\]]*)\]\(([^)]*)\)", README)
    assert len(named) >= 2
    for words, place in named:
        assert len(words) > 20
        assert (ROOT / place).stat().st_size < 200_000


def test_every_picture_is_drawn_by_a_command_and_the_other_way_round():
    drawn = {line.rpartition("/")[2] for line in PICTURES}
    assert drawn == {path.name for path in FIGURES.iterdir()}


@pytest.mark.parametrize("command", PICTURES)
def test_a_picture_shows_what_its_command_answers_today(command, folder):
    """The title is the answer; it stands in the file in parts, a line each."""
    words, picture = shlex.split(command)[1:-1], command.rpartition("/")[2]
    code, out, err = answered([*words, "x.html", "--json"])
    assert (code, err) == (0, "")
    held = (FIGURES / picture).read_text("utf-8")
    parts = re.findall(r">([^<>]+)</tspan>|>([^<>]+)</text>", held)
    shown = " ".join(" ".join(one or other for one, other in parts).split())
    assert json.loads(out)["title"] in html.unescape(shown)


def test_every_link_to_a_file_leads_somewhere():
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)\)", README + GUIDE)
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_number_with_its_source_of_the_guide_makes_a_chip(folder):
    """The block stands in a copy of a profile in place of its own number."""
    (block,) = blocks(GUIDE, "toml")
    ((key, held),) = tomllib.loads(block).items()
    profile = (HARDWARE / "h100-sxm.toml").read_text("utf-8")
    own = re.search(rf"^\[{key}\]\n(?:(?:[^\[\n].*)?\n)*", profile, flags=re.MULTILINE)
    assert own is not None
    profile = profile.replace(own[0], block + "\n").replace('name = "h100-sxm"', 'name = "mine"')
    Path("mine.toml").write_text(profile, "utf-8")
    assert "kvroof show ./mine.toml" in GUIDE
    code, out, err = answered(["show", "./mine.toml"])
    assert (code, err) == (0, "")
    assert held["source"][:30] in out
    assert answered(["show", "h100-sxm"])[0] == 0  # `kvroof show NAME`


def test_the_exporter_is_called_as_the_guide_says(folder, monkeypatch):
    from kvroof.catalog import export

    (line,) = [line for line in SHELL if line.startswith("python -m kvroof.catalog.export")]
    entry = read_entry("llama-3.1-8b")
    Path("CONFIG.json").write_text(json.dumps(entry.config), "utf-8")
    words = shlex.split(line.replace("--params N", f"--params {entry.params_total}"))
    monkeypatch.setattr(sys, "argv", words[2:])
    monkeypatch.setattr(export, "data_folder", lambda name: folder)
    export.run()
    written = json.loads((folder / "name.json").read_text("utf-8"))
    assert (written["hub_id"], written["params_total"]) == ("ORG/NAME", entry.params_total)


def test_the_family_of_the_guide_reads_a_model_as_the_real_one_does():
    (block,) = blocks(GUIDE, "python")
    names = dict(vars(llama_like))
    exec(compile(block, "CONTRIBUTING.md", "exec"), names)
    read = [
        build(Config(read_entry("qwen3-8b").config, "qwen3-8b"), family)
        for family in (names["QWEN3"], llama_like.QWEN3)
    ]
    assert names["QWEN3"] is not llama_like.QWEN3
    assert read[0] == read[1]


UNITS = re.compile(
    r"bytes?|seconds?|tokens?|sequences|ranks|devices|FLOP|_s\b|_bytes|float|share|shape|names?|records?|B/s"
)


@pytest.mark.parametrize("name", kvroof.__all__)
def test_every_public_name_says_what_it_is_and_in_which_units(name):
    """A function's parameters are described, an error's way out, a record's numbers."""
    public = getattr(kvroof, name)
    text = public.__doc__
    assert text.strip().endswith((".", ")"))
    fields = dataclasses.fields(public) if dataclasses.is_dataclass(public) else ()
    if not (isinstance(public, type) and issubclass(public, Exception)):
        assert UNITS.search(" ".join([text, *(field.name for field in fields)]))


@pytest.mark.skipif(find_spec("pdoc") is None, reason="pip install '.[docs]'")
def test_the_api_reference_is_made_without_a_complaint(folder, monkeypatch):
    """As the notebooks' README says, of one floor; a warning is an error."""
    (line,) = [line for line in SHELL if line.startswith("python -m pdoc")]
    words = shlex.split(line)
    floors = [word for word in words if word.startswith("kvroof")]
    assert floors[0] == "kvroof"
    monkeypatch.setattr(sys, "argv", ["pdoc", *(word for word in words[3:] if word not in floors[2:])])
    from pdoc.__main__ import cli

    cli()
    made = folder / words[words.index("--output-directory") + 1]
    page = (made / "kvroof.html").read_text("utf-8")
    assert [name for name in kvroof.__all__ if f'id="{name}"' not in page] == []
