"""Options that verbs share, alone and in groups that reach a command as one value."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any, NamedTuple, TypeVar, cast

import click

from kvroof.cli.quantities import PERCENT, PRICE, SIZE, written
from kvroof.ground.errors import UnknownName
from kvroof.spec.architecture import Architecture
from kvroof.spec.offload import offload
from kvroof.spec.parallel import AXES, Layout

F = TypeVar("F", bound=Callable[..., Any])


def gathered(name: str, make: Callable[..., Any], *options: Callable[[F], F]) -> Callable[[F], F]:
    """Return a decorator that adds options and gives the command one argument that is made of them.

    Args:
        name: The argument.
        make: Makes it of the values, by the names of its own arguments; of all values if it takes any.
        options: Decorators that add options, or groups like this one.
    """
    taken = inspect.signature(make).parameters
    any_name = any(argument.kind is argument.VAR_KEYWORD for argument in taken.values())
    names = _names(options) if any_name else list(taken)

    def apply(function: F) -> F:
        @wraps(function)
        def command(**values: Any) -> Any:
            own = {key: values[key] for key in names if key in values}
            others = {key: value for key, value in values.items() if key not in own}
            return function(**others, **{name: make(**own)})

        return _together(*options)(cast(F, command))

    return apply


def given(**values: Any) -> dict[str, Any]:
    """Return the values that are not None, by name: what a group without a record is made into."""
    return {name: value for name, value in values.items() if value is not None}


def _names(options: Iterable[Callable[[Any], Any]]) -> list[str]:
    """Return the names that options give their values."""
    return [param.name for param in click.command()(_together(*options)(lambda: None)).params if param.name]


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


def words_given(names: Sequence[str]) -> list[str]:
    """Return those of the running verb's options that were given, as they are typed."""
    context = click.get_current_context()
    words = []
    for option in context.command.params:
        if option.name in names and not left_out(option.name):
            values = context.params[option.name]
            for value in values if isinstance(values, tuple) else (values,):
                words += [option.opts[0], str(value)]
    return words


def _known_calibration(ctx: click.Context, param: click.Parameter, value: str) -> str:
    if value in ("auto", "none"):
        return value
    from kvroof.calibration.load import known_calibration

    return known_calibration(value)


def shown(names: str, default: Any, text: str, kind: Any = None) -> Callable[[F], F]:
    """Return an option that says its default; the command's own name for it may follow in `names`."""
    return click.option(*names.split(), type=kind, default=default, show_default=True, help=text)


page_out = click.option(
    "--out",
    required=True,
    type=written(".html", ".htm"),
    metavar="FILE",
    help="The .html file; it needs no network.",
)
json_output = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
explain = click.option("--explain", is_flag=True, help="Show how each number came about.")
ignore_key = click.option(
    "--ignore-key",
    "ignore_keys",
    multiple=True,
    metavar="KEY",
    help="Treat a config key as absent; repeatable.",
)
kv_dtype = shown("--kv-dtype", "auto", "auto, a dtype, or a pair K/V such as q8_0/iq4_nl.")
weights_dtype = shown("--weights-dtype", "auto", "Storage of the layers' matrices: auto or a dtype.")
block_size = shown("--block-size", 16, "Tokens in a KV block.")
encoder_tokens = shown(
    "--encoder-tokens", 0, "Tokens of the encoder (or image) per sequence, which cross-attention caches."
)
cached_prefix = shown("--cached-prefix", 0, "Prompt tokens already in the cache.")
utilization = shown("--utilization", 0.9, "Share of the memory that may be used.")
reserve = click.option(
    "--reserve", type=SIZE, default=0, help="Memory for activations, graphs and the runtime, e.g. 3GiB."
)
prices = click.option(
    "--price",
    "prices",
    type=PRICE,
    multiple=True,
    metavar="HW=USD",
    help="Of a device, per hour, to compare by cost; repeatable.",
)
slo_percentile = shown("--slo-percentile", 90.0, "Requests that keep the limits, in per cent.", PERCENT)
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


def started_engine(*names: str) -> Callable[[F], F]:
    """Return the option that prints the command of an engine, by `names` of those that have it."""
    return click.option(
        "--engine",
        type=click.Choice(names, case_sensitive=False),
        help="Print the command that starts it there too.",
    )


def served_name(model: str) -> str:
    """Return what an engine calls a model: its hub id, or where it lies."""
    from kvroof.catalog.models import read_entry

    try:
        return read_entry(model).hub_id
    except UnknownName:
        return shlex.quote(model)


cached = _together(
    shown("--tokens", 8192, "Cached tokens of each sequence."), shown("--seqs", 1, "Sequences.")
)


def lengths(osl: int = 256) -> Callable[[F], F]:
    """Return the options for the tokens of requests that are alike."""
    return _together(
        shown("--isl", 2048, "Prompt tokens of each request."),
        shown("--osl", osl, "Output tokens of each request."),
    )


requests = _together(lengths(), shown("--batch", 8, "Requests at once."))


def _spread(name: str, default: str, what: str) -> Callable[[F], F]:
    words = f"{what} tokens of the requests: one number, or a median and a p90."
    return click.option(name, default=default, show_default=True, metavar="N|P50/P90", help=words)


spread_lengths = _together(_spread("--isl", "2048", "Prompt"), _spread("--osl", "256", "Output"))
"""Where requests may differ: a number, or a median and a p90."""


_RANKS = (
    shown("--tp", 1, "Tensor-parallel ranks."),
    shown("--pp", 1, "Pipeline stages; the fullest one decides."),
    shown("--dp", 1, "Groups of --tp ranks, each with its requests."),
    shown("--ep", 1, "Parts that routed experts are dealt into."),
    shown("--redundant-experts", 0, "Second copies of busy experts, in all."),
)
_CONTEXT = shown("--dcp", 1, "Ranks sharing a KV head's tokens in decode.")
LAYOUT = (*AXES, "redundant_experts")
served_parallel = gathered("layout", Layout, *_RANKS)
"""Where an engine's options add decode context parallelism."""
parallel = gathered("layout", Layout, *_RANKS, _CONTEXT)


class Offloading(NamedTuple):
    """What lives in host memory."""

    offload_layers: int
    offload_experts: bool
    offload_kv: bool

    def of(self, model: Architecture) -> Architecture:
        """Return the model with that on the host."""
        return offload(model, layers=self.offload_layers, experts=self.offload_experts, kv=self.offload_kv)


offloading = gathered(
    "offloaded",
    Offloading,
    click.option("--offload-layers", default=0, show_default=True, help="First layers kept on the host."),
    click.option("--offload-experts", is_flag=True, help="All routed experts live on the host."),
    click.option("--offload-kv", is_flag=True, help="The KV cache lives on the host."),
)
