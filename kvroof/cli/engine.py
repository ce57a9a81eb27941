"""`kvroof engine`: run the small real engine, and watch it."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from kvroof.catalog.models import load_model
from kvroof.cli import options
from kvroof.cli.output import print_json, print_view
from kvroof.ground.errors import BadInput
from kvroof.schedule.policies import Policy, PolicyName, Preemption, Reserve

NEEDED = ("flax", "jaxtyping")


@click.command("engine")
@click.argument("model", metavar="MODEL")
@click.option("--requests", default=4, show_default=True, help="Requests, all there from the start.")
@click.option("--prompt", default=24, show_default=True, help="Tokens of the longest prompt.")
@click.option("--output", default=12, show_default=True, help="Tokens that each request generates.")
@click.option("--prefix-share", default=0, show_default=True, help="Leading tokens that all prompts share.")
@click.option(
    "--policy",
    type=click.Choice(["static", "continuous", "chunked"]),
    default="continuous",
    show_default=True,
    help="Which requests share a round.",
)
@click.option("--max-num-seqs", default=4, show_default=True, help="Requests that run at a time.")
@click.option("--max-num-batched-tokens", default=64, show_default=True, help="Tokens of a round.")
@click.option(
    "--reserve",
    type=click.Choice(["none", "prompt", "output"]),
    default="prompt",
    show_default=True,
    help="How much of a request must find blocks when it is admitted.",
)
@click.option(
    "--preemption",
    type=click.Choice(["recompute", "swap"]),
    default="recompute",
    show_default=True,
    help="What becomes of a request that loses its place.",
)
@click.option("--block-size", default=8, show_default=True, help="Tokens in a KV block.")
@click.option("--blocks", default=32, show_default=True, help="Blocks of the cache.")
@click.option("--host-blocks", default=0, show_default=True, help="Blocks in host memory, for swapping.")
@click.option("--hand-off", is_flag=True, help="One engine runs the prompts, another decodes.")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float64"]),
    default="float32",
    show_default=True,
    help="What the decoder computes in.",
)
@click.option(
    "--kv-dtype",
    type=click.Choice(["auto", "float32", "bfloat16", "int8", "fp8"]),
    default="auto",
    show_default=True,
    help="What keys and values are cached in; auto follows --dtype.",
)
@click.option("--seed", default=0, show_default=True, help="Of the weights and the prompts.")
@click.option("--trace", "trace_file", metavar="FILE", help="Write the run in Chrome's trace format.")
@options.ignore_key
@options.explain
@options.json_output
def command(
    model: str,
    requests: int,
    prompt: int,
    output: int,
    prefix_share: int,
    policy: PolicyName,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    reserve: Reserve,
    preemption: Preemption,
    block_size: int,
    blocks: int,
    host_blocks: int,
    hand_off: bool,
    dtype: str,
    kv_dtype: str,
    seed: int,
    trace_file: str | None,
    ignore_keys: tuple[str, ...],
    explain: bool,
    as_json: bool,
) -> None:
    """Run a model, scaled down, in a real engine: paged, batched, with shared prefixes.

    \b
    kvroof engine llama-3.1-8b --policy chunked --max-num-batched-tokens 16
    kvroof engine llama-3.1-8b --prefix-share 16 --hand-off --trace run.json
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise BadInput(
            f"{' and '.join(missing)} not installed",
            where="kvroof engine",
            way_out="pip install 'kvroof[engine]'",
        )
    architecture = load_model(model, ignore_keys=ignore_keys)
    from kvroof.engine.executor import Settings, padded
    from kvroof.engine.trial import Trial, run_trial

    report = run_trial(
        architecture,
        Trial(
            requests=requests,
            prompt_tokens=prompt,
            output_tokens=output,
            shared_prefix=prefix_share,
            hand_off=hand_off,
            seed=seed,
        ),
        Policy(
            name=policy,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            reserve=reserve,
            preemption=preemption,
        ),
        Settings(
            block_size=block_size,
            num_blocks=blocks,
            host_blocks=host_blocks,
            dtype=dtype,
            kv_dtype={"auto": None, "fp8": "float8_e4m3fn"}.get(kv_dtype, kv_dtype),
            fewest_seqs=padded(max(min(requests, max_num_seqs, 8), 1), 1),
            fewest_queries=32,
            fewest_blocks=8,
        ),
    )
    from kvroof.view.engine import engine_view, trace_events

    if trace_file is not None:
        _write(trace_file, trace_events(report))
    if as_json:
        print_json(report)
    else:
        print_view(engine_view(report, explain))


def _write(name: str, events: dict[str, Any]) -> None:
    """Write a trace.

    Raises:
        BadInput: A place that cannot be written to.
    """
    try:
        Path(name).write_text(json.dumps(events), encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "cannot be written"
        raise BadInput(reason, where=f"--trace {name}") from None
