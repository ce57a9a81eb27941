"""Operating points per second of the whole step model, beside the peers that can be installed.

Llama-3.1-70B over eight devices, decode, float64. A peer is asked for the same steps one by one, which
is what it offers. `pytest tests/benchmarks/test_sweep_speed.py -o addopts= --benchmark-only -s` prints it.
"""

import json
import os
import socket
import subprocess
import sys

import numpy as np
import pytest

from kvroof.calibration.load import load_calibration
from kvroof.roofline.efficiency import IDENTITY
from kvroof.roofline.plan import Plan
from kvroof.search.sweep import StepSweep
from kvroof.spec.workload import decode
from tests.benchmarks import peers
from tests.benchmarks.rows import add_rows, medians, seconds_each, seconds_of

BATCHES, LENGTHS = np.geomspace(1, 2048, 1024), np.geomspace(16, 131_072, 2048)
FEW_BATCHES, FEW_LENGTHS = [1, 3, 17, 64, 300], [10, 500, 4096, 70_000]
HOST = f"""
import json, sys
import jax
jax.distributed.initialize("127.0.0.1:" + sys.argv[2], 2, int(sys.argv[1]))
from kvroof.roofline.plan import Plan
from kvroof.search.sweep import StepSweep
sweep = StepSweep(Plan.of("llama-3.1-8b", "h100-sxm", tp=2), most_points=8)
found = sweep.grid({FEW_BATCHES}, {FEW_LENGTHS})
print(json.dumps([jax.device_count(), found["seconds"].tolist()]))
"""


def sweep_of(kind):
    """Return the sweep of the bound or of the calibrated time."""
    efficiency = load_calibration("auto", "h200-sxm") if kind == "calibrated" else IDENTITY
    return StepSweep(Plan.of("llama-3.1-70b", "h200-sxm", tp=8, efficiency=efficiency))


@pytest.mark.parametrize("kind", ["bound", "calibrated"])
@pytest.mark.parametrize("shape", ["grid", "list"])
def test_a_sweep(benchmark, kind, shape):
    sweep = sweep_of(kind)
    if shape == "grid":
        points, ask, arguments = len(BATCHES) * len(LENGTHS), sweep.grid, (BATCHES, LENGTHS)
    else:
        rng = np.random.default_rng(0)
        points, ask = 2**19, sweep.points
        arguments = np.exp(rng.uniform(0, 7, points)), np.exp(rng.uniform(3, 11, points))
    ask(*arguments)
    benchmark.pedantic(ask, arguments, rounds=3)
    benchmark.extra_info["points_per_s"] = points / benchmark.stats.stats.median


@pytest.mark.table
def test_a_point_of_a_sweep_beside_points_one_by_one(benchmark):
    sweep = sweep_of("calibrated")
    plan = Plan.of("llama-3.1-70b", "h200-sxm", tp=8, efficiency=load_calibration("auto", "h200-sxm"))
    points = len(BATCHES) * len(LENGTHS)
    sweep.grid(BATCHES, LENGTHS)
    ways = {
        "kvroof": lambda: seconds_of(lambda: sweep.grid(BATCHES, LENGTHS)) / points,
        "kvroof, step by step": lambda: seconds_each(lambda: plan.seconds(decode(8, 4096))),
        **peers.ways(peers.STEP),
    }
    took = benchmark.pedantic(medians, (ways, 3), rounds=1)
    add_rows(benchmark, "a decode step, one point of a sweep of two million", took)
    assert took["kvroof"] < took["kvroof, step by step"]


def test_two_hosts_share_a_sweep_and_both_get_all_of_it(benchmark):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = "--xla_force_host_platform_device_count=2"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}

    def run():
        hosts = [
            subprocess.Popen(
                [sys.executable, "-c", HOST, str(rank), str(port)],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in (0, 1)
        ]
        said = [host.communicate(timeout=300) for host in hosts]
        assert [host.returncode for host in hosts] == [0, 0], said
        return [json.loads(out.splitlines()[-1]) for out, _ in said]

    sweep = StepSweep(Plan.of("llama-3.1-8b", "h100-sxm", tp=2))
    alone = sweep.grid(FEW_BATCHES, FEW_LENGTHS)["seconds"]
    for devices, seconds in benchmark.pedantic(run, rounds=1):
        assert devices == 4
        assert np.abs(np.array(seconds) / alone - 1).max() <= 4 * np.finfo(float).eps
