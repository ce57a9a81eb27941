"""Write `models/NAME.json` from a config: only the keys that decide cost, with source and checked count.

python -m kvroof.catalog.export CONFIG.json --hub-id ORG/NAME --source TEXT --params N --checked TEXT
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from kvroof.catalog.config import read_json
from kvroof.catalog.huggingface import read_architecture
from kvroof.catalog.models import catalog_name
from kvroof.catalog.names import data_folder
from kvroof.catalog.whole_file import write_whole
from kvroof.ground.errors import BadInput, KvroofError
from kvroof.spec.params import params_total


def export_model(
    config: Path, *, hub_id: str, source: str, params: int, checked: str, ignore: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return the catalog entry of a config whose count was checked elsewhere.

    Args:
        config: Path to a `config.json`.
        hub_id: The model's id on the hub.
        source: Where the config was found.
        params: The published or independently counted number of parameters.
        checked: Where `params` comes from.
        ignore: Keys to treat as absent.

    Raises:
        BadInput: The count does not agree; an entry that is not checked is not written.
    """
    name = catalog_name(hub_id)
    beside = config.with_name("hf_quant_config.json")
    side = read_json(beside) if beside.is_file() else None
    imported = read_architecture(read_json(config), str(config), name, ignore, side)
    counted = params_total(imported.architecture)
    if counted != params:
        raise BadInput(f"counts {counted:,} parameters, {checked} says {params:,}", where=str(config))
    entry = {
        "name": name,
        "hub_id": hub_id,
        "source": source,
        "params_total": params,
        "checked_against": checked,
        "config": imported.config,
    }
    return entry if imported.side is None else entry | {"hf_quant_config": imported.side}


def write_entry(entry: dict[str, Any], folder: Path | None = None, replace: bool = False) -> Path:
    """Return the path of the entry written as `NAME.json`, replaced in one step.

    Raises:
        BadInput: Another model's entry has that name.
    """
    path = (folder or data_folder("models")) / f"{entry['name']}.json"
    if path.is_file() and not replace and (held := read_json(path).get("hub_id")) != entry["hub_id"]:
        raise BadInput(
            f"is {held}'s entry", where=str(path), way_out="--replace it, if it is to be this one's"
        )
    write_whole(path, json.dumps(entry, indent=1) + "\n")
    return path


def run() -> None:
    """Write one entry, as asked on the command line."""
    parser = argparse.ArgumentParser(description="Write a catalog entry from a config.json.")
    parser.add_argument("config", type=Path)
    parser.add_argument("--hub-id", required=True, help="its name on the hub, e.g. Qwen/Qwen3-8B")
    parser.add_argument("--source", required=True, help="where the config is from, with its revision")
    parser.add_argument("--params", type=int, required=True, help="the exact parameter count")
    parser.add_argument("--checked", required=True, help="where that count is from; not kvroof")
    parser.add_argument("--ignore-key", action="append", default=[], help="a key that decides no cost")
    parser.add_argument("--replace", action="store_true", help="overwrite another model's entry")
    asked = parser.parse_args()
    try:
        entry = export_model(
            asked.config,
            hub_id=asked.hub_id,
            source=asked.source,
            params=asked.params,
            checked=asked.checked,
            ignore=tuple(asked.ignore_key),
        )
        path = write_entry(entry, replace=asked.replace)
    except KvroofError as error:
        parser.exit(2, f"{error.one_line()}\n")
    sys.stdout.write(f"{path}: {entry['params_total']:,} parameters\n")


if __name__ == "__main__":
    run()
