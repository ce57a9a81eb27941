"""`kvroof list`: what is in the catalog."""

from __future__ import annotations

import click

from kvroof.cli import options
from kvroof.cli.output import print_json, print_view


@click.command("list")
@click.argument("kind", type=click.Choice(["models", "hardware", "families"]))
@options.json_output
def command(kind: str, as_json: bool) -> None:
    """Models or hardware in the catalog, or the model types of a config.json that are read.

    \b
    kvroof list models
    kvroof list hardware --json
    kvroof list families
    """
    if kind == "models":
        _list_models(as_json)
    elif kind == "hardware":
        _list_hardware(as_json)
    else:
        _list_families(as_json)


def _list_models(as_json: bool) -> None:
    from kvroof.catalog.models import model_names, read_entry

    entries = [read_entry(name) for name in model_names()]
    if as_json:
        keys = ("name", "hub_id", "params_total", "source")
        print_json([{key: getattr(entry, key) for key in keys} for entry in entries])
    else:
        from kvroof.view.catalog import models_view

        print_view(models_view(entries))


def _list_hardware(as_json: bool) -> None:
    from kvroof.catalog.profiles import hardware_names, load_hardware

    machines = [load_hardware(name) for name in hardware_names()]
    if as_json:
        print_json(machines)
    else:
        from kvroof.view.catalog import machines_view

        print_view(machines_view(machines))


def _list_families(as_json: bool) -> None:
    from kvroof.catalog.huggingface import model_types

    types = model_types()
    if as_json:
        print_json([{"model_type": name, "family": family} for name, family in types.items()])
    else:
        from kvroof.view.catalog import families_view

        print_view(families_view(types))
