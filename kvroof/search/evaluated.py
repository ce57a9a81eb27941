"""Every point that a search evaluated, as columns; and columns as CSV or Parquet."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, TypeAlias

from kvroof.ground.errors import BadInput
from kvroof.search.candidates import Candidate
from kvroof.search.relaxed_search import Search
from kvroof.spec.parallel import AXES

Columns: TypeAlias = dict[str, Any]


def evaluated(search: Search) -> Columns:
    """Return a row for every evaluated point of a search that remembers them, relaxed ones among them."""
    parts = [_rows(candidate) for candidate in search.every]
    return {name: [value for part in parts for value in part[name]] for name in parts[0]} if parts else {}


def _rows(candidate: Candidate) -> Columns:
    """Return the rows of one candidate."""
    import numpy as np

    plan, question, layout = candidate.plan, candidate.question, candidate.plan.layout
    rows: Columns = {}
    for sizes, chunks, found in candidate.seen or ():
        logs = candidate.logs(found, sizes, chunks)
        sizes = np.asarray(sizes)
        context = question.wants_context
        columns = {
            "hw": [plan.hardware.name] * len(sizes),
            **{axis: [getattr(layout, axis)] * len(sizes) for axis in AXES},
            "kv_dtype": [plan.kv_format.name] * len(sizes),
            "weights_dtype": [(plan.formats or plan.model.formats).name] * len(sizes),
            "batch": ([candidate.seqs * layout.dp] * len(sizes) if context else (sizes * layout.dp).tolist()),
            "isl": sizes.tolist() if context else [question.isl.mean] * len(sizes),
            "chunk": [None] * len(sizes) if chunks is None else np.asarray(chunks).tolist(),
            "ttft_s": found.ttft_s.tolist(),
            "tpot_s": found.tpot_s.tolist(),
            "tokens_per_s_per_device": (found.rate_per_s * question.osl.mean / layout.devices).tolist(),
            "feasible": (logs[1:].max(axis=0) <= 0).tolist(),
        }
        rows = {name: rows.get(name, []) + column for name, column in columns.items()}
    return rows or {name: [] for name in COLUMNS}


COLUMNS = (
    "hw", *AXES, "kv_dtype", "weights_dtype", "batch", "isl", "chunk", "ttft_s", "tpot_s",
    "tokens_per_s_per_device", "feasible",
)  # fmt: skip


def csv_text(columns: Mapping[str, Any]) -> str:
    """Return columns as CSV with a header; numbers read back as they were."""
    rows = zip(*(_cells(values) for values in columns.values()), strict=True)
    return "\n".join([",".join(columns), *(",".join(row) for row in rows)]) + "\n"


def _cells(values: Any) -> list[str]:
    """Return a column's cells; what may hold a comma is quoted."""
    cells = ["" if value is None else str(value) for value in getattr(values, "tolist", lambda: values)()]
    return [f'"{cell}"' if "," in cell else cell for cell in cells]


def parquet_bytes(columns: Mapping[str, Any]) -> bytes:
    """Return columns as a Parquet file.

    Raises:
        BadInput: `pyarrow` is not installed.
    """
    try:
        pyarrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise BadInput(
            "pyarrow is not installed", where="Parquet", way_out="pip install pyarrow, or write a .csv"
        ) from None
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(pyarrow.table({name: list(values) for name, values in columns.items()}), sink)
    return bytes(sink.getvalue().to_pybytes())
