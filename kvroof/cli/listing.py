"""`kvroof list`: what is in the catalog."""

from __future__ import annotations

import click

from kvroof.cli import options
from kvroof.cli.output import emit


@click.command("list")
@click.argument("kind", type=click.Choice(["models", "hardware"]))
@options.json_output
def command(kind: str, as_json: bool) -> None:
    """Models or hardware in the catalog.

    \b
    kvroof list models
    kvroof list hardware --json
    """
    if kind == "models":
        from kvroof.catalog.models import model_names, read_entry

        entries = [read_entry(name) for name in model_names()]
        from kvroof.view.catalog import models_view

        shown = [
            {"name": e.name, "hub_id": e.hub_id, "params_total": e.params_total, "source": e.source}
            for e in entries
        ]
        emit(shown, as_json, lambda: models_view(entries))
        return
    from kvroof.catalog.profiles import hardware_names, load_hardware

    machines = [load_hardware(name) for name in hardware_names()]
    from kvroof.view.catalog import machines_view

    emit(machines, as_json, lambda: machines_view(machines))
