"""`kvroof report`: one HTML file about a model on some machines."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvroof.catalog.models import read_entry
from kvroof.catalog.profiles import load_profile
from kvroof.catalog.whole_file import write_whole
from kvroof.cli import options
from kvroof.cli.deployed import DEPLOYED, Deployed, deployment
from kvroof.cli.output import print_json
from kvroof.ground.errors import BadInput, UnknownName
from kvroof.ground.units import format_bytes
from kvroof.memory.describe import describe
from kvroof.roofline.efficiency import GENERIC
from kvroof.roofline.plan import Plan
from kvroof.serving.latency import estimate

if TYPE_CHECKING:
    from kvroof.view.report import Candidate, Command

MOST_MACHINES = 8
LONGEST = 131_072


@click.command("report")
@click.argument("model")
@click.argument("hws", nargs=-1, required=True, metavar="HW...")
@options.page_out
@options.requests
@deployment
@options.utilization
@options.reserve
@options.json_output
def command(
    model: str,
    hws: tuple[str, ...],
    out: Path,
    isl: int,
    osl: int,
    batch: int,
    deployed: Deployed,
    utilization: float,
    reserve: int,
    as_json: bool,
) -> None:
    """One HTML file: ledger, times, frontier, verdict, assumptions, sources, and how to make it again.

    Exit 1 when the requests fit on none of the machines.

    \b
    kvroof report llama-3.1-8b h100-sxm b200-sxm --out report.html
    """
    if len(hws) > MOST_MACHINES:
        raise BadInput(f"{len(hws)} machines are more than {MOST_MACHINES}", where="HW", way_out="name fewer")
    from kvroof.cli.sweeps import footprint_curve
    from kvroof.view.report import Report, report_page

    names = list(dict.fromkeys(hws))
    plans = deployed.plans(model, names)
    found = [
        _candidate(p, hw, isl, osl, batch, utilization, reserve) for p, hw in zip(plans, names, strict=True)
    ]
    arch = plans[0].model
    page = report_page(
        Report(
            card=describe(arch),
            origin=_origin(model),
            growth=footprint_curve(arch, plans[0].kv_format, 1, arch.max_position_embeddings or LONGEST),
            candidates=found,
            commands=_commands(model, dict(zip(names, plans, strict=True)), isl, osl, batch),
        )
    ).encode()
    write_whole(out, page, f"--out {out}")
    fits = {c.machine.name: c.answer.fits for c in found}
    if as_json:
        print_json({"path": str(out), "bytes": len(page), "fits": fits})
    else:
        for name, held in fits.items():
            click.echo(f"{'YES' if held else 'NO'}  {model} {'fits' if held else 'does not fit'} on {name}")
        click.echo(f"written to {out}, {format_bytes(len(page))}")
    sys.exit(0 if any(fits.values()) else 1)


def _candidate(
    plan: Plan, hw: str, isl: int, osl: int, batch: int, utilization: float, reserve: int
) -> Candidate:
    from kvroof.cli.sweeps import capacity_ledgers, equal_times, kernel_families, loop_curve
    from kvroof.view.report import Candidate

    ledgers = capacity_ledgers(plan, LONGEST, utilization, reserve)
    return Candidate(
        machine=plan.hardware,
        profile=load_profile(hw),
        answer=estimate(plan, isl=isl, osl=osl, batch=batch, utilization=utilization, reserve_bytes=reserve),
        efficiency=plan.efficiency,
        families=kernel_families(plan, isl, batch),
        ledgers=ledgers,
        lines=equal_times(plan, ledgers, ()),
        curve=loop_curve(plan, plan.hardware.name, isl, osl, utilization, reserve),
    )


def _origin(model: str) -> dict[str, str]:
    """Return where a catalog model's configuration is from; a file's own is its path."""
    try:
        entry = read_entry(model)
    except UnknownName:
        return {"file": model}
    return {
        "hub_id": entry.hub_id,
        "source": entry.source,
        "parameters_checked_against": entry.checked_against,
    }


def _commands(model: str, plans: Mapping[str, Plan], isl: int, osl: int, batch: int) -> list[Command]:
    """Return the commands whose answers stand in the report."""
    from kvroof.view.report import Command

    deployed, budget = options.words_given(DEPLOYED), options.words_given(("utilization", "reserve"))
    requests = ["--isl", str(isl), "--osl", str(osl)]
    batched = [*requests, "--batch", str(batch)]

    def line(*words: str) -> str:
        return shlex.join(["kvroof", *words])

    made = [
        Command(
            "This report", line("report", model, *plans, *batched, *deployed, *budget, "--out", "report.html")
        )
    ]
    for hw, plan in plans.items():
        alone = [*deployed, "--calibration", GENERIC] if plan.efficiency.name == GENERIC else deployed
        made += [
            Command(f"Times on {hw}", line("estimate", model, hw, *batched, *alone, *budget, "--explain")),
            Command(f"Sources of {hw}", line("show", hw)),
            Command(
                f"Roofline of {hw}",
                line("plot", "roofline", model, hw, *batched, *alone, "--out", "roofline.html"),
            ),
            Command(
                f"Capacity of {hw}",
                line("plot", "capacity", model, hw, *alone, *budget, "--out", "capacity.html"),
            ),
        ]
    frontier = line(
        "plot", "frontier", model, *plans, *requests, *deployed, *budget, "--out", "frontier.html"
    )
    return [*made, Command("Frontier", frontier)]
