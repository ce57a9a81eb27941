"""Rows of the README's table of speeds: one question, kvroof's time, and the time of something else.

A benchmark marked `table` adds its rows to what pytest-benchmark writes; `table.py` reads them there.
"""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def seconds_of(call: Callable[[], object]) -> float:
    """Return the wall seconds of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def seconds_each(call: Callable[[], object], at_least_s: float = 0.2) -> float:
    """Return the wall seconds of one of as many calls as fill `at_least_s`."""
    start, count = time.perf_counter(), 0
    while (took := time.perf_counter() - start) < at_least_s or count == 0:
        call()
        count += 1
    return took / count


def process_s(command: Sequence[str]) -> float:
    """Return the wall seconds of a command, its start included; one that fails raises."""
    return seconds_of(lambda: subprocess.run(command, check=True, capture_output=True))


def medians(ways: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Return the median of what each way says it took; they run in turn, so that all meet the same load."""
    took: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            took[name].append(way())
    return {name: statistics.median(each) for name, each in took.items()}


def add_rows(benchmark: Any, question: str, took: Mapping[str, float]) -> None:
    """Add to the report a row for each way in `took` but the first, which is kvroof's own. Seconds."""
    (_, ours), *others = took.items()
    rows = benchmark.extra_info.setdefault("rows", [])
    for name, theirs in others:
        rows.append({"question": question, "kvroof_s": ours, "beside": name, "beside_s": theirs})
        print(f"\n{question}: {ours:.3g} s, {name} {theirs:.3g} s, {theirs / ours:.3g} times as fast")
