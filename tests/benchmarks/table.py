"""The README's table of speeds, from the rows that the benchmarks marked `table` added.

KVROOF_PEERS=PYTHON pytest -o addopts= --benchmark-only -m table --benchmark-json FOUND.json tests/benchmarks
python -m tests.benchmarks.table FOUND.json

The second writes the rows beside this file and the table into the README, which the suite compares.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

ROWS = Path(__file__).with_name("rows.json")
README = Path(__file__).parents[2] / "README.md"
MARKED = re.compile(r"(?<=<!-- speeds -->\n\n).*?(?=\n\n<!-- /speeds -->)", flags=re.DOTALL)
UNITS = (1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")


def time(seconds: float) -> str:
    """Return a time in the unit that leaves two or three figures before the point or two after."""
    unit, name = next(((u, n) for u, n in UNITS if seconds >= u), UNITS[-1])
    return f"{seconds / unit:.3g} {name}"


def ratio(row: dict[str, Any]) -> str:
    """Return how many times as fast kvroof is, two figures of it."""
    found = row["beside_s"] / row["kvroof_s"]
    return f"{found:,.0f}" if found >= 10 else f"{found:.2g}"


def table(found: dict[str, Any]) -> str:
    """Return the table in Markdown, and the line that says where and when it was measured."""
    lines = ["| question | kvroof | beside | it takes | times as fast |", "|---|---|---|---|---|"]
    last = None
    for row in found["rows"]:
        ours = ("", "") if row["question"] == last else (row["question"], time(row["kvroof_s"]))
        last = row["question"]
        lines.append(f"| {' | '.join((*ours, row['beside'], time(row['beside_s']), ratio(row)))} |")
    return "\n".join([*lines, "", f"Medians of rounds in turn, {found['where']}."])


def rows(report: dict[str, Any]) -> dict[str, Any]:
    """Return the rows of a report of pytest-benchmark, and where and when it was made."""
    machine = report["machine_info"]
    where = (
        f"{report['datetime'][:10]}, {machine['cpu'].get('brand_raw', machine['machine'])},"
        f" {len(os.sched_getaffinity(0))} shared cores, Python {machine['python_version']}"
    )
    return {
        "where": where,
        "rows": [row for b in report["benchmarks"] for row in b["extra_info"].get("rows", ())],
    }


def main(path: str) -> None:
    """Write the rows of the report at `path` beside this file, and their table into the README."""
    found = rows(json.loads(Path(path).read_text("utf-8")))
    ROWS.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", "utf-8")
    README.write_text(MARKED.sub(lambda _: table(found), README.read_text("utf-8"), count=1), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
