"""One figure of each kind, drawn from small records."""

from dataclasses import replace
from math import inf
from types import SimpleNamespace

import pytest

from kvroof.calibration.load import load_calibration
from kvroof.calibration.served import ServedPoint
from kvroof.calibration.validate import Predicted, Validation, _group
from kvroof.catalog.models import load_model
from kvroof.memory.blocks import Blocks
from kvroof.memory.kv import kv
from kvroof.memory.ledger import fit
from kvroof.roofline.plan import Plan
from kvroof.schedule.policies import Policy
from kvroof.search.sensitivity import Sensitivity
from kvroof.serving.demand.lengths import fixed
from kvroof.serving.demand.requests import Request
from kvroof.serving.demand.traffic import traffic
from kvroof.serving.latency import Calibration, estimate
from kvroof.serving.pools.pool_choice import Choice
from kvroof.serving.simulation.instances import Pool
from kvroof.serving.simulation.simulator import simulate
from kvroof.serving.steady.batching import one_pool
from kvroof.serving.steady.queueing import NoSteadyState
from kvroof.serving.step_times import AffineTimes
from kvroof.view.figures.blocks import block_tables
from kvroof.view.figures.capacity import EqualTime, capacity_frontier
from kvroof.view.figures.footprint import footprint
from kvroof.view.figures.frontier import Curve, Operating, latency_frontier
from kvroof.view.figures.load import ttft_against_load
from kvroof.view.figures.measured import predicted_against_measured
from kvroof.view.figures.memory import memory_waterfall
from kvroof.view.figures.pools import pool_map
from kvroof.view.figures.rates import rate_map
from kvroof.view.figures.roofline import operations_on_roofline
from kvroof.view.figures.schedule import gantt
from kvroof.view.figures.sensitivity import sensitivity_bars

GIB = 2**30
NAMED = Calibration(name="h100-sxm-vllm", held_out_mape=0.1)
AFFINE = AffineTimes(prefill_start_s=0.004, token_s=2e-5, decode_start_s=0.006, seq_s=2e-5, cached_s=5e-9)


@pytest.fixture(scope="session")
def plan():
    """Return Llama-3.1-8B on one H100, calibrated."""
    return Plan.of("llama-3.1-8b", "h100-sxm", efficiency=load_calibration("auto", "h100-sxm"))


@pytest.fixture(scope="session")
def answer(plan):
    """Return the estimate of 8 requests of 2,048 prompt and 64 output tokens."""
    return estimate(plan, isl=2048, osl=64, batch=8)


@pytest.fixture(scope="session")
def growth():
    """Return the KV reports of a model without and one with windows, as lists by length."""
    names = ("llama-3.1-8b", "gemma-3-27b")
    return [[kv(load_model(name), tokens=n) for n in (256, 1024, 4096, 131_072)] for name in names]


@pytest.fixture(scope="session")
def ledger():
    """Return a ledger of given sizes: 80 GiB, of which 72 may be used."""
    return fit(
        load_model("llama-3.1-8b"),
        80 * GIB,
        tokens=8192,
        seqs=4,
        weights_bytes=15 * GIB,
        reserve_bytes=2 * GIB,
    )


@pytest.fixture(scope="session")
def ledgers():
    """Return what 80 GiB admit of Llama-3.1-8B at three lengths."""
    model = load_model("llama-3.1-8b")
    return [fit(model, 80 * GIB, tokens=n) for n in (1024, 8192, 131_072)]


@pytest.fixture(scope="session")
def states():
    """Return steady states of one pool at three rates."""
    asked = traffic(fixed(512), fixed(64))
    return [one_pool(AFFINE, asked, rate, Policy(name="chunked")) for rate in (1.0, 10.0, 30.0)]


@pytest.fixture(scope="session")
def ran():
    """Return a simulated run of six requests on an engine that runs two at a time."""
    requests = [Request(arrival_s=0.01 * i, input_tokens=300 + 50 * i, output_tokens=8) for i in range(6)]
    pool = Pool(
        step_s=lambda batch: 0.005 + 1e-5 * batch.tokens,
        num_blocks=500,
        policy=Policy(name="continuous", max_num_seqs=2),
    )
    return simulate(requests, pool, trace=True)


