"""`kvroof engine`: run the small real engine, and watch it."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from kvroof.catalog.models import load_model
from kvroof.catalog.whole_file import write_whole
from kvroof.cli import options
from kvroof.cli.options import shown
from kvroof.cli.output import plain, print_json, print_view
from kvroof.cli.progress import measuring
from kvroof.cli.quantities import written
from kvroof.ground.errors import BadInput
from kvroof.schedule.policies import Policy, PolicyName, Preemption, Reserve

if TYPE_CHECKING:
    from kvroof.calibration.engine_steps import PredictedRun
    from kvroof.engine.report import RunReport
    from kvroof.engine.scaling import Scale
    from kvroof.engine.trial import TrialReport
    from kvroof.roofline.efficiency import Efficiency
    from kvroof.spec.architecture import Architecture
    from kvroof.spec.hardware import Hardware

NEEDED = ("flax", "jaxtyping")
DTYPES = ("float32", "bfloat16", "float64")


_sent = options.gathered(
    "sent",
    options.given,
    shown("--requests", 4, "Requests, all there from the start."),
    shown("--prompt prompt_tokens", 24, "Tokens of the longest prompt."),
    shown("--output output_tokens", 12, "Tokens that each request generates."),
    shown("--prefix-share shared_prefix", 0, "Leading tokens that all prompts share."),
    click.option("--hand-off", is_flag=True, help="One engine runs the prompts, another decodes."),
    shown("--seed", 0, "Of the weights and the prompts."),
)
_policy = options.gathered(
    "policy",
    Policy,
    shown("--policy name", "continuous", "Which requests share a round.", click.Choice(get_args(PolicyName))),
    shown("--max-num-seqs", 4, "Requests that run at a time."),
    shown("--max-num-batched-tokens", 64, "Tokens of a round."),
    shown(
        "--reserve-blocks reserve",
        "prompt",
        "How much of a request must find blocks when it is admitted.",
        click.Choice(get_args(Reserve)),
    ),
    shown(
        "--preemption",
        "recompute",
        "What becomes of a request that loses its place.",
        click.Choice(get_args(Preemption)),
    ),
)
_cache = options.gathered(
    "cache",
    options.given,
    shown("--block-size", 8, "Tokens in a KV block."),
    shown("--blocks num_blocks", 32, "Blocks of the cache."),
    shown("--host-blocks", 0, "Blocks in host memory, for swapping."),
    shown("--dtype", "float32", "What the decoder computes in.", click.Choice(DTYPES)),
)
_size = options.gathered(
    "size",
    options.given,
    shown("--hidden-size", 64, "Width of the scaled-down residual."),
    shown("--layers", 2, "Layers of the scaled-down model, at least."),
    shown("--vocab-size", 128, "Rows of its embedding."),
)


@click.command("engine")
@click.argument("model", metavar="MODEL")
@_sent
@_policy
@_cache
@shown(
    "--kv-dtype",
    "auto",
    "What keys and values are cached in; auto follows --dtype.",
    click.Choice(("auto", "float32", "bfloat16", "int8", "fp8")),
)
@_size
@click.option("--calibration", metavar="FILE", help="A profile of this device, to predict each round with.")
@click.option("--hardware", metavar="HW", help="The machine of that profile; else the file beside it.")
@click.option("--calibrate", "measure", is_flag=True, help="Measure this device first, in under a minute.")
@click.option(
    "--trace", "trace_file", type=written(), metavar="FILE", help="Write the run in Chrome's trace format."
)
@options.ignore_key
@options.explain
@options.json_output
def command(
    model: str,
    sent: dict[str, Any],
    policy: Policy,
    cache: dict[str, Any],
    kv_dtype: str,
    size: dict[str, int],
    calibration: str | None,
    hardware: str | None,
    measure: bool,
    trace_file: Path | None,
    ignore_keys: tuple[str, ...],
    explain: bool,
    as_json: bool,
) -> None:
    """Run a model, scaled down, in a real engine: paged, batched, with shared prefixes.

    With a calibration of this device (`kvroof calibrate --quick --out mine.toml`) each round stands beside
    the time that was predicted of it, padding counted as the work that it is.

    \b
    kvroof engine llama-3.1-8b --policy chunked --max-num-batched-tokens 16
    kvroof engine llama-3.1-8b --prefix-share 16 --hand-off --trace run.json
    kvroof engine llama-3.1-8b --calibrate
    kvroof engine llama-3.1-8b --hidden-size 128 --calibration mine.toml
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise BadInput(
            f"{' and '.join(missing)} not installed",
            where="kvroof engine",
            way_out="pip install 'kvroof[engine]'",
        )
    architecture = load_model(model, ignore_keys=ignore_keys)
    scale = _scale(**size)
    known = _known(calibration, hardware, measure)
    from kvroof.engine.executor import Settings, padded
    from kvroof.engine.scaling import scaled_down
    from kvroof.engine.trial import Trial, run_trial

    report = run_trial(
        architecture,
        Trial(**sent),
        policy,
        Settings(
            **cache,
            kv_dtype={"auto": None, "fp8": "float8_e4m3fn"}.get(kv_dtype, kv_dtype),
            fewest_seqs=padded(max(min(sent["requests"], policy.max_num_seqs, 8), 1), 1),
            fewest_queries=32,
            fewest_blocks=8,
        ),
        scale,
    )
    predicted = (
        [None, None] if known is None else _predicted(scaled_down(architecture, scale), report, *known)
    )
    from kvroof.view.engine import engine_view, trace_events

    if trace_file is not None:
        write_whole(trace_file, json.dumps(trace_events(report)), f"--trace {trace_file}")
    if as_json:
        names = ("prefill_predicted", "predicted")
        print_json(plain(report) | dict(zip(names, plain(predicted), strict=True)))
    else:
        print_view(engine_view(report, explain, predicted[1], predicted[0]))


