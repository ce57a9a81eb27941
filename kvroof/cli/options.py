"""Options that verbs share, and the types they are parsed with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from kvroof.cli.quantities import SIZE
from kvroof.spec.parallel import Layout

F = TypeVar("F", bound=Callable[..., Any])


def _together(*options: Callable[[F], F]) -> Callable[[F], F]:
    def apply(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return apply


def left_out(option: str) -> bool:
    """Return whether an option of the running verb has its default."""
    source = click.get_current_context().get_parameter_source(option)
    return source is click.core.ParameterSource.DEFAULT


def _known_calibration(ctx: click.Context, param: click.Parameter, value: str) -> str:
    if value in ("auto", "none"):
        return value
    from kvroof.calibration.load import known_calibration

    return known_calibration(value)


json_output = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
explain = click.option("--explain", is_flag=True, help="Show how each number came about.")
ignore_key = click.option(
    "--ignore-key",
    "ignore_keys",
    multiple=True,
    metavar="KEY",
    help="Treat a config key as absent; repeatable.",
)
kv_dtype = click.option(
    "--kv-dtype", default="auto", show_default=True, help="auto, a dtype, or a pair K/V such as q8_0/iq4_nl."
)
weights_dtype = click.option(
    "--weights-dtype",
    default="auto",
    show_default=True,
    help="Storage of the layers' matrices: auto or a dtype.",
)
block_size = click.option("--block-size", default=16, show_default=True, help="Tokens in a KV block.")
encoder_tokens = click.option(
    "--encoder-tokens",
    default=0,
    show_default=True,
    help="Tokens of the encoder (or image) per sequence, which cross-attention caches.",
)
allocator = click.option(
    "--allocator",
    default="paged",
    show_default=True,
    help="payload, paged, padded, reserved, or an engine: vllm, sglang, llama.cpp, tensorrt-llm.",
)
utilization = click.option(
    "--utilization", type=float, default=0.9, show_default=True, help="Share of the memory that may be used."
)
reserve = click.option(
    "--reserve", type=SIZE, default=0, help="Memory for activations, graphs and the runtime, e.g. 3GiB."
)
_CALIBRATION_HELP = "auto takes the machine's fitted profile, none gives bounds; or a name or a .toml file."
calibration = click.option(
    "--calibration",
    default="auto",
    show_default=True,
    callback=_known_calibration,
    expose_value=False,
    hidden=True,
    help=_CALIBRATION_HELP,
)
"""For verbs that know no time, which take it and need nothing of it."""
calibrated = click.option(
    "--calibration", default="auto", show_default=True, callback=_known_calibration, help=_CALIBRATION_HELP
)
_LAYOUT = "kvroof.layout"


def _keep_axis(ctx: click.Context, param: click.Parameter, value: int) -> None:
    """Keep a count of ranks where `chosen_layout` looks for it."""
    ctx.meta.setdefault(_LAYOUT, {})[str(param.name)] = value


def _axis(name: str, words: str, default: int = 1) -> Callable[[F], F]:
    return click.option(
        name, default=default, show_default=True, help=words, expose_value=False, callback=_keep_axis
    )


def chosen_layout() -> Layout:
    """Return the layout that the running command's options make."""
    return Layout(**click.get_current_context().meta[_LAYOUT])


served_parallel = _together(
    _axis("--tp", "Tensor-parallel ranks."),
    _axis("--pp", "Pipeline stages; the fullest one decides."),
    _axis("--dp", "Groups of --tp ranks, each with its requests."),
    _axis("--ep", "Parts that routed experts are dealt into."),
    _axis("--redundant-experts", "Second copies of busy experts, in all.", default=0),
)
"""Where an engine's options add decode context parallelism."""
parallel = _together(served_parallel, _axis("--dcp", "Ranks sharing a KV head's tokens in decode."))
offloading = _together(
    click.option("--offload-layers", default=0, show_default=True, help="First layers kept on the host."),
    click.option("--offload-experts", is_flag=True, help="All routed experts live on the host."),
    click.option("--offload-kv", is_flag=True, help="The KV cache lives on the host."),
)
