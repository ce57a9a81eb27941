"""Where measured end-to-end points are found: built in, in the installed sample, or in one's own file."""

from __future__ import annotations

import importlib.util
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from kvroof.calibration.served import ServedPoint, framework_name, read_points, read_row
from kvroof.catalog.models import load_model
from kvroof.catalog.names import data_folder
from kvroof.catalog.profiles import load_hardware
from kvroof.ground.errors import BadInput
from kvroof.ground.record import record, static

BUILT_IN = Path("measured") / "published.toml"
SAMPLE = Path("systems") / "silicon_sample.csv"


@record
class Measured:
    """Points with their sources, and how many rows were left out for which reason."""

    points: tuple[ServedPoint, ...]
    sources: tuple[str, ...] = static()
    left_out: dict[str, int] = static()
    notes: tuple[str, ...] = static(default=())


def gather(path: str | None = None, known: Mapping[str, str] | None = None) -> Measured:
    """Return the points of a file, or without one the built-in ones and the installed sample's.

    `known` fills what a file leaves out; its `model`, `hw` and `framework` choose among the points.

    Raises:
        BadInput: A file that cannot be used.
    """
    if path is not None:
        reading = read_points(Path(path), known)
        return Measured(
            points=_asked_for(reading.points, known, path),
            sources=(path,),
            left_out=reading.left_out,
            notes=reading.notes,
        )
    points, sources = published(), [f"{len(published())} published points, each with its source"]
    sample = installed_sample()
    if sample is None:
        note = "aiconfigurator-core is not installed: pip install 'kvroof[silicon]' adds its 5,221 points"
        chosen = _asked_for(points, known, BUILT_IN.name)
        return Measured(points=chosen, sources=tuple(sources), left_out={}, notes=(note,))
    reading = read_points(sample)
    sources.append("the end-to-end sample of aiconfigurator-core (Apache-2.0, NVIDIA)")
    return Measured(
        points=_asked_for((*points, *reading.points), known, "the measured points"),
        sources=tuple(sources),
        left_out=reading.left_out,
        notes=reading.notes,
    )


def _asked_for(
    points: tuple[ServedPoint, ...], known: Mapping[str, str] | None, where: str
) -> tuple[ServedPoint, ...]:
    asked = {key: value for key, value in (known or {}).items() if key in ("model", "hw", "framework")}
    return choose(points, asked, where) if asked else points


def choose(points: Sequence[ServedPoint], asked: Mapping[str, str], where: str) -> tuple[ServedPoint, ...]:
    """Return the points of the model, machine and framework asked for, under the catalog's names.

    Args:
        points: Measured points.
        asked: Any of `model`, `hw` and `framework`; other keys are passed over.
        where: What errors call the points.

    Raises:
        BadInput: A name that is not in the catalog, or no point of what is asked for.
    """
    names: dict[tuple[str, str], tuple[str, str]] = {}
    for key in {(p.model, p.hardware) for p in points}:
        names[key] = _model(key[0]), load_hardware(key[1]).name
    model = _model(asked["model"]) if "model" in asked else None
    machine = load_hardware(asked["hw"]).name if "hw" in asked else None
    framework = framework_name(asked["framework"]) if "framework" in asked else None
    named = [replace(p, model=m, hardware=h) for p in points for m, h in [names[p.model, p.hardware]]]
    kept = tuple(
        p
        for p in named
        if model in (None, p.model) and machine in (None, p.hardware) and framework in (None, p.framework)
    )
    if not kept:
        has = ", ".join(sorted({f"{p.model} on {p.hardware} under {p.framework or 'any'}" for p in named}))
        raise BadInput(
            "has no point of that model, machine and framework", where=where, way_out=f"it has {has}"
        )
    return kept


def _model(name: str) -> str:
    """Return a model's name in the catalog, or the path of one of one's own."""
    return name if os.path.exists(name) else load_model(name).name


def published() -> tuple[ServedPoint, ...]:
    """Return the built-in points: measured, published with their conditions, restated with their source.

    Raises:
        BadInput: The file was changed and cannot be used.
    """
    path = data_folder("hardware") / BUILT_IN
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise BadInput(f"cannot be read: {error}", where=str(path)) from None
    points = []
    for group in data["group"]:
        shared = {key: value for key, value in group.items() if key != "point"}
        points += [
            read_row({**shared, **point}, f"{path.name}: {group['source']}") for point in group["point"]
        ]
    return tuple(points)


def installed_sample() -> Path | None:
    """Return the sample of the installed aiconfigurator-core, None where it is not there."""
    spec = importlib.util.find_spec("aiconfigurator_core")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    path = Path(places[0]) / SAMPLE if places else None
    return path if path is not None and path.is_file() else None
