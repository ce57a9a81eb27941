"""The page of evidence: every class with its count, its error, and its worst cases named."""

import pytest

from kvroof.calibration.evidence.evidence import WORST, Case, Evidence, Refused
from kvroof.view.accuracy import accuracy_markdown, accuracy_page
from kvroof.view.figures.evidence import SMALLEST, errors_by_class


def case(name, error, why=""):
    return Case(name=name, known="100", predicted=f"{100 * (1 + error):g}", error=error, why=why)


COUNTS = Evidence(
    kind="counts",
    against="what somebody counted",
    cases=(case("a", 0.0), case("b", 0.0), case("c", -0.5, "counted without a tower")),
    refused=(Refused(name="d", why="<script>alert(1)</script>"), Refused(name="e", why="no head count")),
    exact=True,
)
TIMES = Evidence(
    kind="times",
    against="what somebody measured",
    cases=tuple(case(f"t{n}|x", n / 100) for n in range(1, 9)),
)


def test_errors_are_summed_as_shares_of_what_is_known():
    assert (COUNTS.equal, COUNTS.within(0.02), COUNTS.median) == (2, 2, 0.0)
    assert COUNTS.mean == pytest.approx(0.5 / 3)
    assert (TIMES.equal, TIMES.within(0.02), TIMES.median) == (0, 2, pytest.approx(0.045))


def test_the_worst_come_first_and_what_is_equal_is_not_among_them():
    assert [worst.name for worst in COUNTS.worst] == ["c"]
    assert [worst.name for worst in TIMES.worst] == [f"t{n}|x" for n in range(8, 8 - WORST, -1)]


def test_markdown_has_a_row_for_each_class_and_keeps_its_columns():
    text = accuracy_markdown([COUNTS, TIMES])
    assert "| counts | 3 | 2 | 2 | 2 | 0.0% | 16.7% |" in text
    assert "| c | counted without a tower | 100 | 50 | -50.0% |" in text
    assert "t8\\|x" in text


def test_the_page_says_what_was_refused_and_takes_no_word_as_markup():
    page = accuracy_page([COUNTS, TIMES])
    assert "&lt;script&gt;alert(1)" in page
    assert "<script>alert(1)" not in page
    assert "counted without a tower" in page
    assert "<script src=" not in page


def test_the_figure_draws_every_case_and_equal_ones_at_its_end():
    figure = errors_by_class([COUNTS, TIMES])
    drawn = {trace.name: list(trace.x) for trace in figure.data}
    assert drawn["counts"] == [100 * SMALLEST, 100 * SMALLEST, 50.0]
    assert len(drawn["times"]) == len(TIMES.cases)
    assert figure.layout.meta["title"].startswith("2 of 3 counts are equal")
