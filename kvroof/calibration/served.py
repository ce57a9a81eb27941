"""Measured end-to-end points: the conditions of a run, and the TTFT and TPOT it was measured at.

A points file is a CSV with a header, or JSON lines, with the columns of `COLUMNS`. Result files of vLLM's
and SGLang's serving benchmarks and of genai-perf are taken as they are (`benchmarks.py`), and the end-to-end
sample of aiconfigurator-core and its cleaned form too (`silicon_sample.py`). What a file leaves out is
filled from the command line.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvroof.calibration import silicon_sample
from kvroof.calibration.benchmarks import as_columns
from kvroof.catalog.bounded import read_text
from kvroof.ground.errors import BadInput
from kvroof.ground.record import record, static

MAX_BYTES = 64 * 2**20
MAX_POINTS = 100_000
REQUIRED = ("model", "hw", "isl", "osl", "concurrency")
WORDS = ("name", "model", "hw", "framework", "version", "mode", "weights_dtype", "kv_dtype", "source")
COUNTS = ("tp", "pp", "dp", "ep", "dcp", "isl", "osl", "concurrency")
REALS = ("length_factor", "receive_interval", "waves", "ttft_ms", "tpot_ms")
COLUMNS = (*WORDS, *COUNTS, *REALS)
"""What a points file may hold; `REQUIRED` and one of the two times have to be known."""
FRAMEWORKS = {
    "trtllm": "tensorrt-llm", "trt-llm": "tensorrt-llm", "tensorrtllm": "tensorrt-llm", "trt": "tensorrt-llm",
}  # fmt: skip
MODES = {"agg": "aggregated", "disagg": "disaggregated", "": "aggregated"}
MAX_MS = 1e7


@record
class ServedPoint:
    """One measured run: `concurrency` requests always in the system, over all replicas of attention.

    `isl` and `osl` are what was asked of each request; their means were `length_factor` of it.
    `receive_interval` is how many steps pass between two looks at new requests, `waves` how many requests
    each slot served. A time that was not measured, or that holds more than serving, is None.
    """

    name: str = static(default="")
    model: str = static()
    hardware: str = static()
    framework: str = static(default="")
    version: str = static(default="")
    mode: str = static(default="aggregated")
    weights_dtype: str = static(default="auto")
    kv_dtype: str = static(default="auto")
    tp: int = static(default=1)
    pp: int = static(default=1)
    dp: int = static(default=1)
    ep: int = static(default=1)
    dcp: int = static(default=1)
    isl: int
    osl: int
    concurrency: int
    length_factor: float = 1.0
    receive_interval: float = 1.0
    waves: float = 10.0
    ttft_s: float | None = None
    tpot_s: float | None = None
    source: str = static(default="")

    @property
    def devices(self) -> int:
        """Devices that served it."""
        return self.tp * self.dp * self.pp


@record
class Reading:
    """The points of a file, and how many rows were left out for which reason."""

    source: str = static()
    points: tuple[ServedPoint, ...]
    left_out: dict[str, int]
    notes: tuple[str, ...] = static(default=())


def read_points(path: Path, known: Mapping[str, str] | None = None) -> Reading:
    """Return the points of a file.

    Args:
        path: A CSV with a header, JSON lines, or the JSON of a benchmark.
        known: Values by column name, for what the file does not say.

    Raises:
        BadInput: The file cannot be read, or a row of it cannot be used.
    """
    rows = _rows(path)
    left_out: dict[str, int] = {}
    notes: tuple[str, ...] = ()
    if silicon_sample.is_raw(rows[0]) or silicon_sample.is_cleaned(rows[0]):
        rows, left_out = silicon_sample.columns(rows)
        notes = silicon_sample.NOTES
    points = tuple(
        read_row({**(known or {}), **_said(row)}, f"{path}: row {number}") for number, row in rows_of(rows)
    )
    return Reading(source=str(path), points=points, left_out=left_out, notes=notes)


def rows_of(rows: Sequence[Mapping[str, Any]]) -> list[tuple[int, Mapping[str, Any]]]:
    """Return rows with their numbers, from 1."""
    return list(enumerate(rows, start=1))


def read_row(row: Mapping[str, Any], where: str) -> ServedPoint:
    """Return the point in a row of columns, checked; keys that are no column are passed over.

    Raises:
        BadInput: A column that is missing, or that holds what it cannot.
    """
    for key in REQUIRED:
        if row.get(key) in (None, ""):
            raise BadInput(
                f"has no {key}", where=where, key=key, way_out=f"add the column, or give --{_option(key)}"
            )
    words = {key: str(row.get(key) or "").strip() for key in WORDS}
    counts = {key: _count(row[key], where, key) for key in COUNTS if _given(row, key)}
    reals = {key: _real(row[key], where, key) for key in REALS if _given(row, key)}
    ttft, tpot = reals.pop("ttft_ms", None), reals.pop("tpot_ms", None)
    if ttft is None and tpot is None:
        raise BadInput(
            "has neither ttft_ms nor tpot_ms", where=where, way_out="a point needs one measured time"
        )
    return ServedPoint(
        name=words["name"],
        model=words["model"],
        hardware=words["hw"],
        framework=framework_name(words["framework"]),
        version=words["version"],
        mode=MODES.get(words["mode"].lower(), words["mode"].lower()),
        weights_dtype=words["weights_dtype"] or "auto",
        kv_dtype=words["kv_dtype"] or "auto",
        ttft_s=None if ttft is None else ttft * 1e-3,
        tpot_s=None if tpot is None else tpot * 1e-3,
        source=words["source"],
        **counts,
        **reals,  # type: ignore[arg-type]
    )


def framework_name(text: str) -> str:
    """Return an engine's name as profiles have it."""
    return FRAMEWORKS.get(text.strip().lower(), text.strip().lower())


