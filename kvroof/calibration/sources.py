"""Measured tables behind one interface: what can be read, and the points it holds.

A source yields `Points`, one for each kernel family of a machine and framework. Readers of other projects'
tables are `aiconfigurator` (the installed package) and the CSV of a Vidur profile; kvroof's own point files
are CSV with a column for each field of `Points`.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from kvroof.calibration import work
from kvroof.calibration.points import Column, Points, column
from kvroof.catalog.bounded import read_text
from kvroof.ground.errors import BadInput
from kvroof.ground.record import record, static
from kvroof.spec.hardware import Hardware

MAX_ROWS = 2_000_000
MAX_BYTES = 2**28
OWN_COLUMNS = ("family", "dtype", "flops", "hbm_bytes", "items", "depth", "scores", "seconds")
COMPUTE = {
    "bf16": "bf16", "fp16": "fp16", "fp8": "fp8", "fp8_block": "fp8", "int8": "int8",
    "nvfp4": "fp4", "mxfp4": "bf16", "int4": "bf16",
}  # fmt: skip
"""Arithmetic that a storage format is multiplied in: weight-only formats run at bf16's rate."""


class Source(Protocol):
    """Where measured kernels come from."""

    @property
    def provenance(self) -> str:
        """Name, version and licence of the tables."""
        ...

    @property
    def scope(self) -> tuple[str, ...]:
        """What the points stand for, and what not, in sentences."""
        ...

    def points(self, hardware: Hardware, framework: str) -> Iterator[Points]:
        """Yield the points of each kernel family on a machine under a framework."""
        ...


def collect(
    family: str, did: work.Work, seconds: Column, hardware: Hardware, dtype: str, kernel: str, version: str
) -> Points:
    """Return what rows did with the seconds they took as points of a family on a machine.

    Raises:
        BadInput: The machine has no peak for the arithmetic of `dtype`.
    """
    compute = COMPUTE.get(dtype, dtype)
    if compute not in hardware.peak_flops_per_s:
        raise BadInput(f"{hardware.name} has no {compute} peak", where=family, way_out="leave the family out")
    ones = np.ones_like(seconds)
    return Points(
        family=family,
        flops=did.flops * ones,
        hbm_bytes=did.hbm_bytes * ones,
        items=did.items * ones,
        depth=did.depth * ones,
        scores=did.scores * ones,
        seconds=seconds,
        peak_flops_per_s=hardware.peak_flops_per_s[compute],
        hbm_bytes_per_s=hardware.hbm_bytes_per_s,
        kernel=kernel,
        version=version,
    )


@record
class OwnPoints:
    """kvroof's own point file: a CSV with the columns of `OWN_COLUMNS`, one measured kernel per row."""

    path: Path = static()

    @property
    def provenance(self) -> str:
        """The file."""
        return f"measured points in {self.path.name}"

    @property
    def scope(self) -> tuple[str, ...]:
        """Only what was measured."""
        return ("no shapes but the ones measured are vouched for",)

    def points(self, hardware: Hardware, framework: str) -> Iterator[Points]:
        """Yield the file's points by family and dtype; the framework is the file's own."""
        table = read_csv(self.path, OWN_COLUMNS)
        names = [f"{a}|{b}" for a, b in zip(table["family"], table["dtype"], strict=True)]
        for name in dict.fromkeys(names):
            family, _, dtype = name.partition("|")
            rows = [i for i, other in enumerate(names) if other == name]
            columns = {key: _numbers(table[key], rows, self.path, key) for key in OWN_COLUMNS[2:]}
            did = work.Work(*(columns[key] for key in OWN_COLUMNS[2:-1]))
            yield collect(family, did, columns["seconds"], hardware, dtype, "", framework)


@record
class VidurAttention:
    """A Vidur attention profile: `time_stats.attn_prefill.median` and `attn_decode.median` in ms.

    Source: microsoft/vidur, data/profiling/compute/*/*/attention.csv.
    """

    path: Path = static()

    @property
    def provenance(self) -> str:
        """The file."""
        return f"Vidur attention profile {self.path.name}"

    @property
    def scope(self) -> tuple[str, ...]:
        """Only what was measured."""
        return ("attention only; no shapes but the ones measured are vouched for",)

    def points(self, hardware: Hardware, framework: str) -> Iterator[Points]:
        """Yield decode points and prefill points (those without a cached prefix)."""
        shape = ("batch_size", "prefill_chunk_size", "kv_cache_size", "n_q_head", "n_kv_head", "n_embd")
        timed = ("time_stats.attn_prefill.median", "time_stats.attn_decode.median")
        table = read_csv(self.path, (*shape, *timed, "num_tensor_parallel_workers"))
        every = list(range(len(table["batch_size"])))
        n = {key: _numbers(table[key], every, self.path, key) for key in table if key not in timed}
        ranks = n["num_tensor_parallel_workers"]
        heads, kv_heads = n["n_q_head"] / ranks, np.maximum(n["n_kv_head"] / ranks, 1)
        size = n["n_embd"] / n["n_q_head"]
        for family, ms, chosen in (
            ("attention.decode", timed[1], n["prefill_chunk_size"] == 0),
            ("attention.prefill", timed[0], (n["prefill_chunk_size"] > 0) & (n["kv_cache_size"] == 0)),
        ):
            rows = [i for i in np.flatnonzero(chosen).tolist() if table[ms][i]]
            if not rows:
                continue
            seconds = _numbers(table[ms], rows, self.path, ms) * 1e-3
            length = n["kv_cache_size" if family.endswith("decode") else "prefill_chunk_size"][rows]
            make = work.decode if family.endswith("decode") else work.prefill
            shapes = (n["batch_size"][rows], length, heads[rows], kv_heads[rows], size[rows])
            did = make(*shapes, kv_bytes=2)
            yield collect(family, did, seconds, hardware, "bf16", "vidur", framework)


def read_csv(path: Path, needed: Sequence[str]) -> dict[str, list[str]]:
    """Return the needed columns of a CSV file as text.

    Raises:
        BadInput: The file cannot be read, is too long, or lacks a column.
    """
    text = read_text(path, MAX_BYTES, "a CSV file")
    found: dict[str, list[str]] = {name: [] for name in needed}
    try:
        rows = csv.DictReader(io.StringIO(text, newline=""))
        missing = [name for name in needed if name not in (rows.fieldnames or ())]
        if missing:
            raise BadInput(
                f"has no column {missing[0]}", where=str(path), way_out=f"it needs {', '.join(needed)}"
            )
        for number, row in enumerate(rows):
            if number >= MAX_ROWS:
                raise BadInput(f"has more than {MAX_ROWS:,} rows", where=str(path))
            for name in needed:
                found[name].append(row[name] or "")
    except csv.Error as error:
        raise BadInput(f"cannot be read: {error}", where=str(path), way_out="give a CSV file") from None
    if not found[needed[0]]:
        raise BadInput("has no rows", where=str(path), way_out="give at least one measured point")
    return found


def _numbers(texts: Sequence[str], rows: Sequence[int], path: Path, key: str) -> Column:
    """Return the chosen entries as numbers that are finite and not negative."""
    try:
        values = column(float(texts[i] or "nan") for i in rows)
    except ValueError as error:
        raise BadInput(str(error), where=str(path), key=key, way_out="give numbers") from None
    bad = np.flatnonzero(~((values >= 0) & np.isfinite(values)))
    if len(bad):
        raise BadInput(
            f"row {rows[bad[0]] + 2} is not a number", where=str(path), key=key, way_out="give numbers"
        )
    return values
