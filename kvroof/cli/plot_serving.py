"""Figures of `kvroof plot` about serving over time: load, pools, measured, schedule."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

import click

from kvroof.cli import options
from kvroof.cli.deployed import Time, chosen_plan, deployment
from kvroof.cli.plot import drawn
from kvroof.cli.points_options import filling
from kvroof.cli.sweeps import calibration_of
from kvroof.ground.errors import BadInput
from kvroof.ground.units import format_decimal, format_time
from kvroof.schedule.policies import Policy, PolicyName

if TYPE_CHECKING:
    from kvroof.roofline.plan import Plan
    from kvroof.view.theme import Figure

T = TypeVar("T")
POLICIES = ("chunked", "continuous", "static")


@click.command("load")
@click.argument("model")
@click.argument("hw")
@click.option("--isl", default="2048", show_default=True, help="Prompt tokens: a number, or p50/p90.")
@click.option("--osl", default="256", show_default=True, help="Output tokens: a number, or p50/p90.")
@click.option(
    "--policy",
    "policies",
    type=click.Choice(POLICIES),
    multiple=True,
    default=POLICIES[:2],
    show_default=True,
    help="Which requests share a step; repeatable.",
)
@click.option("--ttft", type=Time(), help="The TTFT asked for, e.g. 1s.")
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
    utilization: float,
    reserve: int,
) -> Figure:
    """Median and p90 TTFT against the rate of requests, up to where no steady state is left.

    \b
    kvroof plot load llama-3.1-8b h100-sxm --ttft 1s --out load.html
    """
    from kvroof.cli.serving_sweeps import load_curve
    from kvroof.serving.lengths import parse_lengths
    from kvroof.serving.traffic import traffic
    from kvroof.view.figures.load import ttft_against_load

    plan = chosen_plan(model, hw)
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


@click.command("pools")
@click.argument("model")
@click.argument("hw")
@click.option("--decode", "decode_hw", metavar="HW", help="The decode pool's machine, where it is another.")
@click.option(
    "--isl", type=options.Lengths(), default=(512, 2048, 8192), help="Prompt tokens; 512,2048,8192."
)
@click.option("--osl", type=options.Lengths(), default=(64, 256, 1024), help="Output tokens; 64,256,1024.")
@click.option("--ttft", type=Time(), help="The TTFT that 90 % of the requests must keep, e.g. 1s.")
@click.option("--tpot", type=Time(), help="The TPOT that they must keep, e.g. 50ms.")
@click.option(
    "--link", type=options.Rate(), default="400Gb/s", show_default=True, help="Between two devices."
)
@click.option("--max-devices", default=8, show_default=True, help="Devices of either way.")
@deployment
@drawn
def draw_pools(
    model: str,
    hw: str,
    decode_hw: str | None,
    isl: tuple[int, ...],
    osl: tuple[int, ...],
    ttft: float | None,
    tpot: float | None,
    link: float,
    max_devices: int,
) -> Figure:
    """Where splitting prefill from decode serves more than one pool: a map of prompts and outputs.

    Each cell is solved with its error, which takes some seconds.

    \b
    kvroof plot pools llama-3.1-8b h100-sxm --isl 2048 --osl 64,256 --tpot 25ms --out pools.html
    """
    from kvroof.cli.serving_sweeps import pool_choice
    from kvroof.serving.goodput import limits
    from kvroof.serving.transfer import KVLink
    from kvroof.view.figures.pools import pool_map
    from kvroof.view.theme import calibrated

    if min(*isl, *osl) < 1:
        raise BadInput("a length is not positive", where="--isl/--osl")
    first = chosen_plan(model, hw)
    later = chosen_plan(model, decode_hw) if decode_hw is not None else first
    asked, wire = limits(ttft, tpot), KVLink(name="link", bytes_per_s=link)
    prompts, outputs = sorted(set(isl)), sorted(set(osl))
    cells = [(i, o) for o in outputs for i in prompts]
    solved = [pool_choice(first, later, i, o, asked, wire, max_devices) for i, o in _progress(cells)]
    wide = len(prompts)
    kept = " and ".join(
        f"{name} within {format_time(t)}" for name, t in (("TTFT", ttft), ("TPOT", tpot)) if t is not None
    )
    machines = hw if decode_hw is None else f"{hw} for prefill, {decode_hw} for decode"
    return pool_map(
        [solved[start : start + wide] for start in range(0, len(solved), wide)],
        ("prompt, tokens", prompts),
        ("output, tokens", outputs),
        f"{first.model.name} on {max_devices} devices, {machines}; {kept or 'no limit'} for 90 % of the"
        f" requests; KV over {format_decimal(link, 'B/s')} per device",
        "; ".join(dict.fromkeys(calibrated(calibration_of(plan)) for plan in (first, later))),
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
        progress=_progress,
    )
    return predicted_against_measured(answer)


@click.command("schedule")
@click.argument("model")
@click.argument("hw")
@click.option("--isl", default=2048, show_default=True, help="Prompt tokens of each request.")
@click.option("--osl", default=64, show_default=True, help="Output tokens of each request.")
@click.option("--rate", default=20.0, show_default=True, help="Requests per second, Poisson.")
@click.option("--requests", default=24, show_default=True, help="Requests.")
@click.option(
    "--policy",
    type=click.Choice(POLICIES),
    default="chunked",
    show_default=True,
    help="Which requests share a step.",
)
@click.option("--max-num-seqs", default=8, show_default=True, help="Requests that run at a time.")
@click.option("--max-num-batched-tokens", default=2048, show_default=True, help="Tokens of a step.")
@click.option("--seed", default=0, show_default=True, help="Of the arrivals.")
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
    plan = chosen_plan(model, hw)
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


def _progress(items: Iterable[T]) -> Iterator[T]:
    """Yield the items under a bar on a terminal's standard error; silently elsewhere."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    yield from track(list(items), "solving", console=console, transient=True, disable=not console.is_terminal)