@pytest.fixture(scope="session")
def blocks():
    """Return a pool in which sequence 1 shares the first block of sequence 0."""
    pool = Blocks(12, 16)
    pool.start(0)
    pool.append(0, 40)
    pool.start(1, pool.block_table(0)[:1])
    pool.append(1, 30)
    return pool


@pytest.fixture(scope="session")
def predictions():
    """Return two points: one predicted 10 % too long, one 50 % too short, with their intervals."""
    first = ServedPoint(
        model="llama-3.1-8b", hardware="h100-sxm", framework="vllm", isl=1024, osl=256, concurrency=8,
        ttft_s=0.1, tpot_s=0.010,
    )  # fmt: skip
    second = replace(first, model="gpt-oss-20b", tpot_s=0.020, ttft_s=None)
    made = (
        Predicted(
            point=first,
            ttft_s=0.12,
            tpot_s=0.011,
            ttft_interval=(0.1, 0.144),
            tpot_interval=(0.01, 0.0121),
            seqs=8,
        ),
        Predicted(
            point=second, ttft_s=None, tpot_s=0.010, ttft_interval=None, tpot_interval=(0.009, 0.0111), seqs=8
        ),
    )
    return Validation(
        sources=("two points",), calibration="auto", points=2, predicted=2, left_out={},
        overall=_group({}, made), groups=(), predictions=made,
    )  # fmt: skip


def choice(verdict, log_ratio, one=None, two=None):
    """Return a choice with that verdict and ratio of goodputs, and the goodputs where they are given."""
    ways = [None if rate is None else SimpleNamespace(goodput_rps=rate) for rate in (one, two)]
    return Choice(
        compared=None,
        aggregated=ways[0],
        disaggregated=ways[1],
        verdict=verdict,
        log_ratio=log_ratio,
        log_error=0.1,
    )


CHOICES = [
    [choice("disaggregate", 0.25), choice("tie", 0.05)],
    [choice("aggregate", -0.5), None],
]
LIMITS_S = (0.01, 0.02, 0.05, 0.1)
BY_LIMIT = [
    None,
    choice("disaggregate", inf, None, 8.0),
    choice("tie", 0.05, 20.0, 21.0),
    choice("aggregate", -0.5, 30.0, 18.2),
]
CURVES = (
    Curve(
        "one", "aggregated", (Operating(100.0, 90.0, 0.1, "1"), Operating(20.0, 900.0, 0.4, "64")), "bounds"
    ),
    Curve(
        "two",
        "disaggregated",
        (Operating(110.0, 80.0, 0.1, "1"), Operating(25.0, 950.0, 0.3, "64")),
        "bounds",
    ),
)
LINES = [EqualTime(0.01, (1024, 8192), (60, 9)), EqualTime(0.02, (1024, 8192, 131_072), (150, 30, 2))]
BARS = Sensitivity(
    tpot={"hbm_bandwidth": -0.8, "compute": 0.0, "overhead": 0.2, "window": 0.0},
    ttft={"hbm_bandwidth": -0.1, "compute": -0.9, "overhead": 0.0, "window": 0.001},
)
FAMILIES = {"gemm.bf16": "bf16", "attention.prefill": "bf16", "attention.decode": "bf16"}


@pytest.fixture(scope="session")
def figures(plan, answer, growth, ledger, ledgers, states, ran, blocks, predictions):
    """Return a figure of each kind by its name."""
    full = NoSteadyState(what="decode", load=1.2)
    return {
        "roofline": operations_on_roofline(answer, plan.hardware, plan.efficiency, FAMILIES),
        "footprint": footprint(growth),
        "memory": memory_waterfall(ledger, "h100-sxm"),
        "capacity": capacity_frontier(ledgers, LINES, "h100-sxm", NAMED),
        "frontier": latency_frontier(CURVES, "requests"),
        "load": ttft_against_load({"chunked": states}, {"chunked": full}, "requests", 1.0, NAMED),
        "pools": pool_map(
            CHOICES, ("prompt, tokens", (512, 4096)), ("output, tokens", (64, 256)), "requests", "n"
        ),
        "rates": rate_map(BY_LIMIT, "TPOT", LIMITS_S, "requests", "bounds"),
        "sensitivity": sensitivity_bars(BARS, "requests", "bounds"),
        "measured": predicted_against_measured(predictions),
        "schedule": gantt(ran.spans, ran.served, "requests", "bounds"),
        "blocks": block_tables(blocks, "two sequences"),
    }
