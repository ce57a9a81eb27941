"""A group of commands, each imported when it is used, that says what a mistyped word may have meant."""

from __future__ import annotations

import importlib
from typing import ClassVar

import click

from kvroof.catalog.names import closest
from kvroof.ground.errors import BadInput, UnknownName

ELSEWHERE = {
    "--tensor-parallel-size": ("--tp",),
    "--tp-size": ("--tp",),
    "--pipeline-parallel-size": ("--pp",),
    "--data-parallel-size": ("--dp",),
    "--enable-expert-parallel": ("--ep",),
    "--gpu-memory-utilization": ("--utilization",),
    "--kv-cache-dtype": ("--kv-dtype",),
    "--dtype": ("--weights-dtype",),
    "--quantization": ("--weights-dtype",),
    "--max-num-seqs": ("--seqs", "--batch"),
    "--batch": ("--seqs",),
    "--seqs": ("--batch",),
    "--concurrency": ("--batch", "--seqs"),
    "--isl": ("--tokens",),
    "--context": ("--tokens",),
    "--max-model-len": ("--tokens",),
    "--input-len": ("--isl", "--tokens"),
    "--output-len": ("--osl",),
    "--tokens": ("--isl",),
    "--hw": ("--prefill", "--decode"),
}
"""What an option is called here, by what engines and other verbs call it."""
LIMITS = ("--ttft", "--tpot", "--rate", "--slo-percentile")
PLACES = ("hw", "hws")


class Lazy(click.Group):
    """Commands by name, each `(module, attribute)` of `kvroof.cli`, in the order in which they are listed."""

    places: ClassVar[dict[str, tuple[str, str]]] = {}
    meant: ClassVar[dict[str, str]] = {}
    """Commands by other words that people take for them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names."""
        return list(self.places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, None when there is none of that name."""
        if cmd_name not in self.places:
            return None
        module, attribute = self.places[cmd_name]
        command = getattr(importlib.import_module(f"kvroof.cli.{module}"), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return a command's name, itself and its words, in which no two names stand for one thing.

        Raises:
            UnknownName: No such command.
            BadInput: An option that names one thing and was given twice, or that has another name here.
        """
        typed = args[0]
        if typed not in self.places and not typed.startswith("-") and not ctx.resilient_parsing:
            other = self.meant.get(typed)
            near = closest(typed, self.places) if other is None else f"did you mean {other}?"
            raise UnknownName(
                f"{ctx.command_path} has no {typed!r}", way_out=near or f"{ctx.command_path} -h"
            )
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None and not ctx.resilient_parsing:
            _check_words(click.Context(command, parent=ctx, info_name=name), rest)
        return name, command, rest


def _check_words(context: click.Context, words: list[str]) -> None:
    """Refuse a name that would drop the one before it, and say what an unknown option is called here."""
    command = context.command
    try:
        *_, order = command.make_parser(context).parse_args(list(words))
    except click.NoSuchOption as error:
        own = {name for param in command.params for name in param.opts}
        called = [name for name in ELSEWHERE.get(error.option_name, ()) if name in own]
        if called:
            way = f"did you mean {' or '.join(called)}?"
        elif error.option_name == "--hw" and any(param.name in PLACES for param in command.params):
            way = f"name the machine without it: {context.command_path} MODEL HW"
        elif error.option_name in LIMITS:
            way = "limits are asked of kvroof optimize, disagg, simulate and plot pools"
        else:
            raise
        raise BadInput("no such option", where=error.option_name, way_out=way) from None
    named = [param for param in order if _is_name(param)]
    for param in named:
        if named.count(param) > 1:
            raise BadInput(
                f"was given {named.count(param)} times", where=param.opts[0], way_out="it takes one name"
            )


def _is_name(param: click.Parameter) -> bool:
    """Return whether an option names one thing: a machine, a model, a file, an engine.

    Numbers and dtypes are not names: the last one counts, so that a way out can be added to a command.
    """
    one = isinstance(param, click.Option) and not param.multiple and param.nargs == 1
    words = isinstance(param.type, (click.types.StringParamType, click.Choice))
    return one and words and not isinstance(param.default, str)
