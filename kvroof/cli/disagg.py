"""`kvroof disagg`: one pool, or one for prefill and one for decode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

import click

from kvroof.catalog.models import load_model
from kvroof.catalog.profiles import load_hardware
from kvroof.cli import options
from kvroof.cli.output import print_json, print_view
from kvroof.cli.progress import working
from kvroof.cli.quantities import COUNTS, RATE, TIME, prices_of
from kvroof.ground.errors import BadInput, KvroofError
from kvroof.roofline.efficiency import Efficiency
from kvroof.roofline.plan import Plan
from kvroof.serving.pools.break_even import What
from kvroof.spec.architecture import Architecture
from kvroof.spec.hardware import Hardware
from kvroof.spec.parallel import Layout

RANKS = (1, 2, 4, 8, 16)
MAX_DEVICES = 4096
Flips: TypeAlias = Literal["none", "quick", "all"]
QUICK: tuple[What, ...] = ("rate", "link")


@click.command("disagg")
@click.argument("model")
@click.option("--prefill", default="h100-sxm", show_default=True, metavar="HW", help="Of the prefill pool.")
@click.option("--decode", metavar="HW", help="Of the decode pool; the prefill pool's if left out.")
@click.option("--tp", type=COUNTS, help="Ranks of an instance, to try each: 4 or 2,4,8; all that fit.")
@click.option("--prefill-tp", type=COUNTS, help="The same for prefill instances alone.")
@click.option("--decode-tp", type=COUNTS, help="The same for decode instances alone.")
@click.option("--ep", is_flag=True, help="Deal routed experts over the ranks of an instance.")
@click.option("--link", type=RATE, help="KV link per device, one way, e.g. 400Gb/s; the scale-out.")
@click.option("--rate", type=float, help="Requests per second at which times are given; else each goodput.")
@options.spread_lengths
@options.shown("--prefix-hit", 0.0, "Share of prompt tokens found in the cache.")
@options.shown("--decode-hit", 0.0, "Share that the decode side has already.")
@click.option("--ttft", type=TIME, default="2s", show_default=True, help="Limit on the first token.")
@click.option("--tpot", type=TIME, default="50ms", show_default=True, help="Limit on each later token.")
@options.slo_percentile
@options.shown("--max-devices", 16, "Devices of either way.")
@options.prices
@click.option(
    "--break-even",
    type=click.Choice(get_args(Flips)),
    default="quick",
    show_default=True,
    help="What would flip it: the rate and the link; all tries limits, lengths and prefix hits, for minutes.",
)
@options.utilization
@options.reserve
@options.kv_dtype
@options.weights_dtype
@options.calibrated
@options.ignore_key
@options.json_output
def command(
    model: str,
    prefill: str,
    decode: str | None,
    tp: tuple[int, ...] | None,
    prefill_tp: tuple[int, ...] | None,
    decode_tp: tuple[int, ...] | None,
    ep: bool,
    link: float | None,
    rate: float | None,
    isl: str,
    osl: str,
    prefix_hit: float,
    decode_hit: float,
    ttft: float,
    tpot: float,
    slo_percentile: float,
    max_devices: int,
    prices: tuple[tuple[str, float], ...],
    break_even: Flips,
    utilization: float,
    reserve: int,
    kv_dtype: str,
    weights_dtype: str,
    calibration: str,
    ignore_keys: tuple[str, ...],
    as_json: bool,
) -> None:
    """One pool or two of the same number of devices: goodput, times, the verdict and what would flip it.

    \b
    kvroof disagg llama-3.1-8b --max-devices 2 --tp 1
    kvroof disagg llama-3.1-70b --prefill h100-sxm --decode h200-sxm --tp 4 --max-devices 8 --break-even none
    """
    from kvroof.calibration.load import efficiencies
    from kvroof.serving.demand.lengths import parse_lengths
    from kvroof.serving.demand.traffic import Traffic, traffic
    from kvroof.serving.pools.best_pools import Question, question_of
    from kvroof.serving.pools.goodput import limits
    from kvroof.serving.pools.transfer import kv_link, scale_out_link
    from kvroof.serving.pools.verdict import disaggregate

    if not 2 <= max_devices <= MAX_DEVICES:
        raise BadInput(f"{max_devices} is not between 2 and {MAX_DEVICES}", where="--max-devices")
    arch = load_model(model, ignore_keys=ignore_keys)
    filler, decoder = load_hardware(prefill), load_hardware(decode or prefill)
    chips = {chip.name: chip for chip in (filler, decoder)}
    priced, paid = efficiencies(calibration, chips), prices_of(prices, chips, of_all=True)
    sizes = tp or tuple(n for n in RANKS if n <= max_devices // 2)

    def plans(chip: Hardware, ranks: Sequence[int]) -> list[Plan]:
        layouts = [Layout(tp=n, ep=n if ep else 1) for n in ranks]
        found = _plans(arch, chip, layouts, kv_dtype, weights_dtype, priced[chip.name])
        return [plan for plan in found if plan.layout.devices <= max_devices]

    first, later = plans(filler, prefill_tp or sizes), plans(decoder, decode_tp or sizes)
    either = [plan for chip in chips.values() for plan in plans(chip, sizes)]
    kept = limits(ttft, tpot, slo_percentile / 100)
    carried = kv_link("KV link", link) if link is not None else scale_out_link(filler)

    def ask(asked: Traffic) -> Question:
        return question_of(
            either,
            first,
            later,
            asked,
            kept,
            carried,
            max_devices,
            utilization=utilization,
            reserve_bytes=reserve,
            decode_hit=decode_hit,
        )

    asked = traffic(parse_lengths(isl, "--isl"), parse_lengths(osl, "--osl"), prefix_hit=prefix_hit)
    with working("comparing one pool with two, with the error of either and what would flip the verdict"):
        answer = disaggregate(
            ask(asked),
            None if break_even == "none" else ask,
            whats=QUICK if break_even == "quick" else get_args(What),
            rate_rps=rate,
            prices=paid or None,
        )
    if as_json:
        print_json(answer)
    else:
        from kvroof.view.pools import pools_view

        print_view(pools_view(arch.name, answer, (ttft, tpot, slo_percentile)))


def _plans(
    model: Architecture,
    machine: Hardware,
    layouts: Sequence[Layout],
    kv_dtype: str,
    weights_dtype: str,
    efficiency: Efficiency,
) -> list[Plan]:
    """Return the instances that may be made of a machine; layouts that the model refuses are left out.

    Raises:
        BadInput: No layout that the model can be split over.
    """
    found, refused = [], None
    for layout in layouts:
        try:
            plan = Plan.of(
                model,
                machine,
                layout=layout,
                kv_dtype=kv_dtype,
                weights_dtype=weights_dtype,
                efficiency=efficiency,
            )
        except KvroofError as error:
            refused = error
        else:
            found.append(plan)
    if not found and refused is not None:
        raise refused
    return found
