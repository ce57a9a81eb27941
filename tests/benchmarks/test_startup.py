"""How long the command takes to start, against an idle interpreter, jax, and the peers' `--help`.

All run in turn, round by round. `pytest tests/benchmarks/test_startup.py -o addopts= --benchmark-only -s`.
"""

import shutil
import sys
from pathlib import Path

import pytest

from tests.benchmarks import peers
from tests.benchmarks.rows import add_rows, medians, process_s

ROUNDS = 15
COMMANDS = {"hf-mem": "hf-mem", "llm-cal": "llm-cal", "aiconfigurator": "aiconfigurator"}


@pytest.fixture
def installed():
    """Return the installed command, next to this interpreter or on the path."""
    beside = shutil.which("kvroof", path=str(sys.executable).rpartition("/")[0])
    found = beside or shutil.which("kvroof")
    if found is None:
        pytest.skip("the kvroof command is not installed")
    return found


@pytest.mark.table
def test_the_command_starts_closer_to_nothing_than_to_jax(benchmark, installed):
    lines = {
        "kvroof": (installed, "kv", "llama-3.1-8b", "--json"),
        "`python -c pass`": (sys.executable, "-c", "pass"),
        "`python -c 'import jax'`": (sys.executable, "-c", "import jax"),
    }
    for package, command in COMMANDS.items():
        if peers.PYTHON and peers.version(package):
            beside = str(Path(peers.PYTHON).with_name(command))
            lines[f"{peers.named(package)}, `--help`"] = (beside, "--help")
    for line in lines.values():
        process_s(line)
    ways = {name: (lambda line=line: process_s(line)) for name, line in lines.items()}
    took = benchmark.pedantic(medians, (ways, ROUNDS), rounds=1)
    add_rows(benchmark, "`kvroof kv llama-3.1-8b`, a whole command", took)
    nothing, jax = list(took.values())[1:3]
    assert nothing < took["kvroof"] < jax
