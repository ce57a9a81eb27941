"""`kvroof explore`: the whole model as one page with sliders."""

from __future__ import annotations

from pathlib import Path

import click

from kvroof.catalog.models import load_model, model_names
from kvroof.catalog.profiles import hardware_names, load_hardware
from kvroof.catalog.whole_file import write_whole
from kvroof.cli import options
from kvroof.cli.output import print_json
from kvroof.cli.progress import steps
from kvroof.ground.errors import BadInput
from kvroof.ground.units import format_bytes

USUAL_MODELS = (
    "llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b", "llama-3.2-1b", "llama-2-7b",
    "mistral-7b-v0.1", "mistral-nemo-2407", "mixtral-8x7b-v0.1",
    "qwen2.5-7b", "qwen2.5-72b", "qwen3-8b", "qwen3-32b", "qwen3-30b-a3b", "qwen3-235b-a22b",
    "qwen3-coder-480b-a35b", "qwen3-next-80b-a3b", "qwen3.5-397b-a17b",
    "gemma-3-12b", "gemma-3-27b", "gemma-4-31b", "gpt-oss-20b", "gpt-oss-120b",
    "deepseek-v2-lite", "deepseek-v3", "deepseek-v3.2", "deepseek-v4-flash", "kimi-k2", "kimi-linear-48b-a3b",
    "glm-5.1", "minimax-m2.5", "nvidia-nemotron-3-nano-30b-a3b-bf16", "falcon-h1-3b-base",
    "mamba-codestral-7b-v0.1", "olmo-3.1-32b", "phi-4-mini", "smollm2-360m",
)  # fmt: skip
"""One or more of each architecture that people ask about; the first is what the page opens with."""
FIRST_MACHINE = "h100-sxm"


@click.command("explore")
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@click.option("--hw", "machines", multiple=True, metavar="HW", help="Only these machines; repeatable.")
@click.option("--all", "every", is_flag=True, help="Every model of the catalog; takes a minute.")
@options.page_out
@options.json_output
def command(
    models: tuple[str, ...], machines: tuple[str, ...], every: bool, out: Path, as_json: bool
) -> None:
    """One page with sliders: footprint, fit, times and roofline of any model on any machine, at once.

    Without a MODEL the usual ones are in it; without --hw, every machine of the catalog.

    \b
    kvroof explore llama-3.1-8b deepseek-v3 --hw h100-sxm --hw mi300x --out explorer.html
    """
    if every and models:
        raise BadInput("--all is every model", where="MODEL", way_out="name models, or give --all")
    from kvroof.search.tables import explorer_tables
    from kvroof.view.explorer.page import explorer_page

    usual = (*USUAL_MODELS, *(name for name in model_names() if every and name not in USUAL_MODELS))
    places = sorted(hardware_names(), key=lambda name: name != FIRST_MACHINE)
    chosen = {name: load_hardware(name) for name in machines or places}
    names = steps(dict.fromkeys(models or usual), "tracing the models")
    tables = explorer_tables(((name, load_model(name)) for name in names), chosen.items())
    page = explorer_page(tables).encode()
    write_whole(out, page, f"--out {out}")
    held = [model["name"] for model in tables["models"]]
    counts = {"model": held, "machine": list(chosen)}
    if as_json:
        print_json({"path": str(out), "bytes": len(page), "models": held, "machines": list(chosen)})
    else:
        counted = (f"{len(names)} {what}{'s' * (len(names) != 1)}" for what, names in counts.items())
        click.echo(f"{' on '.join(counted)} written to {out}, {format_bytes(len(page))}")
