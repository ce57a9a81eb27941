"""`kvroof plot`: one figure per question, as a page or as a picture."""

from __future__ import annotations

import importlib
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kvroof.catalog.whole_file import writable, write_whole
from kvroof.cli.output import print_json
from kvroof.ground.units import format_bytes

if TYPE_CHECKING:
    from kvroof.view.theme import Figure

F = TypeVar("F", bound=Callable[..., Any])

KINDS = {
    "roofline": "plot_speed",
    "footprint": "plot_memory",
    "memory": "plot_memory",
    "capacity": "plot_memory",
    "frontier": "plot_speed",
    "load": "plot_serving",
    "pools": "plot_pools",
    "sensitivity": "plot_speed",
    "measured": "plot_serving",
    "schedule": "plot_serving",
    "blocks": "plot_memory",
}
"""The kinds, each with the module whose `draw_KIND` is its command."""
FORMS = (".html", ".png", ".svg")
_KEY = "kvroof.plot"


class Kinds(click.Group):
    """The kinds of figures; a kind's module is imported when it is drawn."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the kinds."""
        return list(KINDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of a kind, None when there is no such kind."""
        if cmd_name not in KINDS:
            return None
        command = getattr(importlib.import_module(f"kvroof.cli.{KINDS[cmd_name]}"), f"draw_{cmd_name}")
        assert isinstance(command, click.Command)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the words of the command, for the figure's page."""
        ctx.meta[f"{_KEY}.words"] = list(args)
        return super().parse_args(ctx, args)


def _keep(ctx: click.Context, param: click.Parameter, value: object) -> None:
    ctx.meta[f"{_KEY}.{param.name}"] = value


def _form(ctx: click.Context, param: click.Parameter, value: str) -> None:
    """Keep the path of the file, refusing what no figure is written as."""
    writable(value, FORMS, "--out")
    _keep(ctx, param, value)


def drawn(function: F) -> F:
    """Give a command that returns a figure its `--out` and `--json`, which `written` heeds."""
    out = click.option(
        "--out",
        required=True,
        metavar="FILE",
        expose_value=False,
        callback=_form,
        help="Where the figure goes: .html (no network needed), .png or .svg.",
    )
    as_json = click.option(
        "--json",
        "as_json",
        is_flag=True,
        expose_value=False,
        callback=_keep,
        help="Print what was written as JSON.",
    )
    return out(as_json(function))


@click.group("plot", cls=Kinds)
def command() -> None:
    """One figure per question, its answer in the title. HTML needs no network; PNG and SVG need a Chrome.

    \b
    kvroof plot roofline llama-3.1-8b h100-sxm --out roofline.html
    kvroof plot footprint llama-2-7b gemma-3-27b deepseek-v3 --out footprint.html
    kvroof plot memory llama-3.1-70b h100-sxm --tp 2 --seqs 4 --out memory.html
    kvroof plot capacity llama-3.1-8b h100-sxm --tpot 20ms,50ms --out capacity.html
    kvroof plot frontier llama-3.1-8b h100-sxm b200-sxm --out frontier.html
    kvroof plot load llama-3.1-8b h100-sxm --ttft 1s --out load.html
    kvroof plot pools llama-3.1-8b h100-sxm --isl 2048 --osl 64 --tpot 25ms --out pools.html
    kvroof plot sensitivity llama-3.1-8b h100-sxm --out sensitivity.html
    kvroof plot measured --points runs.csv --out measured.html
    kvroof plot schedule llama-3.1-8b h100-sxm --rate 20 --out schedule.html
    kvroof plot blocks --lengths 100,72,40 --shared-prefix 32 --out blocks.html
    """


@command.result_callback()
@click.pass_context
def written(ctx: click.Context, figure: Figure) -> None:
    """Write the figure of a kind, and say what it answers."""
    from kvroof.view.theme import words

    path, said = Path(ctx.meta[f"{_KEY}.out"]), words(figure)
    data = _drawn_as(figure, path.suffix.lower(), ctx.meta[f"{_KEY}.words"])
    write_whole(path, data, f"--out {path}")
    if ctx.meta[f"{_KEY}.as_json"]:
        print_json({"path": str(path), "bytes": len(data), "title": said.title, "caption": said.caption})
    else:
        click.echo(f"{said.title}\nwritten to {path}, {format_bytes(len(data))}")


def _drawn_as(figure: Figure, suffix: str, arguments: list[str]) -> bytes:
    if suffix == ".html":
        from kvroof.view.page import figure_page

        return figure_page(figure, shlex.join(["kvroof", "plot", *arguments])).encode()
    from kvroof.view.picture import picture

    return picture(figure, "png" if suffix == ".png" else "svg")
