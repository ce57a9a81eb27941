"""How long the command takes to start, against an interpreter that does nothing and one that imports jax.

The three run in turn, round by round, so that whatever else the machine does falls on all of them
alike: `pytest tests/benchmarks/test_startup.py --benchmark-only` reports `kvroof kv` itself, and the
medians of the same rounds as `extra_info` (printed with `-s`).
"""

import shutil
import statistics
import subprocess
import sys
import time

import pytest

ROUNDS = 15
COMMANDS = {
    "python -c pass": (sys.executable, "-c", "pass"),
    "kvroof kv llama-3.1-8b --json": ("kvroof", "kv", "llama-3.1-8b", "--json"),
    "python -c 'import jax'": (sys.executable, "-c", "import jax"),
}


def seconds(command):
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start


@pytest.fixture
def installed():
    """Return the installed command, next to this interpreter or on the path."""
    beside = shutil.which("kvroof", path=str(sys.executable).rpartition("/")[0])
    found = beside or shutil.which("kvroof")
    if found is None:
        pytest.skip("the kvroof command is not installed")
    return found


def test_the_command_starts_closer_to_nothing_than_to_jax(benchmark, installed):
    commands = {
        name: tuple(installed if c == "kvroof" else c for c in line) for name, line in COMMANDS.items()
    }
    for line in commands.values():
        seconds(line)
    took = {name: [] for name in commands}

    def others():
        for name, line in commands.items():
            if "kvroof" not in name:
                took[name].append(seconds(line))

    def answer():
        took["kvroof kv llama-3.1-8b --json"].append(seconds(commands["kvroof kv llama-3.1-8b --json"]))

    benchmark.pedantic(answer, setup=others, rounds=ROUNDS)
    medians = {name: statistics.median(each) for name, each in took.items()}
    benchmark.extra_info.update(medians)
    print("\n" + "\n".join(f"{name:32} median {each * 1000:6.0f} ms" for name, each in medians.items()))
    nothing, kvroof, jax = medians.values()
    assert nothing < kvroof < jax
