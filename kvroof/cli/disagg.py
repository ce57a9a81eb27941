"""`kvroof disagg`: one pool, or one for prefill and one for decode."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import click

from kvroof.catalog.models import load_model
from kvroof.catalog.profiles import load_hardware
from kvroof.cli import options
from kvroof.cli.output import plain, print_json, print_view
from kvroof.cli.progress import working
from kvroof.cli.quantities import ARRIVALS, COUNTS, RATE, TIME, prices_of
from kvroof.ground.errors import BadInput, KvroofError
from kvroof.memory.allocators import EngineName
from kvroof.roofline.collectives import has_link
from kvroof.roofline.efficiency import Efficiency
from kvroof.roofline.plan import Plan
from kvroof.serving.pools.break_even import What
from kvroof.spec.architecture import Architecture
from kvroof.spec.hardware import Hardware
from kvroof.spec.parallel import Layout

if TYPE_CHECKING:
    from kvroof.serving.pools.verdict import Instances

FIRST_MACHINE = "h100-sxm"
"""Of both pools where none is named."""
RANKS = (1, 2, 4, 8, 16)
MAX_DEVICES = 4096
Flips: TypeAlias = Literal["none", "quick", "all"]
ROLES = {"both": "one pool", "prefill": "prefill of two pools", "decode": "decode of two pools"}
QUICK: tuple[What, ...] = ("rate", "link")


@click.command("disagg")
@click.argument("model")
@click.argument("hws", nargs=-1, metavar="[HW]...")
@click.option("--prefill", metavar="HW", help="Of the prefill pool, where it has one of its own.")
@click.option("--decode", metavar="HW", help="Of the decode pool; the prefill pool's if left out.")
@click.option("--tp", type=COUNTS, help="Ranks of an instance, to try each: 4 or 2,4,8; all that fit.")
@click.option("--prefill-tp", type=COUNTS, help="The same for prefill instances alone.")
@click.option("--decode-tp", type=COUNTS, help="The same for decode instances alone.")
@click.option("--ep", is_flag=True, help="Deal routed experts over the ranks of an instance.")
@click.option("--link", type=RATE, help="KV link per device, one way, e.g. 400Gb/s; the scale-out.")
@click.option("--rate", type=ARRIVALS, help="Requests per second to serve, at which times are given.")
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
    type=click.Choice(get_args(Flips), case_sensitive=False),
    default="quick",
    show_default=True,
    help="What would flip it: the rate and the link; all tries limits, lengths and prefix hits, for minutes.",
)
@options.started_engine("vllm", "sglang", "tensorrt-llm")
@options.utilization
@options.reserve
@options.kv_dtype
@options.weights_dtype
@options.calibrated
@options.ignore_key
@options.json_output
def command(
    model: str,
    hws: tuple[str, ...],
    prefill: str | None,
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
    engine: EngineName | None,
    utilization: float,
    reserve: int,
    kv_dtype: str,
    weights_dtype: str,
    calibration: str,
    ignore_keys: tuple[str, ...],
    as_json: bool,
) -> None:
    """One pool or two of the same number of devices: goodput, times, the verdict and what would flip it.

    Either pool may be of each HW, h100-sxm where none is named; --prefill and --decode give each its own.
    Exit 1 when neither way serves --rate.

    \b
    kvroof disagg llama-3.1-8b --max-devices 2 --tp 1
    kvroof disagg llama-3.1-8b h200-sxm --max-devices 2 --rate 20 --ttft 1s --tpot 30ms --break-even none
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
    fillers, decoders = _machines(hws, prefill, decode)
    chips = {chip.name: chip for chip in (*fillers, *decoders)}
    priced, paid = efficiencies(calibration, chips), prices_of(prices, chips, of_all=True)
    free = tuple(n for n in RANKS if n <= max_devices // 2)
    joined = {chip.name: _joined(chip, free) for chip in chips.values()}

    def plans(machines: Iterable[Hardware], ranks: Sequence[int] | None) -> list[Plan]:
        found = []
        for chip in machines:
            layouts = [Layout(tp=n, ep=n if ep else 1) for n in ranks or joined[chip.name]]
            found += _plans(arch, chip, layouts, kv_dtype, weights_dtype, priced[chip.name])
        return [plan for plan in found if plan.layout.devices <= max_devices]

    first, later = plans(fillers, prefill_tp or tp), plans(decoders, decode_tp or tp)
    either = plans(chips.values(), tp)
    kept = limits(ttft, tpot, slo_percentile / 100)
    carried = (
        kv_link("KV link", link)
        if link is not None
        else min(map(scale_out_link, fillers), key=lambda found: found.bytes_per_s)
    )

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
    apart = () if tp else tuple(_left_out(chip, free, joined[chip.name]) for chip in chips.values())
    answer = replace(answer, assumptions=(*answer.assumptions, *filter(None, apart)))
    commands = {}
    if engine is not None:
        longest = math.ceil(asked.isl.longest + asked.osl.longest)
        held = None if weights_dtype == "auto" or not either[0].formats else either[0].formats.name
        commands = {
            f"each of {pool.instances} on {pool.hw}, {ROLES[pool.role]}": _started(
                engine, options.served_name(model), pool, longest, either[0].kv_format.name, held, utilization
            )
            for side in (answer.aggregated, answer.disaggregated)
            if side is not None
            for pool in side.pools
        }
    if as_json:
        print_json(plain(answer) | ({"commands": commands} if engine is not None else {}))
    else:
        from kvroof.view.pools import pools_view

        print_view(pools_view(arch.name, answer, (ttft, tpot, slo_percentile), commands))
    sys.exit(1 if answer.served_by == "neither" else 0)


def _started(
    engine: EngineName,
    name: str,
    pool: Instances,
    tokens: int,
    kv_dtype: str,
    weights_dtype: str | None,
    utilization: float,
) -> tuple[str, ...]:
    """Return what starts one instance of a pool."""
    from kvroof.memory.commands import Served, pool_lines

    served = Served(
        role=pool.role,
        layout=Layout(tp=pool.tp, ep=pool.ep),
        tokens=tokens,
        seqs=pool.max_num_seqs,
        step_tokens=pool.max_num_batched_tokens,
        kv_dtype=kv_dtype,
        weights_dtype=weights_dtype,
        utilization=utilization,
    )
    return pool_lines(engine, name, served)


def _machines(
    names: Sequence[str], prefill: str | None, decode: str | None
) -> tuple[tuple[Hardware, ...], tuple[Hardware, ...]]:
    """Return the machines that the prefill pool may be of, and those that the decode pool may be of.

    Raises:
        BadInput: Machines of both pools beside those of each.
    """
    if names and (prefill is not None or decode is not None):
        raise BadInput(
            "a HW after the model is of both pools",
            where="--prefill/--decode",
            way_out="name machines one way or the other",
        )
    first = prefill or FIRST_MACHINE
    both = names or (first,)
    later = names or (decode or first,)
    return tuple(map(load_hardware, dict.fromkeys(both))), tuple(map(load_hardware, dict.fromkeys(later)))


def _joined(machine: Hardware, ranks: Sequence[int]) -> tuple[int, ...]:
    """Return those numbers of ranks between which the machine has a link."""
    return tuple(n for n in ranks if n == 1 or has_link(machine, n))


def _left_out(machine: Hardware, ranks: Sequence[int], joined: Sequence[int]) -> str | None:
    """Return what is said of layouts that were not tried for want of a link."""
    apart = [str(n) for n in ranks if n not in joined]
    if not apart:
        return None
    return (
        f"instances of {', '.join(apart)} x {machine.name} are left out: no link among them is known"
        " ([scale_up] of its profile)"
    )


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
