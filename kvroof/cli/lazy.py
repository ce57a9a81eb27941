"""A group of commands, each imported when it is used."""

from __future__ import annotations

import importlib
from typing import ClassVar

import click


class Lazy(click.Group):
    """Commands by name, each `(module, attribute)` of `kvroof.cli`, in the order in which they are listed."""

    places: ClassVar[dict[str, tuple[str, str]]] = {}

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
