"""`kvroof disagg`: one pool, or one for prefill and one for decode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import click

from kvroof.catalog.models import load_model
from kvroof.catalog.profiles import load_hardware
from kvroof.cli import options
from kvroof.cli.output import print_json, print_view
from kvroof.cli.progress import working
from kvroof.cli.quantities import COUNTS, RATE, TIME
from kvroof.ground.errors import BadInput, KvroofError
from kvroof.roofline.efficiency import IDENTITY
from kvroof.roofline.plan import Plan
from kvroof.serving.pools.break_even import What
from kvroof.spec.architecture import Architecture

RANKS = (1, 2, 4, 8, 16)
MAX_DEVICES = 4096
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
@click.option("--isl", default="2048", show_default=True, help="Prompt tokens: 2048, or 1020/2734 (p50/p90).")
@click.option("--osl", default="256", show_default=True, help="Output tokens, likewise.")
@click.option(
    "--prefix-hit", default=0.0, show_default=True, help="Share of prompt tokens found in the cache."
)
@click.option("--decode-hit", default=0.0, show_default=True, help="Share that the decode side has already.")
@click.option("--ttft", type=TIME, default="2s", show_default=True, help="Limit on the first token.")
@click.option("--tpot", type=TIME, default="50ms", show_default=True, help="Limit on each later token.")
@click.option(
    "--slo-percentile", default=90.0, show_default=True, help="Requests that keep them, in per cent."
)
@click.option("--max-devices", default=16, show_default=True, help="Devices of either way.")
@click.option(
    "--price", "prices", multiple=True, metavar="HW=USD", help="Per device and hour: at equal cost."
)
@click.option(
    "--break-even",
    type=click.Choice(("none", "quick", "all")),
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
    prices: tuple[str, ...],
    break_even: str,
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
    from kvroof.serving.demand.lengths import parse_lengths
    from kvroof.serving.demand.traffic import Traffic, traffic
    from kvroof.serving.pools.best_pools import Question, question_of
    from kvroof.serving.pools.goodput import limits
    from kvroof.serving.pools.transfer import kv_link, scale_out_link
    from kvroof.serving.pools.verdict import disaggregate

    if not 2 <= max_devices <= MAX_DEVICES:
        raise BadInput(f"{max_devices} is not between 2 and {MAX_DEVICES}", where="--max-devices")
    arch = load_model(model, ignore_keys=ignore_keys)
    chips = (prefill, decode or prefill)

    def plans(hw: str, ranks: tuple[int, ...] | None) -> list[Plan]:
        sizes = ranks or tp or tuple(n for n in RANKS if n <= max_devices // 2)
        found = _plans(arch, hw, sizes, ep, kv_dtype, weights_dtype, calibration)
        return [plan for plan in found if plan.layout.devices <= max_devices]

    first, later = plans(chips[0], prefill_tp), plans(chips[1], decode_tp)
    either = [plan for chip in dict.fromkeys(chips) for plan in plans(chip, None)]
    kept = limits(ttft, tpot, slo_percentile / 100)
    carried = kv_link("KV link", link) if link is not None else scale_out_link(load_hardware(chips[0]))

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
            prices=_prices(prices, chips),
        )
    if as_json:
        print_json(answer)
    else:
        from kvroof.view.pools import pools_view

        print_view(pools_view(arch.name, answer, (ttft, tpot, slo_percentile)))


def _plans(
    model: Architecture,
    hw: str,
    ranks: Sequence[int],
    ep: bool,
    kv_dtype: str,
    weights_dtype: str,
    calibration: str,
) -> list[Plan]:
    """Return the instances that may be made of a machine; layouts that the model refuses are left out.

    Raises:
        BadInput: No count of ranks that the model can be split over.
    """
    machine, efficiency = load_hardware(hw), IDENTITY
    if calibration != "none":
        from kvroof.calibration.load import load_calibration

        efficiency = load_calibration(calibration, machine.name) or IDENTITY
    found, refused = [], None
    for tp in ranks:
        try:
            found.append(
                Plan.of(
                    model,
                    machine,
                    tp=tp,
                    ep=tp if ep else 1,
                    kv_dtype=kv_dtype,
                    weights_dtype=weights_dtype,
                    efficiency=efficiency,
                )
            )
        except KvroofError as error:
            refused = error
    if not found and refused is not None:
        raise refused
    return found


def _prices(given: Sequence[str], chips: Sequence[str]) -> dict[str, float] | None:
    """Return prices by chip, None where none is given.

    Raises:
        BadInput: A price that cannot be read, or a chip without one.
    """
    if not given:
        return None
    found: dict[str, float] = {}
    for one in given:
        name, _, price = one.partition("=")
        try:
            found[load_hardware(name).name] = float(price)
        except ValueError:
            raise BadInput(f"{one!r} is no price", where="--price", way_out="write h100-sxm=2.5") from None
        if not found[load_hardware(name).name] > 0:
            raise BadInput(f"{one!r} is not a positive price", where="--price")
    for chip in chips:
        if load_hardware(chip).name not in found:
            raise BadInput(f"{chip} has no price", where="--price", way_out=f"add --price {chip}=2.5")
    return found
