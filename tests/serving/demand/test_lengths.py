"""Lengths as a few values with shares: their moments are those of what they stand for."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvroof.ground.errors import BadInput
from kvroof.serving.demand.lengths import empirical, fixed, from_percentiles, parse_lengths

tokens = st.integers(1, 200_000)


@given(st.lists(tokens, min_size=1, max_size=300))
def test_seen_lengths_keep_their_mean_and_nearly_their_square(lengths):
    found = empirical(lengths)
    assert sum(found.shares) == pytest.approx(1)
    assert found.mean == pytest.approx(statistics.fmean(lengths))
    assert found.moment(2) == pytest.approx(statistics.fmean(n * n for n in lengths), rel=0.01)
    assert list(found.values) == sorted(found.values)
    assert found.longest <= max(lengths) * (1 + 1e-9)


@given(st.integers(1, 10_000), st.floats(1.0, 12.0))
def test_a_median_and_a_p90_give_back_the_log_normal_they_stand_for(p50, ratio):
    found = from_percentiles(p50, p50 * ratio)
    sigma = math.log(ratio) / statistics.NormalDist().inv_cdf(0.9)
    assert found.mean == pytest.approx(p50 * math.exp(sigma**2 / 2), rel=1e-6)
    assert found.quantile(0.5) == pytest.approx(p50, rel=0.05)
    assert found.quantile(0.9) == pytest.approx(p50 * ratio, rel=0.05)


def test_the_squares_of_a_log_normal_are_kept_but_for_its_far_tail():
    """cv2 = exp(sigma**2) - 1; conversation lengths of Azure's trace have p50/p90 of 1,020 / 2,734."""
    sigma = math.log(2734 / 1020) / statistics.NormalDist().inv_cdf(0.9)
    assert from_percentiles(1020, 2734).cv2 == pytest.approx(math.exp(sigma**2) - 1, rel=0.01)


@given(st.lists(tokens, min_size=1, max_size=60), st.floats(0, 300_000))
def test_the_mean_of_capped_lengths_is_that_of_each_capped(lengths, most):
    assert empirical(lengths).capped_mean(most) == pytest.approx(
        statistics.fmean(min(n, most) for n in lengths), abs=1e-6
    )


@given(st.lists(tokens, min_size=1, max_size=300), st.floats(0.1, 4))
def test_scaling_lengths_scales_their_moments(lengths, factor):
    found = empirical(lengths)
    assert found.scaled(factor).mean == pytest.approx(factor * found.mean)
    assert found.scaled(factor).cv2 == pytest.approx(found.cv2, abs=1e-9)


@pytest.mark.parametrize(
    ("text", "same"),
    [("2048", fixed(2048)), ("1_024", fixed(1024)), ("1020/2734", from_percentiles(1020, 2734))],
)
def test_lengths_are_read_as_people_write_them(text, same):
    assert parse_lengths(text, "--isl").values == same.values


@pytest.mark.parametrize("text", ["", "0", "-5", "1/2/3", "x", "2000/1000", "1e9999", "9" * 40])
def test_what_is_no_length_is_refused(text):
    with pytest.raises(BadInput):
        parse_lengths(text, "--isl")


def test_no_lengths_are_refused():
    with pytest.raises(BadInput):
        empirical([])
    with pytest.raises(BadInput):
        empirical([3, 0])
