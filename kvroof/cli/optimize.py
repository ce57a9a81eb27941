"""`kvroof optimize`: the best operating point under limits, what binds it, and what more is worth."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click

from kvroof.catalog.whole_file import write_whole
from kvroof.cli import options
from kvroof.cli.output import plain, print_json, print_view
from kvroof.cli.quantities import ARRIVALS, CHUNK, TIME, prices_of, written
from kvroof.ground.errors import BadInput
from kvroof.ground.numeric import ceil_div
from kvroof.memory.allocators import EngineName
from kvroof.search.question import Chunking, FrontierKind, Goal, Objective
from kvroof.spec.parallel import Layout

if TYPE_CHECKING:
    from kvroof.search.choices import Axes
    from kvroof.search.frontier import Frontier
    from kvroof.search.outcome import OperatingPoint
    from kvroof.search.relaxed_search import Search
    from kvroof.serving.demand.lengths import Lengths
    from kvroof.spec.hardware import Hardware

F = TypeVar("F", bound=Callable[..., Any])

MOST_DEVICES = 8
MOST_FLEET = 65_536
"""Devices of a replica where nobody bounds them, and of all replicas that serve a rate."""


def _axis(name: str, text: str) -> Callable[[F], F]:
    return click.option(f"--{name}", type=click.IntRange(1), help=f"{text}; free if left out.")


_ranks = options.gathered(
    "ranks",
    options.given,
    _axis("tp", "Tensor-parallel ranks"),
    _axis("pp", "Pipeline stages"),
    _axis("dp", "Groups of ranks that share experts"),
    _axis("ep", "Parts that routed experts are dealt into"),
    click.option(
        "--dcp", type=click.IntRange(1), default=1, help="Ranks sharing a KV head's tokens in decode."
    ),
)


@click.command("optimize")
@click.argument("model")
@click.argument("hw", nargs=-1, required=True, metavar="HW...|all")
@options.spread_lengths
@click.option("--lengths-from", metavar="TRACE", help="Take both lengths from a trace of requests.")
@options.cached_prefix
@click.option("--ttft", type=TIME, help="Limit on the time to the first token, e.g. 1s.")
@click.option("--tpot", type=TIME, help="Limit on the time per further token, e.g. 50ms.")
@options.slo_percentile
@click.option("--rate", type=ARRIVALS, help="Requests per second to serve: the fewest devices that do.")
@click.option(
    "--objective",
    type=click.Choice(get_args(Objective), case_sensitive=False),
    default="throughput",
    show_default=True,
    help="Tokens/s per device, time of a request, dollars or joules per token.",
)
@click.option(
    "--maximize",
    type=click.Choice(get_args(Goal), case_sensitive=False),
    default="throughput",
    show_default=True,
    help="Or the longest context (of --batch sequences), or the largest batch, that keeps the limits.",
)
@click.option("--batch", type=click.IntRange(1), help="Sequences at once, where they are given.")
@click.option("--max-batch", type=click.IntRange(1), help="Sequences at once at most.")
@click.option("--chunk", type=CHUNK, default="auto", show_default=True, help="Prompt tokens of a step.")
@click.option(
    "--frontier",
    "kind",
    type=click.Choice(get_args(FrontierKind), case_sensitive=False),
    help="Not one point but all that none beats: tokens/s per device against tokens/s per user or TTFT,"
    " or sequences against context.",
)
@options.prices
@click.option("--max-devices", type=click.IntRange(1, MOST_FLEET), help="Devices at most.  [default: 8]")
@_ranks
@options.started_engine("vllm", "sglang", "tensorrt-llm", "llama.cpp")
@options.block_size
@click.option("--kv-dtype", "kv_dtypes", multiple=True, help="auto, a dtype or K/V; several are compared.")
@click.option(
    "--weights-dtype", "weights_dtypes", multiple=True, help="auto or a dtype; several are compared."
)
@options.utilization
@options.reserve
@options.calibrated
@click.option("--verify", is_flag=True, help="Also evaluate every whole point, and say how far off this is.")
@click.option(
    "--table",
    type=written(".csv", ".parquet"),
    metavar="FILE",
    help="Write every evaluated point to a .csv or a .parquet.",
)
@options.ignore_key
@options.json_output
def command(
    model: str,
    hw: tuple[str, ...],
    isl: str,
    osl: str,
    lengths_from: str | None,
    cached_prefix: int,
    ttft: float | None,
    tpot: float | None,
    slo_percentile: float,
    rate: float | None,
    objective: Objective,
    maximize: Goal,
    batch: int | None,
    max_batch: int | None,
    chunk: int | Chunking,
    kind: FrontierKind | None,
    prices: tuple[tuple[str, float], ...],
    max_devices: int | None,
    ranks: dict[str, Any],
    engine: EngineName | None,
    block_size: int,
    kv_dtypes: tuple[str, ...],
    weights_dtypes: tuple[str, ...],
    utilization: float,
    reserve: int,
    calibration: str,
    verify: bool,
    table: Path | None,
    ignore_keys: tuple[str, ...],
    as_json: bool,
) -> None:
    """The best machine, layout, batch and chunk under limits, what binds, and what one more GB/s is worth.

    \b
    kvroof optimize qwen3-32b h200-sxm --isl 4000 --osl 1000 --ttft 1s --tpot 20ms
    kvroof optimize llama-3.1-8b all --tpot 30ms --max-devices 1
    kvroof optimize llama-3.1-70b h100-sxm b200-sxm --objective cost --price h100-sxm=2.5 --price b200-sxm=5
    kvroof optimize llama-3.1-70b h200-sxm --maximize context --batch 4 --ttft 30s
    kvroof optimize llama-3.1-8b h100-sxm --rate 40 --isl 1020/2734 --osl 200/500 --ttft 1s --tpot 50ms
    kvroof optimize llama-3.1-8b h100-sxm b200-sxm --max-devices 1 --frontier interactivity
    """
    from kvroof.calibration.load import efficiencies
    from kvroof.catalog.models import load_model
    from kvroof.search.choices import Axes, Stores, plans
    from kvroof.search.frontier import frontier
    from kvroof.search.optimize import answer
    from kvroof.search.question import Question
    from kvroof.search.relaxed_search import Search
    from kvroof.search.sizing import size_for_rate
    from kvroof.serving.pools.goodput import limits

    machines = _machines(hw)
    names = [machine.name for machine in machines]
    priced = efficiencies(calibration, names)
    prompts, outputs = _lengths(isl, osl, lengths_from)
    question = Question(
        isl=prompts,
        osl=outputs,
        cached=cached_prefix,
        limits=limits(ttft, tpot, slo_percentile / 100),
        objective=objective,
        maximize=maximize,
        batch=batch,
        most_batch=max_batch,
        chunk=chunk,
        utilization=utilization,
        reserve_bytes=reserve,
        prices=prices_of(prices, names),
    )
    if kind is not None and (rate is not None or verify or table is not None or engine is not None):
        raise BadInput(
            "a frontier is many points",
            where="--frontier",
            way_out="leave --rate, --verify, --table and --engine out",
        )
    if rate is not None and (verify or table is not None):
        raise BadInput("a rate is served by trial", where="--rate", way_out="leave --verify and --table out")
    most = max_devices or MOST_DEVICES
    axes = Axes(**ranks, most_devices=most)
    if rate is not None and max_devices is not None:
        axes = replace(axes, most_devices=max(min(most, MOST_DEVICES), _asked(axes)))
    choices = plans(
        load_model(model, ignore_keys=ignore_keys),
        machines,
        axes,
        Stores(kv=kv_dtypes or ("auto",), weights=weights_dtypes or ("auto",), block_size=block_size),
        lambda machine: priced[machine.name],
    )
    if kind is not None:
        every = frontier(choices, question, kind)
        _show_frontier(every, as_json)
        sys.exit(0 if every.points else 1)
    if rate is None:
        search = Search(choices, question, remember=table is not None)
        found = answer(search, verify=verify)
        if table is not None:
            _write(search, table)
    else:
        found = size_for_rate(choices, question, rate, max_devices or MOST_FLEET)
    commands: tuple[str, ...] = ()
    if engine is not None and found.feasible:
        own = tuple(weights_dtypes) in ((), ("auto",))
        commands = _commands(engine, model, found.best, prompts, outputs, utilization, rate is not None, own)
    if as_json:
        print_json(plain(found) | ({"commands": commands} if engine is not None else {}))
    else:
        from kvroof.view.operating_point import answer_view

        print_view(answer_view(found, question, rate, commands))
    sys.exit(0 if found.feasible else 1)


def _show_frontier(found: Frontier, as_json: bool) -> None:
    """Print the points that none beats."""
    if as_json:
        print_json(found)
    else:
        from kvroof.view.operating_point import frontier_view

        print_view(frontier_view(found))


def _commands(
    engine: EngineName,
    model: str,
    best: OperatingPoint,
    isl: Lengths,
    osl: Lengths,
    utilization: float,
    budget: bool,
    own_weights: bool,
) -> tuple[str, ...]:
    """Return what starts one replica of the best point.

    A chunk is of prompt tokens beside the decodes, as SGLang has it; with a rate (`budget`) it is the tokens
    of a step in all.
    """
    from kvroof.memory.commands import Served, pool_lines

    prompt = best.isl if len(isl.values) == 1 else isl.longest
    seqs = best.max_num_seqs or ceil_div(best.batch, best.replicas)
    step = best.chunk
    if step is not None and not budget and engine != "sglang":
        step += ceil_div(seqs, best.dp)
    served = Served(
        layout=Layout(tp=best.tp, pp=best.pp, dp=best.dp, ep=best.ep, dcp=best.dcp),
        tokens=math.ceil(prompt + osl.longest),
        seqs=seqs,
        step_tokens=step,
        kv_dtype=best.kv_dtype,
        weights_dtype=None if own_weights else best.weights_dtype,
        utilization=utilization,
    )
    return pool_lines(engine, options.served_name(model), served)


def _write(search: Search, path: Path) -> None:
    """Write the evaluated points of a search, as the file's ending says."""
    from kvroof.search.evaluated import csv_text, evaluated, parquet_bytes

    columns = evaluated(search)
    text = path.suffix.lower() == ".csv"
    write_whole(path, csv_text(columns) if text else parquet_bytes(columns), f"--table {path}")


