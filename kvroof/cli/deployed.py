"""The options that say how a model is deployed, for verbs that draw and report; `chosen_plan` reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from kvroof.catalog.models import load_model
from kvroof.catalog.profiles import load_hardware
from kvroof.cli import options
from kvroof.roofline.efficiency import IDENTITY
from kvroof.roofline.plan import Plan

F = TypeVar("F", bound=Callable[..., Any])
DEFAULT = click.core.ParameterSource.DEFAULT
_KEY = "kvroof.deployed"


def _keep(ctx: click.Context, param: click.Parameter, value: object) -> None:
    ctx.meta.setdefault(_KEY, {})[param.name] = value


def _known(ctx: click.Context, param: click.Parameter, value: str) -> None:
    """Keep a calibration that may be there, refusing others before anything is counted."""
    if value not in ("auto", "none"):
        from kvroof.calibration.load import known_calibration

        value = known_calibration(value)
    _keep(ctx, param, value)


_OPTIONS = (
    click.option(
        "--kv-dtype",
        default="auto",
        show_default=True,
        help="auto, a dtype, or a pair K/V.",
        expose_value=False,
        callback=_keep,
    ),
    click.option(
        "--weights-dtype",
        default="auto",
        show_default=True,
        help="Storage of the layers' matrices: auto or a dtype.",
        expose_value=False,
        callback=_keep,
    ),
    click.option(
        "--calibration",
        default="auto",
        show_default=True,
        help="auto takes the machine's fitted profile, none gives bounds; or a name or a .toml file.",
        expose_value=False,
        callback=_known,
    ),
    click.option(
        "--ignore-key",
        "ignore_keys",
        multiple=True,
        metavar="KEY",
        help="Treat a config key as absent; repeatable.",
        expose_value=False,
        callback=_keep,
    ),
)


def deployment(function: F) -> F:
    """Add the options."""
    for option in reversed((options.parallel, *_OPTIONS)):
        function = option(function)
    return function


def chosen_plan(model: str, hw: str) -> Plan:
    """Return the deployment of a model on a machine that the running command's options make.

    Raises:
        BadInput: A name, layout or dtype that cannot be.
    """
    given: dict[str, Any] = click.get_current_context().meta[_KEY]
    layout = options.chosen_layout()
    machine, efficiency = load_hardware(hw), IDENTITY
    if given["calibration"] != "none":
        from kvroof.calibration.load import load_calibration

        efficiency = load_calibration(given["calibration"], machine.name) or IDENTITY
    return Plan.of(
        load_model(model, ignore_keys=given["ignore_keys"]),
        machine,
        tp=layout.tp,
        pp=layout.pp,
        dp=layout.dp,
        ep=layout.ep,
        dcp=layout.dcp,
        redundant_experts=layout.redundant_experts,
        kv_dtype=given["kv_dtype"],
        weights_dtype=given["weights_dtype"],
        efficiency=efficiency,
    )


def chosen_words() -> list[str]:
    """Return the options that were given, as they are typed."""
    context = click.get_current_context()
    given: dict[str, Any] = context.meta[_KEY]
    words = []
    for option in context.command.params:
        if option.name in given and context.get_parameter_source(option.name) is not DEFAULT:
            values = given[option.name]
            for value in values if isinstance(values, tuple) else (values,):
                words += [option.opts[0], str(value)]
    return words
