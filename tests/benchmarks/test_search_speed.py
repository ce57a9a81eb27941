"""How long a search takes, how good it is, and against an exhaustive sweep and aiconfigurator's search.

`pytest tests/benchmarks/test_search_speed.py -o addopts= --benchmark-only -s` prints the figures.
`KVROOF_PROBLEMS` is the number of random problems.
"""

import os
import shutil
import statistics
import subprocess
import sys
import time

import pytest

from kvroof.calibration.load import load_calibration
from kvroof.catalog.models import load_model
from kvroof.catalog.profiles import hardware_names, load_hardware
from kvroof.ground.errors import KvroofError
from kvroof.search.choices import Axes, Stores, plans
from kvroof.search.optimize import optimize
from kvroof.search.question import Question
from kvroof.serving.demand.lengths import fixed
from kvroof.serving.pools.goodput import limits
from tests.benchmarks import peers
from tests.benchmarks.rows import add_rows, medians, process_s
from tests.search.problems import problem

QUESTION = Question(isl=fixed(4000), osl=fixed(1000), limits=limits(1.0, 0.02))
COMMAND = (
    "optimize",
    "qwen3-32b",
    "h200-sxm",
    "--isl",
    "4000",
    "--osl",
    "1000",
    "--ttft",
    "1s",
    "--tpot",
    "20ms",
)
POOLS = (
    "disagg", "qwen3-32b", "--prefill", "h200-sxm", "--decode", "h200-sxm", "--max-devices", "8",
    "--isl", "4000", "--osl", "1000", "--ttft", "1s", "--tpot", "20ms",
)  # fmt: skip
THEIRS = (
    "cli", "default", "--model-path", "Qwen/Qwen3-32B", "--total-gpus", "8", "--system", "h200_sxm",
    "--backend", "vllm", "--isl", "4000", "--osl", "1000", "--ttft", "1000", "--tpot", "20",
)  # fmt: skip
WITHIN, SHARE = 0.005, 0.99
SIZES = (0, 10**3), (10**3, 10**4), (10**4, 10**5), (10**5, 10**6)


@pytest.fixture
def installed():
    """Return the installed command, next to this interpreter or on the path."""
    beside = shutil.which("kvroof", path=str(sys.executable).rpartition("/")[0])
    found = beside or shutil.which("kvroof")
    if found is None:
        pytest.skip("the kvroof command is not installed")
    return found


def test_a_warm_search(benchmark):
    model, machine = load_model("qwen3-32b"), load_hardware("h200-sxm")
    efficiency = load_calibration("auto", "h200-sxm")
    choices = list(plans(model, [machine], Axes(), Stores(), lambda _: efficiency))
    assert benchmark(optimize, choices, QUESTION).feasible


def test_a_cold_search_with_imports(benchmark, installed):
    benchmark.pedantic(
        lambda: subprocess.run([installed, *COMMAND], check=True, capture_output=True), rounds=5
    )


@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v3"])
def test_the_whole_catalog_of_machines(benchmark, name):
    model, machines = load_model(name), [load_hardware(name) for name in hardware_names()]
    typical = load_calibration("generic", "")
    choices = list(
        plans(model, machines, Axes(), Stores(), lambda m: load_calibration("auto", m.name) or typical)
    )
    question = Question(isl=fixed(2048), osl=fixed(256), limits=limits(1.0, 0.03))
    found = benchmark.pedantic(optimize, (choices, question), rounds=2)
    print(f"\n{name}: {found.candidates} choices, {found.evaluations} evaluations, {found.best.hw}")


@pytest.mark.table
def test_against_aiconfigurator(benchmark, installed):
    """Its `default` searches one pool and two, so that both of kvroof's verbs are timed against it."""
    if not peers.version("aiconfigurator"):
        pytest.skip("KVROOF_PEERS names no Python with aiconfigurator")
    theirs = (peers.PYTHON, "-c", "from aiconfigurator.main import main; main()", *THEIRS)
    ways = {
        "kvroof": lambda: process_s((installed, *COMMAND)) + process_s((installed, *POOLS)),
        peers.named("aiconfigurator"): lambda: process_s(theirs),
    }
    took = benchmark.pedantic(medians, (ways, 1), rounds=1)
    add_rows(benchmark, "the best point of one pool and of two, 8 devices, cold", took)
    assert took["kvroof"] < took[peers.named("aiconfigurator")]


@pytest.mark.table
def test_random_problems_against_every_whole_point(benchmark):
    count = int(os.environ.get("KVROOF_PROBLEMS", "200"))
    rows = []

    def run():
        for seed in range(count):
            choices, question, words = problem(seed)
            try:
                choices = list(choices)
                start = time.perf_counter()
                found = optimize(choices, question)
                middle = time.perf_counter()
                checked = optimize(choices, question, verify=True)
                took = middle - start, time.perf_counter() - middle - (middle - start)
            except KvroofError:
                continue
            if checked.exhaustive_gap is None:
                continue  # no memory holds a request
            rows.append((checked.exhaustive_gap, found, checked.exhaustive_evaluations, took, words))

    benchmark.pedantic(run, rounds=1)
    within = sum(gap <= WITHIN for gap, *_ in rows) / len(rows)
    print(f"\n{len(rows)} problems that can be, {sum(f.feasible for _, f, *_ in rows)} feasible")
    print(f"within {WITHIN:.1%} of the best of all whole points: {within:.2%}")
    for gap, *_, words in sorted(rows, key=lambda row: -row[0])[:5]:
        print(f"  {gap:.4%}  {words}")
    for low, high in SIZES:
        part = [row for row in rows if low <= row[2] < high]
        if part:
            ours, all_points = (statistics.median(row[3][i] for row in part) for i in (0, 1))
            evaluations = statistics.median(row[1].evaluations for row in part)
            print(
                f"  {low:>7,} to {high:>13,} whole points ({len(part):3}): search {ours:6.2f} s and"
                f" {evaluations:6,.0f} evaluations, every point {all_points:7.2f} s"
            )
            question = f"the best of {low:,} to {high:,} whole points, warm"
            add_rows(benchmark, question, {"kvroof": ours, "every point": all_points})
    assert within >= SHARE
    for _, found, *_ in rows:
        assert not found.feasible or found.excess == {}
