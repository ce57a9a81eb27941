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
from kvroof.serving.pools.best_pools import BestSplit, OnePool
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


def choice(verdict, log_ratio, one=None, two=None, name="h100-sxm tp1"):
    """Return a choice with that verdict and ratio of goodputs, and the goodputs where they are given."""
    server, policy = SimpleNamespace(name=name), Policy(name="chunked")
    pools = SimpleNamespace(prefill_instances=1, prefill=server, decode_instances=2, decode=server)
    ways = [
        None if one is None else OnePool(server=server, instances=3, policy=policy, goodput_rps=one),
        None if two is None else BestSplit(pools=pools, goodput_rps=two),
    ]
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
CASE = choice("tie", 0.05, 20.0, 21.0)
LIMITS_S = (0.01, 0.02, 0.05, 0.1)
BY_LIMIT = [
    None,
    choice("disaggregate", inf, None, 8.0),
    choice("tie", 0.05, 20.0, 21.0),
    choice("aggregate", -0.5, 30.0, 18.2),
]
CURVES = (
    Curve("one", "aggregated", (Operating(100.0, 90.0, 0.1, "1"), Operating(20.0, 900.0, 0.4, "64")), None),
    Curve(
        "two",
        "disaggregated",
        (Operating(110.0, 80.0, 0.1, "1"), Operating(25.0, 950.0, 0.3, "64")),
        None,
    ),
)
LINES = [EqualTime(0.01, (1024, 8192), (60, 9)), EqualTime(0.02, (1024, 8192, 131_072), (150, 30, 2))]
BARS = Sensitivity(
    tpot={"hbm_bandwidth": -0.8, "compute": 0.0, "overhead": 0.2, "window": 0.0},
    ttft={"hbm_bandwidth": -0.1, "compute": -0.9, "overhead": 0.0, "window": 0.001},
)
FAMILIES = {"gemm.bf16": "bf16", "attention.prefill": "bf16", "attention.decode": "bf16"}


WICKED = "<script>alert(1)</script><a href='javascript:alert(2)'>x</a>"
"""A name that runs a script wherever it is read as markup."""


@pytest.fixture(scope="session")
def records(plan, answer, growth, ledger, ledgers, states, ran, blocks, predictions):
    """Return what the figures are drawn from."""
    return SimpleNamespace(
        machine=plan.hardware, efficiency=plan.efficiency, answer=answer, growth=growth, ledger=ledger,
        ledgers=ledgers, curves=CURVES, states={"chunked": states}, ran=ran, blocks=blocks,
        choices=CHOICES, case=CASE, by_limit=BY_LIMIT, predictions=predictions, asked="requests",
    )  # fmt: skip


@pytest.fixture(scope="session")
def figures(records):
    """Return a figure of each kind by its name."""
    return drawn(records)


@pytest.fixture(scope="session")
def wicked_figures(records):
    """Return a figure of each kind in which every name is markup that runs a script."""
    points = [
        replace(p, point=replace(p.point, model=WICKED, hardware=WICKED, framework=WICKED))
        for p in records.predictions.predictions
    ]
    return drawn(
        SimpleNamespace(
            machine=replace(records.machine, name=WICKED),
            efficiency=records.efficiency,
            answer=replace(records.answer, model=WICKED, hardware=WICKED),
            growth=[[replace(r, model=WICKED) for r in reports] for reports in records.growth],
            ledger=replace(records.ledger, model=WICKED, assumptions=(WICKED,)),
            ledgers=[replace(held, model=WICKED) for held in records.ledgers],
            curves=[curve._replace(name=f"{WICKED} {n}") for n, curve in enumerate(records.curves)],
            states={WICKED: records.states["chunked"]},
            ran=records.ran,
            blocks=records.blocks,
            choices=records.choices,
            case=choice("tie", 0.05, 20.0, 21.0, WICKED),
            by_limit=records.by_limit,
            predictions=replace(records.predictions, predictions=tuple(points), sources=(WICKED,)),
            asked=WICKED,
        )
    )


def drawn(of):
    """Return a figure of each kind from some records."""
    full, lengths = NoSteadyState(what="decode", load=1.2), ("prompt, tokens", "output, tokens")
    limits = dict.fromkeys(of.states, full)
    return {
        "roofline": operations_on_roofline(of.answer, of.machine, of.efficiency, FAMILIES),
        "footprint": footprint(of.growth),
        "memory": memory_waterfall(of.ledger, of.machine.name),
        "capacity": capacity_frontier(of.ledgers, LINES, of.machine.name, NAMED),
        "frontier": latency_frontier(of.curves, of.asked),
        "load": ttft_against_load(of.states, limits, of.asked, 1.0, NAMED),
        "pools": pool_map(of.choices, (lengths[0], (512, 4096)), (lengths[1], (64, 256)), of.asked, "n"),
        "case": pool_map([[of.case]], (lengths[0], (512,)), (lengths[1], (64,)), of.asked, "n"),
        "rates": rate_map(of.by_limit, "TPOT", LIMITS_S, of.asked, "bounds"),
        "sensitivity": sensitivity_bars(BARS, of.asked, "bounds"),
        "measured": predicted_against_measured(of.predictions),
        "schedule": gantt(of.ran.spans, of.ran.served, of.asked, "bounds"),
        "blocks": block_tables(of.blocks, of.asked),
    }
