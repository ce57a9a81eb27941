"""Figures of `kvroof plot` that ask for times of a batch: roofline, frontier, sensitivity."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kvroof.cli import options
from kvroof.cli.deployed import Deployed, deployment
from kvroof.cli.plot import drawn
from kvroof.cli.quantities import RATE, TWO_POOLS
from kvroof.cli.sweeps import calibration_of, kernel_families, loop_curve
from kvroof.ground.errors import BadInput
from kvroof.ground.units import format_decimal
from kvroof.serving.latency import estimate

if TYPE_CHECKING:
    from kvroof.view.theme import Figure


@click.command("roofline")
@click.argument("model")
@click.argument("hw")
@options.requests
@deployment
@drawn
def draw_roofline(model: str, hw: str, isl: int, osl: int, batch: int, deployed: Deployed) -> Figure:
    """Every operation of prefill and decode on the machine's roofline.

    \b
    kvroof plot roofline llama-3.1-8b h100-sxm --out roofline.html
    """
    from kvroof.view.figures.roofline import operations_on_roofline

    plan = deployed.plan(model, hw)
    answer = estimate(plan, isl=isl, osl=osl, batch=batch)
    return operations_on_roofline(answer, plan.hardware, plan.efficiency, kernel_families(plan, isl, batch))


@click.command("frontier")
@click.argument("model")
@click.argument("hws", nargs=-1, required=True, metavar="HW...")
@options.lengths()
@click.option(
    "--split",
    "splits",
    type=TWO_POOLS,
    multiple=True,
    metavar="P:D",
    help="Prefill and decode instances of a split deployment to draw too; repeatable.",
)
@click.option("--link", type=RATE, default="400Gb/s", show_default=True, help="Between two devices.")
@deployment
@options.utilization
@options.reserve
@drawn
def draw_frontier(
    model: str,
    hws: tuple[str, ...],
    isl: int,
    osl: int,
    splits: tuple[tuple[int, int], ...],
    link: float,
    deployed: Deployed,
    utilization: float,
    reserve: int,
) -> Figure:
    """Throughput per device against speed for one user, a line per machine.

    A closed loop of 1, 2, 4 ... requests; with --split, Poisson arrivals at rising rates, for all.

    \b
    kvroof plot frontier llama-3.1-8b h100-sxm b200-sxm --out frontier.html
    kvroof plot frontier llama-3.1-8b h100-sxm --split 1:1 --split 2:1 --out frontier.html
    """
    from kvroof.view.figures.frontier import latency_frontier

    plans = deployed.plans(model, dict.fromkeys(hws))
    if splits:
        from kvroof.cli.serving_sweeps import open_loop_curve, split_curve
        from kvroof.serving.demand.lengths import fixed
        from kvroof.serving.demand.traffic import traffic
        from kvroof.serving.pools.transfer import KVLink

        requests, wire = traffic(fixed(isl), fixed(osl)), KVLink(name="link", bytes_per_s=link)
        found = [open_loop_curve(plan, requests, utilization, reserve) for plan in plans]
        found += [
            split_curve(plan, counts, requests, wire, utilization, reserve)
            for plan in plans
            for counts in splits
        ]
        how = f"Poisson arrivals, means; split pools over {format_decimal(link, 'B/s')} per device"
    else:
        found = [loop_curve(plan, plan.hardware.name, isl, osl, utilization, reserve) for plan in plans]
        how = "closed loop"
    curves = [curve for curve in found if curve is not None]
    if not curves:
        raise BadInput("not one request fits on any of the machines", where=model, way_out="see kvroof fit")
    devices = plans[0].layout.devices
    on = f"{devices} devices" if devices > 1 else "one device"
    asked = f"{plans[0].model.name} on {on} an instance, {isl:,} prompt and {osl:,} output tokens; {how}"
    return latency_frontier(curves, asked)


@click.command("sensitivity")
@click.argument("model")
@click.argument("hw")
@options.requests
@deployment
@drawn
def draw_sensitivity(model: str, hw: str, isl: int, osl: int, batch: int, deployed: Deployed) -> Figure:
    """What a percent more of each thing changes TPOT and TTFT by, from the model's gradient.

    \b
    kvroof plot sensitivity llama-3.1-8b h100-sxm --out sensitivity.html
    """
    from kvroof.search.sensitivity import sensitivity as elasticities
    from kvroof.view.figures.sensitivity import sensitivity_bars
    from kvroof.view.theme import calibrated

    plan = deployed.plan(model, hw)
    asked = (
        f"{plan.model.name} on {plan.layout.devices} x {plan.hardware.name}, {batch:,} requests of"
        f" {isl:,} prompt and {osl:,} output tokens"
    )
    return sensitivity_bars(
        elasticities(plan, isl=isl, osl=osl, batch=batch), asked, calibrated(calibration_of(plan))
    )
