"""Figures of `kvroof plot` about serving over time: load, measured, schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import click

from kvroof.cli import options
from kvroof.cli.deployed import Deployed, deployment
from kvroof.cli.plot import drawn
from kvroof.cli.points_options import filling
from kvroof.cli.progress import steps
from kvroof.cli.quantities import ARRIVALS, TIME
from kvroof.cli.sweeps import calibration_of
from kvroof.ground.errors import BadInput
from kvroof.schedule.policies import Policy, PolicyName

if TYPE_CHECKING:
    from kvroof.roofline.plan import Plan
    from kvroof.view.theme import Figure

POLICIES = tuple(reversed(get_args(PolicyName)))


@click.command("load")
@click.argument("model")
@click.argument("hw")
@options.spread_lengths
@click.option(
    "--policy",
    "policies",
    type=click.Choice(POLICIES, case_sensitive=False),
    multiple=True,
    default=POLICIES[:2],
    show_default=True,
    help="Which requests share a step; repeatable.",
)
@click.option("--ttft", type=TIME, help="The TTFT asked for, e.g. 1s.")
@deployment
@options.utilization
@options.reserve
@drawn
def draw_load(
    model: str,
    hw: str,
    isl: str,
    osl: str,
    policies: tuple[PolicyName, ...],
    ttft: float | None,
    deployed: Deployed,
    utilization: float,
    reserve: int,
) -> Figure:
    """Median and p90 TTFT against the rate of requests, up to where no steady state is left.

    \b
    kvroof plot load llama-3.1-8b h100-sxm --ttft 1s --out load.html
    """
    from kvroof.cli.serving_sweeps import load_curve
    from kvroof.serving.demand.lengths import parse_lengths
    from kvroof.serving.demand.traffic import traffic
    from kvroof.view.figures.load import ttft_against_load

    plan = deployed.plan(model, hw)
    requests = traffic(parse_lengths(isl, "--isl"), parse_lengths(osl, "--osl"))
    curves = {
        name: load_curve(plan, requests, Policy(name=name), utilization, reserve)
        for name in dict.fromkeys(policies)
    }
    return ttft_against_load(
        {name: states for name, (states, _) in curves.items()},
        {name: limit for name, (_, limit) in curves.items() if limit is not None},
        f"{_deployed(plan)}, {isl} prompt and {osl} output tokens",
        ttft,
        calibration_of(plan),
    )


@click.command("measured")
@click.option("--points", metavar="FILE", help="Measured points; published ones where it is left out.")
@filling
@options.calibrated
@drawn
def draw_measured(points: str | None, known: dict[str, str], calibration: str) -> Figure:
    """Predicted against measured TPOT and TTFT, with the error.

    \b
    kvroof plot measured --points runs.csv --out measured.html
    """
    from kvroof.calibration.measured import gather
    from kvroof.calibration.validate import validate
    from kvroof.view.figures.measured import predicted_against_measured

    found = gather(points, known)
    answer = validate(
        found.points,
        calibration=calibration,
        sources=found.sources,
        left_out=found.left_out,
        notes=found.notes,
        progress=steps,
    )
    return predicted_against_measured(answer)


@click.command("schedule")
@click.argument("model")
@click.argument("hw")
@options.lengths(osl=64)
@options.shown("--rate", 20.0, "Requests per second, Poisson.", ARRIVALS)
@options.shown("--requests", 24, "Requests.")
@click.option(
    "--policy",
    type=click.Choice(POLICIES, case_sensitive=False),
    default="chunked",
    show_default=True,
    help="Which requests share a step.",
)
@options.shown("--max-num-seqs", 8, "Requests that run at a time.")
@options.shown("--max-num-batched-tokens", 2048, "Tokens of a step.")
@options.shown("--seed", 0, "Of the arrivals.")
@deployment
@options.utilization
@options.reserve
@drawn
def draw_schedule(
    model: str,
    hw: str,
    isl: int,
    osl: int,
    rate: float,
    requests: int,
    policy: PolicyName,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    seed: int,
    deployed: Deployed,
    utilization: float,
    reserve: int,
) -> Figure:
    """The Gantt chart of a simulated run: which request waits, prefills and decodes when.

    \b
    kvroof plot schedule llama-3.1-8b h100-sxm --rate 20 --out schedule.html
    """
    from kvroof.cli.serving_sweeps import simulated
    from kvroof.view.figures.schedule import MOST_REQUESTS, gantt
    from kvroof.view.theme import calibrated

    if not 1 <= requests <= MOST_REQUESTS:
        raise BadInput(f"{requests} is not between 1 and {MOST_REQUESTS}", where="--requests")
    plan = deployed.plan(model, hw)
    limits = Policy(name=policy, max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens)
    ran = simulated(
        plan,
        limits,
        isl=isl,
        osl=osl,
        rate=rate,
        requests=requests,
        seed=seed,
        utilization=utilization,
        reserve_bytes=reserve,
    )
    asked = f"{_deployed(plan)}, {isl:,} prompt and {osl:,} output tokens, {rate:g} requests/s (seed {seed})"
    how = (
        f"{policy} batching, at most {max_num_seqs} at a time and {max_num_batched_tokens:,} tokens in a step"
    )
    return gantt(ran.spans, ran.served, f"{asked}; {how}", calibrated(calibration_of(plan)))


def _deployed(plan: Plan) -> str:
    devices = plan.layout.devices
    several = f"{devices} x " if devices > 1 else ""
    return f"{plan.model.name} on {several}{plan.hardware.name}"
