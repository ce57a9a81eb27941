"""`kvroof simulate`: requests through a schedule, one by one."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Literal, cast, get_args

import click

from kvroof.catalog.whole_file import write_whole
from kvroof.cli import options
from kvroof.cli.deployed import Deployed, deployment
from kvroof.cli.output import plain, print_json, print_view
from kvroof.cli.quantities import COUNT_OR_ALL, RATE, SIZE, TIME, arrivals, written
from kvroof.ground.errors import BadInput
from kvroof.schedule.policies import Policy, PolicyName, Preemption
from kvroof.serving.demand.requests import Request, poisson
from kvroof.serving.pools.transfer import kv_link
from kvroof.serving.simulation.instances import Router

MAX_REQUESTS = 10**6
POLICIES = ("static", "continuous", "chunked", "disagg")


@click.command("simulate")
@click.argument("model")
@click.argument("hw")
@click.option(
    "--trace", "trace_file", metavar="FILE", help="Requests: Mooncake, Azure, BurstGPT or plain CSV."
)
@click.option(
    "--rate", type=arrivals(burst=True), help="Poisson arrivals per second, where there is no trace."
)
@click.option("--concurrency", type=int, help="A closed loop: so many requests are always in the system.")
@click.option("--requests", type=COUNT_OR_ALL, help="How many: 1000; all is all of a trace.")
@options.lengths()
@click.option("--turns", default=1, show_default=True, help="Turns of a conversation, each with --isl more.")
@click.option("--think", type=TIME, help="Mean time from one turn to the next, e.g. 30s.")
@click.option(
    "--policy", type=click.Choice(POLICIES, case_sensitive=False), default="chunked", show_default=True
)
@click.option("--instances", default=1, show_default=True, help="Replicas; of the prefill pool with disagg.")
@click.option(
    "--decode-instances", default=1, show_default=True, help="Replicas of the decode pool (disagg)."
)
@click.option("--decode", metavar="HW", help="Machine of the decode pool (disagg); the same if left out.")
@click.option("--link", type=RATE, help="KV link per device (disagg), e.g. 400Gb/s; the scale-out.")
@click.option(
    "--router",
    type=click.Choice(get_args(Router), case_sensitive=False),
    default="least_requests",
    show_default=True,
    help="Which instance takes a request; least_work goes by what is cached there.",
)
@click.option("--prefix-cache", is_flag=True, help="Reuse cached prefixes (a trace's hashes).")
@click.option(
    "--block-size",
    type=int,
    help="Tokens in a block; the engine's, and with --prefix-cache those that a trace's hashes name.",
)
@click.option("--max-num-seqs", default=256, show_default=True, help="Sequences that run at once.")
@click.option("--max-num-batched-tokens", default=8192, show_default=True, help="Tokens in one step.")
@click.option(
    "--preemption",
    type=click.Choice(("recompute", "swap"), case_sensitive=False),
    default="recompute",
    show_default=True,
)
@click.option(
    "--swap-space",
    type=SIZE,
    default="4GiB",
    show_default=True,
    help="Host memory of a device for what is swapped (--preemption swap).",
)
@click.option("--ttft", type=TIME, help="What goodput asks of the TTFT, e.g. 1s.")
@click.option("--tpot", type=TIME, help="What goodput asks of the TPOT, e.g. 50ms.")
@options.slo_percentile
@click.option("--seed", default=0, show_default=True, help="Of the arrivals.")
@click.option(
    "--out", type=written(), metavar="FILE", help="Write the schedule for chrome://tracing or Perfetto."
)
@options.utilization
@options.reserve
@deployment
@options.json_output
def command(
    model: str,
    hw: str,
    trace_file: str | None,
    rate: float | None,
    concurrency: int | None,
    requests: int | Literal["all"] | None,
    isl: int,
    osl: int,
    turns: int,
    think: float | None,
    policy: str,
    instances: int,
    decode_instances: int,
    decode: str | None,
    link: float | None,
    router: str,
    prefix_cache: bool,
    block_size: int | None,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    preemption: str,
    swap_space: int,
    ttft: float | None,
    tpot: float | None,
    slo_percentile: float,
    seed: int,
    out: Path | None,
    utilization: float,
    reserve: int,
    deployed: Deployed,
    as_json: bool,
) -> None:
    """TTFT, TPOT, gaps, queueing and goodput of requests that are served one by one.

    Exit 1 when fewer of them than --slo-percentile keep --ttft and --tpot, or some are not served.

    \b
    kvroof simulate llama-3.1-8b h100-sxm --rate 8 --requests 500
    kvroof simulate llama-3.1-70b h200-sxm --tp 4 --policy disagg --instances 2 --rate 4 --requests 200
    kvroof simulate llama-3.1-8b h100-sxm --concurrency 32 --requests 300 --ttft 1s --tpot 20ms
    kvroof simulate llama-3.1-8b h100-sxm --rate 8 --requests 300 --turns 5 --think 9s --prefix-cache
    """
    from kvroof.serving.simulation.replay import Deployed, replay

    split = policy == "disagg"
    if not split and (decode is not None or link is not None or not options.left_out("decode_instances")):
        raise BadInput("one pool has no decode pool and no link", where="--policy", way_out="--policy disagg")
    _refuse_unread(trace_file, concurrency, policy, preemption)
    if requests == "all":
        if trace_file is None:
            raise BadInput("only a trace has an end", where="--requests all", way_out="give a number")
        requests = None
    plan, *others = deployed.plans(model, [hw] if decode is None else [hw, decode])
    serving_block = block_size or plan.allocator.block_size
    if turns == 1 and think is None:
        asked = _asked(trace_file, rate, concurrency, requests, isl, osl, seed)
        named = asked[0].hash_block_size if asked and asked[0].block_hashes else None
        block_size = block_size or (named if prefix_cache else None)
    else:
        alone = trace_file is None and concurrency is None
        asked = _conversations(alone, rate, requests, turns, think, isl, osl, serving_block, seed)
    schedule = Policy(
        name=cast(PolicyName, "continuous" if split else policy),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        preemption=cast(Preemption, preemption),
    )
    serving = Deployed(
        plan=plan,
        instances=instances,
        policy=schedule,
        prefix_cache=prefix_cache,
        block_size=block_size,
        router=cast(Router, router),
        utilization=utilization,
        reserve_bytes=reserve,
        swap_space_bytes=swap_space,
    )
    decoding = None
    if split:
        other = others[0] if others else plan
        decoding = replace(serving, plan=other, instances=decode_instances, prefix_cache=False)
    ran = replay(
        asked,
        serving,
        decode=decoding,
        link=None if link is None else kv_link("KV link", link),
        concurrency=concurrency,
        trace=out is not None,
    )
    answer = ran.summary(ttft_s=ttft, tpot_s=tpot)
    share = 100.0 if ttft is None and tpot is None else slo_percentile
    kept = 100 * answer.kept >= share * answer.requests
    if out is not None:
        from kvroof.serving.simulation.schedule_trace import chrome_trace

        write_whole(out, json.dumps(chrome_trace(ran.spans)), f"--out {out}")
    if as_json:
        print_json(
            {"model": plan.model.name, "hardware": plan.hardware.name, "policy": policy} | plain(answer)
        )
    else:
        from kvroof.view.simulation import simulation_view

        print_view(
            simulation_view(ran, answer, serving, decoding, policy, (ttft, tpot, slo_percentile), kept)
        )
    sys.exit(0 if kept else 1)


def _refuse_unread(trace_file: str | None, concurrency: int | None, policy: str, preemption: str) -> None:
    """Refuse options that nothing would read.

    Raises:
        BadInput: One of them was given.
    """
    unread = {
        "a trace has its own requests": ("isl", "osl", "seed") if trace_file is not None else (),
        "a closed loop has no arrivals": ("seed",) if concurrency is not None else (),
        "static batches have no limit on tokens": ("max_num_batched_tokens",) if policy == "static" else (),
        "what is preempted is recomputed": ("swap_space",) if preemption == "recompute" else (),
    }
    for reason, names in unread.items():
        for option in options.words_given(names)[:1]:
            raise BadInput(reason, where=option, way_out="leave it out")


def _asked(
    trace_file: str | None,
    rate: float | None,
    concurrency: int | None,
    requests: int | None,
    isl: int,
    osl: int,
    seed: int,
) -> tuple[Request, ...]:
    """Return the requests: of a trace, of Poisson arrivals, or of a closed loop.

    Raises:
        BadInput: None or several of the three, or a number that cannot be.
    """
    if requests is not None and not 1 <= requests <= MAX_REQUESTS:
        raise BadInput(f"{requests} is not between 1 and {MAX_REQUESTS}", where="--requests")
    if trace_file is not None:
        if rate is not None:
            raise BadInput("a trace has its own arrivals", where="--rate", way_out="leave one of them out")
        from kvroof.serving.demand.traces import read_trace

        return read_trace(trace_file, limit=requests)
    if (rate is None) == (concurrency is None):
        raise BadInput(
            "requests arrive at a rate, or as others leave",
            where="--rate",
            way_out="give --rate, --concurrency or --trace",
        )
    return poisson(
        1.0 if rate is None else rate, requests or 1000, input_tokens=isl, output_tokens=osl, seed=seed
    )


def _conversations(
    alone: bool,
    rate: float | None,
    requests: int | None,
    turns: int,
    think: float | None,
    isl: int,
    osl: int,
    block_size: int,
    seed: int,
) -> tuple[Request, ...]:
    """Return the turns of conversations.

    Raises:
        BadInput: No rate, no time between turns, or a trace or a closed loop beside them.
    """
    if requests is not None and not 1 <= requests <= MAX_REQUESTS:
        raise BadInput(f"{requests} is not between 1 and {MAX_REQUESTS}", where="--requests")
    if not alone or rate is None:
        raise BadInput("turns come at a rate", where="--turns", way_out="give --rate, and no other arrivals")
    if think is None:
        raise BadInput("turns are some time apart", where="--think", way_out="give it, e.g. --think 30s")
    from kvroof.serving.demand.sessions import sessions

    return sessions(
        rate,
        requests or 1000,
        turns=turns,
        think_s=think,
        input_tokens=isl,
        output_tokens=osl,
        block_size=block_size,
        seed=seed,
    )
