"""`kvroof plot`: one figure per question, as a page or as a picture."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import click

from kvroof.catalog.whole_file import write_whole
from kvroof.cli.lazy import Lazy
from kvroof.cli.output import print_json
from kvroof.cli.quantities import written
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
_WORDS = "kvroof.plot.words"


class Kinds(Lazy):
    """The kinds of figures."""

    places: ClassVar = {kind: (module, f"draw_{kind}") for kind, module in KINDS.items()}
    meant: ClassVar = {
        "disagg": "pools",
        "estimate": "roofline",
        "fit": "memory",
        "kv": "footprint",
        "optimize": "frontier",
        "simulate": "schedule",
        "validate": "measured",
    }

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the words of the command, for the figure's page."""
        ctx.meta[_WORDS] = list(args)
        return super().parse_args(ctx, args)


def drawn(function: F) -> F:
    """Give a command that returns a figure its `--out` and `--json`, and write what it returns."""

    @wraps(function)
    def command(**values: Any) -> None:
        asked = {key: value for key, value in values.items() if key not in ("out", "as_json")}
        _write(function(**asked), values["out"], values["as_json"])

    file = click.option(
        "--out",
        required=True,
        type=written(".html", ".png", ".svg"),
        metavar="FILE",
        help="Where the figure goes: .html (no network needed), .png or .svg.",
    )
    told = click.option("--json", "as_json", is_flag=True, help="Print what was written as JSON.")
    return cast(F, file(told(command)))


def _write(figure: Figure, path: Path, as_json: bool) -> None:
    """Write a figure, and say what it answers."""
    from kvroof.view.theme import words

    said = words(figure)
    data = _drawn_as(figure, path.suffix.lower(), click.get_current_context().meta[_WORDS])
    write_whole(path, data, f"--out {path}")
    if as_json:
        print_json({"path": str(path), "bytes": len(data), "title": said.title, "caption": said.caption})
    else:
        click.echo(f"{said.title}\nwritten to {path}, {format_bytes(len(data))}")


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


def _drawn_as(figure: Figure, suffix: str, arguments: list[str]) -> bytes:
    if suffix == ".html":
        from kvroof.view.page import figure_page

        return figure_page(figure, shlex.join(["kvroof", "plot", *arguments])).encode()
    from kvroof.view.picture import picture

    return picture(figure, "png" if suffix == ".png" else "svg")
