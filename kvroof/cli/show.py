"""`kvroof show`: one model or machine, with its sources."""

from __future__ import annotations

import os

import click

from kvroof.catalog.models import load_model, near_models, read_entry
from kvroof.catalog.profiles import hardware_of, load_profile, near_machines
from kvroof.catalog.toml import to_toml
from kvroof.cli import options
from kvroof.cli.output import plain, print_json, print_view
from kvroof.ground.errors import BadInput, UnknownName

MAX_NAME = 1000
MACHINE_COMMENT = (
    "Base units: bytes, bytes/s, FLOP/s, W. Peaks are dense with fp32 accumulation, links are one way.",
    "A table may be left out where its value is not known, but not memory_bytes, hbm_bytes_per_s and one of",
    "the peaks of bf16, fp16 and fp32. A source is any line that says where a number is from.",
)


@click.command("show")
@click.argument("name")
@click.option("--toml", "as_toml", is_flag=True, help="Print a machine as the .toml file of one.")
@options.ignore_key
@options.json_output
def command(name: str, as_toml: bool, ignore_keys: tuple[str, ...], as_json: bool) -> None:
    """One model (layers by kind, parameters, source) or machine (every value with its source).

    \b
    kvroof show gemma-3-27b
    kvroof show h100-sxm
    kvroof show h100-sxm --toml
    """
    if len(name) > MAX_NAME:
        raise BadInput(f"a name of {len(name)} characters", where="show")
    if _is_model(name):
        if as_toml:
            raise BadInput("only a machine has a .toml file", where="--toml", way_out="use --json")
        _show_model(name, ignore_keys, as_json)
        return
    try:
        profile = load_profile(name)
    except UnknownName:
        way_out = near_models(name) or near_machines(name) or "see `kvroof list models` or `hardware`"
        raise UnknownName("neither a model nor a machine", where=name, way_out=way_out) from None
    if as_toml:
        click.echo(to_toml(profile.as_dict(), MACHINE_COMMENT), nl=False)
    elif as_json:
        print_json(profile.as_dict())
    else:
        from kvroof.view.catalog import machine_view

        print_view(machine_view(hardware_of(profile), profile))


def _is_model(name: str) -> bool:
    if os.path.exists(name) or name.endswith(".json"):
        return not name.endswith(".toml")
    try:
        read_entry(name)
    except UnknownName:
        return False
    return True


def _show_model(name: str, ignore_keys: tuple[str, ...], as_json: bool) -> None:
    from kvroof.memory.describe import describe

    card = describe(load_model(name, ignore_keys=ignore_keys))
    entry = None if os.path.exists(name) else read_entry(name)
    source = (
        {"hub_id": entry.hub_id, "source": entry.source, "checked_against": entry.checked_against}
        if entry
        else {}
    )
    if as_json:
        print_json(plain(card) | source)
    else:
        from kvroof.view.catalog import model_view

        print_view(model_view(card, source))