def _scale(hidden_size: int, layers: int, vocab_size: int) -> Scale:
    """Return how small the model is made.

    Raises:
        BadInput: A width that cannot be.
    """
    from kvroof.engine.scaling import Scale

    for value, least, most, where in (
        (hidden_size, 16, 16384, "--hidden-size"),
        (layers, 1, 1000, "--layers"),
        (vocab_size, 2, 10**6, "--vocab-size"),
    ):
        if not least <= value <= most:
            raise BadInput(f"{value} is outside {least:,} to {most:,}", where=where)
    return Scale(
        hidden_size=hidden_size, num_layers=layers, vocab_size=vocab_size, head_dim=max(hidden_size // 8, 2)
    )


def _known(
    calibration: str | None, hardware: str | None, measure: bool
) -> tuple[Hardware, Efficiency] | None:
    """Return the machine and its calibration: measured now, or out of files; None where neither is asked for.

    Raises:
        BadInput: Both are asked for, a machine without a calibration, or a machine that is not known.
    """
    if measure:
        if calibration is not None or hardware is not None:
            raise BadInput("measures anew", where="--calibrate", way_out="leave the files out, or it")
        from kvroof.calibration.local.calibrate import calibrate_local

        with measuring() as progress:
            here = calibrate_local(quick=True, progress=progress)
        return here.machine, here.rates
    if calibration is None:
        if hardware is not None:
            raise BadInput(
                "has no calibration", where="--hardware", way_out="give --calibration FILE with it"
            )
        return None
    from kvroof.calibration.load import efficiency_of
    from kvroof.calibration.profile import read_profile
    from kvroof.catalog.profiles import hardware_names, load_hardware

    profile = read_profile(calibration)
    beside = f"{calibration.removesuffix('.toml')}-hardware.toml"
    if hardware is None and profile.hardware not in hardware_names():
        if not os.path.isfile(beside):
            raise BadInput(
                f"is of {profile.hardware}, which is in no catalog",
                where=f"--calibration {calibration}",
                way_out="give --hardware FILE with it",
            )
        hardware = beside
    machine = load_hardware(hardware or profile.hardware)
    other = None if profile.hardware in ("", machine.name) else machine.name
    return machine, efficiency_of(profile, other)


def _predicted(
    model: Architecture, report: TrialReport, machine: Hardware, efficiency: Efficiency
) -> list[PredictedRun | None]:
    """Return what is predicted of the prefill engine's run, if there are two, and of the other's."""
    from kvroof.calibration.engine_steps import predict_run

    def of(run: RunReport | None) -> PredictedRun | None:
        return None if run is None else predict_run(model, run, machine, efficiency)

    return [of(report.prefill_run), of(report.run)]
