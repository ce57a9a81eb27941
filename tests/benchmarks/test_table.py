"""The README's table of speeds is what the last recorded rows come to."""

import json

import pytest

from tests.benchmarks.table import MARKED, README, ROWS, ratio, rows, table, time


def test_the_readme_has_the_table_of_the_recorded_rows():
    (found,) = MARKED.findall(README.read_text("utf-8"))
    assert found == table(json.loads(ROWS.read_text("utf-8")))


def test_every_part_of_the_table_is_there():
    """Start-up, one answer, a sweep, a search, a replay, attention: what the README promises to compare."""
    asked = " ".join(row["question"] for row in json.loads(ROWS.read_text("utf-8"))["rows"])
    for part in ("whole command", "cache", "one batch", "sweep", "best", "replayed", "decode attention"):
        assert part in asked


@pytest.mark.parametrize(
    ("seconds", "words"), [(12.34, "12.3 s"), (0.35, "350 ms"), (4.2e-5, "42 µs"), (1.14e-7, "114 ns")]
)
def test_times_have_three_figures(seconds, words):
    assert time(seconds) == words


@pytest.mark.parametrize(
    ("beside_s", "words"), [(0.18, "0.18"), (2.6, "2.6"), (808.2, "808"), (2.5e6, "2,500,000")]
)
def test_a_ratio_is_how_many_times_as_fast(beside_s, words):
    assert ratio({"kvroof_s": 1.0, "beside_s": beside_s}) == words


def test_rows_are_read_from_a_report_of_pytest_benchmark():
    row = {"question": "q", "kvroof_s": 1.0, "beside": "b", "beside_s": 2.0}
    report = {
        "datetime": "2026-11-30T05:00:00",
        "machine_info": {"cpu": {"brand_raw": "X"}, "machine": "x86_64", "python_version": "3.11.7"},
        "benchmarks": [{"extra_info": {"rows": [row]}}, {"extra_info": {}}],
    }
    found = rows(report)
    assert found["rows"] == [row]
    assert found["where"].startswith("2026-11-30, X")