def _option(key: str) -> str:
    return key.replace("_", "-")


def _given(row: Mapping[str, Any], key: str) -> bool:
    return row.get(key) not in (None, "")


def _said(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row's columns that say something, under kvroof's names."""
    return {key: value for key, value in as_columns(row).items() if value not in (None, "")}


def _rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file as mappings."""
    text = read_text(path, MAX_BYTES, "a CSV or JSON file")
    rows = _json_rows(text, path) if text.lstrip()[:1] in ("{", "[") else _csv_rows(text, path)
    if not rows:
        raise BadInput("has no rows", where=str(path), way_out="give at least one measured point")
    if len(rows) > MAX_POINTS:
        raise BadInput(f"has more than {MAX_POINTS:,} rows", where=str(path))
    return rows


def _csv_rows(text: str, path: Path) -> list[dict[str, Any]]:
    try:
        return [dict(row) for row in csv.DictReader(text.splitlines(), strict=True)]
    except csv.Error as error:
        raise BadInput(f"cannot be read: {error}", where=str(path)) from None


def _json_rows(text: str, path: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSON document, of a list in it, or of one on each line."""
    try:
        try:
            found = json.loads(text)
        except ValueError:
            found = [json.loads(line) for line in text.splitlines() if line.strip()]
    except (ValueError, RecursionError) as error:
        raise BadInput(f"cannot be read: {error}", where=str(path), way_out="one object per line") from None
    rows = found if isinstance(found, list) else [found]
    if not all(isinstance(row, dict) for row in rows):
        raise BadInput("holds something else than objects", where=str(path), way_out="one object per line")
    return rows


def _count(value: Any, where: str, key: str) -> int:
    number = _real(value, where, key)
    if not number.is_integer() or not 1 <= number <= 2**30:
        raise BadInput(f"{str(value)[:40]!r} is not a positive whole number", where=where, key=key)
    return int(number)


def _real(value: Any, where: str, key: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise BadInput(f"{str(value)[:40]!r} is not a number", where=where, key=key) from None
    if not 0 < number <= MAX_MS:
        raise BadInput(f"{str(value)[:40]} is not a positive number", where=where, key=key)
    return number