def _machines(names: tuple[str, ...]) -> list[Hardware]:
    """Return the machines that were named, each once; `all` is the whole catalog."""
    from kvroof.catalog.profiles import hardware_names, load_hardware

    if "all" in names:
        return [load_hardware(name) for name in hardware_names()]
    found = [load_hardware(name) for name in names]
    return list({machine.name: machine for machine in found}.values())


def _lengths(isl: str, osl: str, trace: str | None) -> tuple[Lengths, Lengths]:
    """Return the lengths of prompts and outputs, as given or as a trace has them."""
    from kvroof.serving.demand.lengths import empirical, parse_lengths

    if trace is None:
        return parse_lengths(isl, "--isl"), parse_lengths(osl, "--osl")
    if not (options.left_out("isl") and options.left_out("osl")):
        raise BadInput(
            "the trace has both lengths", where="--lengths-from", way_out="leave --isl and --osl out"
        )
    from kvroof.serving.demand.traces import read_trace

    requests = read_trace(trace)
    return (
        empirical((max(r.input_tokens, 1) for r in requests), trace),
        empirical((max(r.output_tokens, 1) for r in requests), trace),
    )


def _asked(axes: Axes) -> int:
    """Return the devices that the given axes take."""
    return (axes.tp or 1) * (axes.pp or 1) * (axes.dp or 1)
