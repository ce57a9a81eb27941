"""`kvroof plot pools`: maps of where splitting prefill from decode pays."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from kvroof.cli import options
from kvroof.cli.deployed import Deployed, deployment
from kvroof.cli.plot import drawn
from kvroof.cli.progress import steps
from kvroof.cli.quantities import COUNTS, RATE, TIMES
from kvroof.cli.sweeps import calibration_of
from kvroof.ground.errors import BadInput
from kvroof.ground.units import format_decimal, format_time

if TYPE_CHECKING:
    from kvroof.roofline.plan import Plan
    from kvroof.serving.pools.goodput import Limits
    from kvroof.serving.pools.transfer import KVLink
    from kvroof.view.theme import Figure

LENGTHS, RATE_TPOT, RATE_TTFT = "lengths", "rate-tpot", "rate-ttft"


@click.command("pools")
@click.argument("model")
@click.argument("hw")
@click.option("--decode", "decode_hw", metavar="HW", help="The decode pool's machine, where it is another.")
@click.option(
    "--axes",
    type=click.Choice((LENGTHS, RATE_TPOT, RATE_TTFT), case_sensitive=False),
    default=LENGTHS,
    show_default=True,
    help="Prompts against outputs, or the rate of requests against a limit.",
)
@click.option("--isl", type=COUNTS, help="Prompt tokens: 512,2048; for a map of rates 2048.")
@click.option("--osl", type=COUNTS, help="Output tokens: 64,256; for a map of rates 256.")
@click.option("--ttft", type=TIMES, default=(), help="The TTFT that requests must keep: 1s.")
@click.option("--tpot", type=TIMES, default=(), help="The TPOT that they must keep: 50ms, or 15ms,25ms.")
@click.option("--link", type=RATE, default="400Gb/s", show_default=True, help="Between two devices.")
@options.slo_percentile
@options.shown("--max-devices", 8, "Devices of either way.")
@deployment
@drawn
def draw_pools(
    model: str,
    hw: str,
    decode_hw: str | None,
    axes: str,
    isl: tuple[int, ...] | None,
    osl: tuple[int, ...] | None,
    ttft: tuple[float, ...],
    tpot: tuple[float, ...],
    link: float,
    slo_percentile: float,
    max_devices: int,
    deployed: Deployed,
) -> Figure:
    """Where splitting prefill from decode serves more than one pool: by lengths, or by rate and limit.

    Each length, or each limit, is solved with its error, which takes some seconds.

    \b
    kvroof plot pools llama-3.1-8b h100-sxm --isl 2048 --osl 64 --tpot 25ms --out pools.html
    kvroof plot pools llama-3.1-8b h100-sxm --axes rate-tpot --tpot 20ms --max-devices 2 --out pools.html
    """
    from kvroof.serving.pools.goodput import limits
    from kvroof.serving.pools.transfer import KVLink

    isl = isl or ((512, 2048) if axes == LENGTHS else (2048,))
    osl = osl or ((64, 256) if axes == LENGTHS else (256,))
    if min(*isl, *osl) < 1:
        raise BadInput("a length is not positive", where="--isl/--osl")
    first, *others = deployed.plans(model, [hw] if decode_hw is None else [hw, decode_hw])
    later = others[0] if others else first
    machines = hw if decode_hw is None else f"{hw} for prefill, {decode_hw} for decode"
    asked = f"{first.model.name} on {max_devices} devices, {machines}"
    wire = KVLink(name="link", bytes_per_s=link)
    if axes == LENGTHS:
        kept = limits(_only(ttft, "--ttft"), _only(tpot, "--tpot"), slo_percentile / 100)
        return _by_lengths(first, later, isl, osl, kept, wire, max_devices, asked)
    for option, lengths in (("--isl", isl), ("--osl", osl)):
        if len(set(lengths)) > 1:
            raise BadInput("a map of rates is of one length", where=option, way_out="give one number")
    share = slo_percentile / 100
    return _by_rate(first, later, isl[0], osl[0], axes, ttft, tpot, share, wire, max_devices, asked)


def _by_lengths(
    first: Plan,
    later: Plan,
    isl: tuple[int, ...],
    osl: tuple[int, ...],
    kept: Limits,
    wire: KVLink,
    devices: int,
    asked: str,
) -> Figure:
    """Return the map of prompts against outputs."""
    from kvroof.cli.serving_sweeps import pool_choice, pool_question
    from kvroof.view.figures.pools import pool_map

    prompts, outputs = sorted(set(isl)), sorted(set(osl))
    cells = [pool_question(first, later, i, o, kept, wire, devices) for o in outputs for i in prompts]
    solved = [pool_choice(cell) for cell in steps(cells)]
    wide = len(prompts)
    named = [
        f"{name} within {format_time(t)}" for name, t in (("TTFT", kept.ttft_s), ("TPOT", kept.tpot_s)) if t
    ]
    return pool_map(
        [solved[start : start + wide] for start in range(0, len(solved), wide)],
        ("prompt, tokens", prompts),
        ("output, tokens", outputs),
        f"{asked}; {' and '.join(named) or 'no limit'} for {100 * kept.percentile:g} % of the requests;"
        f" {_over(wire)}",
        _note(first, later),
    )


def _by_rate(
    first: Plan,
    later: Plan,
    isl: int,
    osl: int,
    axes: str,
    ttft: tuple[float, ...],
    tpot: tuple[float, ...],
    share: float,
    wire: KVLink,
    devices: int,
    asked: str,
) -> Figure:
    """Return the map of rates against the limit that the axes name; the other one is the same for all."""
    from kvroof.cli.serving_sweeps import pool_choice, pool_question
    from kvroof.serving.pools.goodput import limits
    from kvroof.view.figures.rates import rate_map

    name, option, moved = ("TPOT", "--tpot", tpot) if axes == RATE_TPOT else ("TTFT", "--ttft", ttft)
    other, held = ("TTFT", _only(ttft, "--ttft")) if axes == RATE_TPOT else ("TPOT", _only(tpot, "--tpot"))
    if not moved:
        raise BadInput(f"the map is over {name} limits", where=option, way_out="give some: 15ms,25ms,50ms")
    # The step times of the instances are tabled once, for all limits.
    question = pool_question(first, later, isl, osl, limits(None, None), wire, devices)
    kept = [limits(held, t, share) if axes == RATE_TPOT else limits(t, held, share) for t in moved]
    solved = [pool_choice(replace(question, limits=each)) for each in steps(kept)]
    beside = f", {other} within {format_time(held)}" if held else ""
    return rate_map(
        solved,
        name,
        moved,
        f"{asked}, {isl:,} prompt and {osl:,} output tokens{beside}; {100 * share:g} % of the requests;"
        f" {_over(wire)}",
        _note(first, later),
    )


def _only(times: tuple[float, ...], option: str) -> float | None:
    """Return the one time given, None where there is none.

    Raises:
        BadInput: Several.
    """
    if len(times) > 1:
        raise BadInput("several limits", where=option, way_out=f"give one, or --axes rate-{option[2:]}")
    return times[0] if times else None


def _over(wire: KVLink) -> str:
    return f"KV over {format_decimal(wire.bytes_per_s, 'B/s')} per device"


def _note(*plans: Plan) -> str:
    from kvroof.view.theme import each_calibrated

    return "; ".join(each_calibrated([(plan.hardware.name, calibration_of(plan)) for plan in plans]))
