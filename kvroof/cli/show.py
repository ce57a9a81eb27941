"""`kvroof show`: one model or machine, with its sources."""

from __future__ import annotations

import os

import click

from kvroof.catalog.models import load_model, model_names, read_entry
from kvroof.catalog.names import closest
from kvroof.catalog.profiles import hardware_names, load_hardware, load_profile
from kvroof.cli import options
from kvroof.cli.output import plain, print_json, print_view
from kvroof.ground.errors import BadInput, UnknownName

MAX_NAME = 1000


@click.command("show")
@click.argument("name")
@options.ignore_key
@options.json_output
def command(name: str, ignore_keys: tuple[str, ...], as_json: bool) -> None:
    """One model (layers by kind, parameters, source) or machine (every value with its source).

    \b
    kvroof show gemma-3-27b
    kvroof show h100-sxm
    """
    if len(name) > MAX_NAME:
        raise BadInput(f"a name of {len(name)} characters", where="show")
    if _is_model(name):
        _show_model(name, ignore_keys, as_json)
        return
    try:
        machine, profile = load_hardware(name), load_profile(name)
    except UnknownName:
        near = closest(name, [*model_names(), *hardware_names()])
        raise UnknownName(
            "neither a model nor a machine",
            where=name,
            way_out=near or "see `kvroof list models` or `hardware`",
        ) from None
    if as_json:
        print_json(profile.as_dict())
    else:
        from kvroof.view.catalog import machine_view

        print_view(machine_view(machine, profile))


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
