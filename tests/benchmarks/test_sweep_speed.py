"""Operating points per second of the whole step model, beside the peers that can be installed.

Llama-3.1-70B over eight devices, decode, float64. A peer is asked for the same steps one by one, which is
what it offers, in the Python that `KVROOF_PEERS` names (else this one); one that is missing is skipped.
`pytest tests/benchmarks/test_sweep_speed.py -o addopts= --benchmark-only -s` prints the ratios.
"""

import json
import os
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from kvroof.calibration.load import load_calibration
from kvroof.roofline.efficiency import IDENTITY
from kvroof.roofline.plan import Plan
from kvroof.search.sweep import StepSweep

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
PEERS = {
    "genz-llm": """
from GenZ import decode_moddeling
def ask(batch, length):
    return decode_moddeling(model="meta-llama/Llama-3.1-70B", batch_size=batch, input_tokens=length,
        output_tokens=1, system_name="H100_GPU", bits="bf16", tensor_parallel=8)["Latency"]
""",
    "llm-analysis": """
from llm_analysis.analysis import LLMAnalysis
from llm_analysis.config import (ParallelismConfig, get_dtype_config_by_name, get_gpu_config_by_name,
    get_model_config_by_name)
analysis = LLMAnalysis(get_model_config_by_name("meta-llama_Llama-2-70b-hf"),
    get_gpu_config_by_name("h100-sxm-80gb"), get_dtype_config_by_name("w16a16e16"),
    ParallelismConfig(tp_size=8))
def ask(batch, length):
    return analysis.inference(batch_size_per_gpu=batch, seq_len=length, num_tokens_to_generate=1)
""",
    "aiconfigurator's SDK": """
from aiconfigurator.sdk import config, models, perf_database
from aiconfigurator.sdk.backends.factory import get_backend
from aiconfigurator.sdk.inference_session import InferenceSession
database = perf_database.get_latest_database_version("h200_sxm", "vllm")
database = perf_database.get_database("h200_sxm", "vllm", database)
model = models.get_model("meta-llama/Meta-Llama-3.1-70B", config.ModelConfig(tp_size=8), "vllm")
session = InferenceSession(model, database, get_backend("vllm"))
def ask(batch, length):
    asked = config.RuntimeConfig(batch_size=batch, isl=length, osl=2)
    return session.run_static(asked, "static_gen")
""",
}
TIMED = """
import json, time
ask(4, 1000)
start, count = time.perf_counter(), 0
while time.perf_counter() - start < 5:
    count += 1
    ask(1 + count % 64, 500 + 37 * count % 4000)
print(json.dumps(count / (time.perf_counter() - start)))
"""


@pytest.fixture(scope="module")
def rates():
    """Return what each measurement of this module came to, in points per second."""
    found = {}
    yield found
    print("\n" + "\n".join(f"{name:34} {rate:14,.1f} points/s" for name, rate in found.items()))
    ours = found.get("calibrated, grid")
    for name in PEERS:
        if ours and name in found:
            print(f"{'calibrated grid against ' + name:44} {ours / found[name]:12,.0f} x")


@pytest.mark.parametrize("kind", ["bound", "calibrated"])
@pytest.mark.parametrize("shape", ["grid", "list"])
def test_a_sweep(benchmark, rates, kind, shape):
    efficiency = load_calibration("auto", "h200-sxm") if kind == "calibrated" else IDENTITY
    sweep = StepSweep(Plan.of("llama-3.1-70b", "h200-sxm", tp=8, efficiency=efficiency))
    if shape == "grid":
        points, ask, arguments = len(BATCHES) * len(LENGTHS), sweep.grid, (BATCHES, LENGTHS)
    else:
        rng = np.random.default_rng(0)
        points, ask = 2**19, sweep.points
        arguments = np.exp(rng.uniform(0, 7, points)), np.exp(rng.uniform(3, 11, points))
    ask(*arguments)
    benchmark.pedantic(ask, arguments, rounds=3)
    rates[f"{kind}, {shape}"] = points / benchmark.stats.stats.min


@pytest.mark.parametrize("peer", PEERS)
def test_a_peer(benchmark, rates, peer):
    python = os.environ.get("KVROOF_PEERS", sys.executable)

    def run():
        done = subprocess.run(
            [python, "-c", PEERS[peer] + TIMED], capture_output=True, text=True, check=False
        )
        if done.returncode:
            pytest.skip(f"{peer}: {(done.stderr.strip().splitlines() or ['it does not run'])[-1][:120]}")
        rates[peer] = json.loads(done.stdout.strip().splitlines()[-1])

    benchmark.pedantic(run, rounds=1)


def test_an_estimate_after_import(benchmark, rates):
    plan = Plan.of("llama-3.1-70b", "h200-sxm", tp=8)
    from kvroof.spec.workload import decode

    start = time.perf_counter()
    plan.seconds(decode(8, 4096))
    assert time.perf_counter() - start < 1
    benchmark(plan.seconds, decode(8, 4096))
    rates["one step in Python"] = 1 / benchmark.stats.stats.min


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
