"""How long one answer takes: `pytest tests/benchmarks --benchmark-only`."""

import pytest

from kvroof.calibration.load import load_calibration
from kvroof.catalog.models import load_model
from kvroof.memory.kv import kv
from kvroof.memory.ledger import fit
from kvroof.roofline.plan import Plan
from kvroof.serving.latency import estimate
from kvroof.spec.workload import decode
from tests.benchmarks import peers
from tests.benchmarks.rows import add_rows, medians, seconds_each

pytestmark = pytest.mark.benchmark(warmup=True, min_rounds=5)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gemma-3-27b", "deepseek-v3"])
def test_an_estimate(benchmark, name):
    plan = Plan.of(name, "h200-sxm", tp=8)
    answer = benchmark(estimate, plan, isl=2048, osl=256, batch=64)
    assert answer.tokens_per_s > 0


def test_a_decode_step(benchmark):
    plan = Plan.of("llama-3.1-8b", "h100-sxm")
    assert benchmark(plan.time, decode(8, 4096))


def test_a_ledger(benchmark):
    model = load_model("gemma-3-27b")
    assert benchmark(fit, model, 80 * 10**9, tokens=131_072, seqs=4)


def test_a_cache(benchmark):
    model = load_model("llama-3.1-8b")
    assert benchmark(kv, model, tokens=8192, seqs=64)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "deepseek-v3"])
def test_reading_a_model(benchmark, name):
    assert benchmark(load_model, name)


@pytest.mark.table
def test_a_cache_beside_the_peers(benchmark):
    model = load_model("llama-3.1-8b")
    assert kv(model, tokens=8192).payload_bytes == 2**30
    ways = {"kvroof": lambda: seconds_each(lambda: kv(model, tokens=8192)), **peers.ways(peers.CACHE)}
    took = benchmark.pedantic(medians, (ways, 5), rounds=1)
    add_rows(benchmark, "the KV cache of a model that is read", took)


@pytest.mark.table
def test_an_estimate_beside_the_peers(benchmark):
    plan = Plan.of("llama-3.1-8b", "h200-sxm", efficiency=load_calibration("auto", "h200-sxm"))
    ways = {
        "kvroof": lambda: seconds_each(lambda: estimate(plan, isl=2048, osl=256, batch=8)),
        **peers.ways(peers.ESTIMATE),
    }
    took = benchmark.pedantic(medians, (ways, 3), rounds=1)
    add_rows(benchmark, "TTFT and TPOT of one batch, calibrated", took)
