"""The catalog of models, `models/*.json`: the keys that decide cost, a source and a checked count."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from kvroof.catalog.checkpoint import checkpoint_bytes
from kvroof.catalog.config import read_json
from kvroof.catalog.huggingface import read_architecture
from kvroof.catalog.names import closest, data_folder, nearby
from kvroof.ground.errors import BadInput, UnknownName
from kvroof.ground.record import record, static
from kvroof.spec.architecture import Architecture

_DROPPED = re.compile(r"(?i)(^meta-)|(-hf|-it|-instruct)(?=-|$)")


@record
class CatalogEntry:
    """One file of `models/`: where its facts come from and what its count was checked against."""

    name: str = static()
    hub_id: str = static()
    source: str = static()
    params_total: int
    checked_against: str = static()
    config: dict[str, Any] = static()
    hf_quant_config: dict[str, Any] | None = static(default=None)


def model_names() -> list[str]:
    """Return the catalog's model names, sorted."""
    return sorted(path.stem for path in data_folder("models").glob("*.json"))


def catalog_name(hub_id: str) -> str:
    """Return a hub id's name in the catalog: its last part, lower case, without `-hf`, `-it`, `Meta-`."""
    return _DROPPED.sub("", hub_id.rpartition("/")[2]).lower()


def read_entry(name: str) -> CatalogEntry:
    """Return the catalog's entry called `name`, or by the hub id it was read from.

    Raises:
        UnknownName: Not in the catalog; the closest names are the way out.
    """
    folder = data_folder("models")
    for candidate in (name.lower(), catalog_name(name)):
        path = folder / f"{candidate}.json"
        if re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,99}", candidate) and path.is_file():
            data = read_json(path)
            entry = _entry(data)
            if "/" not in name or _organisation(name) == _organisation(entry.hub_id):
                return entry
    raise UnknownName(
        "no such model in the catalog, and no such file",
        where=name,
        way_out=f"{near_models(name) or 'see `kvroof list models`,'} or give its config.json",
    )


def near_models(name: str) -> str:
    """Return which models `name` may have meant, beside it or in the catalog; empty if none is near."""
    beside = closest(name, nearby(name, ".json", "config.json"))
    return beside or closest(catalog_name(name), model_names())


def _entry(data: dict[str, Any]) -> CatalogEntry:
    names = [field.name for field in dataclasses.fields(CatalogEntry)]
    return CatalogEntry(**{key: data[key] for key in names if key in data})


def _organisation(hub_id: str) -> str:
    return hub_id.partition("/")[0].lower()


def load_model(name_or_path: str | Path, *, ignore_keys: Collection[str] = ()) -> Architecture:
    """Return the architecture of a catalog name, a hub id in the catalog, a `config.json` or its folder.

    Args:
        name_or_path: `llama-3.1-8b`, `meta-llama/Llama-3.1-8B`, `path/config.json` or `path/`.
        ignore_keys: Config keys to treat as absent.

    Raises:
        UnknownName: No such name and no such file.
        BadInput: A file that cannot be used.
        Unsupported: An architecture that is not understood.
    """
    text = str(name_or_path)
    path = Path(text)
    if not text.strip() or "\0" in text:
        raise BadInput(
            "is empty or holds a zero byte", where=f"MODEL {text!r}", way_out="see `kvroof list models`"
        )
    try:
        is_folder, is_file = path.is_dir(), path.exists()
    except OSError as error:
        raise BadInput(error.strerror or "cannot be opened", where=text) from None
    if is_folder and not (path / "config.json").is_file():
        if text not in model_names():
            raise BadInput("holds no config.json", where=text, way_out="name the folder of a checkpoint")
        is_folder = is_file = False
    if is_folder:
        path = path / "config.json"
    elif not is_file:
        if text.endswith((".json", "/")):
            raise BadInput("no such file", where=text, way_out="see `kvroof list models` for names")
        return _from_entry(read_entry(text), ignore_keys)
    data = read_json(path)
    if "hub_id" in data and isinstance(data.get("config"), dict):
        return _from_entry(_entry(data), ignore_keys)
    stem = path.absolute().parent.name if path.name == "config.json" else path.stem
    beside = path.with_name("hf_quant_config.json")
    side = read_json(beside) if path.name == "config.json" and beside.is_file() else None
    model = read_architecture(data, text, stem or "model", ignore_keys, side).architecture
    if not is_folder:
        return model
    return dataclasses.replace(model, checkpoint_bytes=checkpoint_bytes(path.parent))


def _from_entry(entry: CatalogEntry, ignore_keys: Collection[str]) -> Architecture:
    where = f"models/{entry.name}.json"
    return read_architecture(entry.config, where, entry.name, ignore_keys, entry.hf_quant_config).architecture
