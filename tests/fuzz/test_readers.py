"""Whatever a file holds, it is answered or refused in one line.

A few dozen inputs for each reader; `python -m tests.fuzz READER --seconds 600` tries for as long as one
likes, led by coverage.
"""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.readers import READERS, attempt


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


@pytest.mark.parametrize("reader", READERS)
def test_a_reader_answers_or_refuses_in_one_line(reader, folder):
    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.binary(min_size=2, max_size=120))
    def tried(data):
        attempt(reader, data, folder)

    tried()


@pytest.mark.parametrize("reader", READERS)
def test_a_reader_is_not_only_refusing(reader, folder):
    """Some random variants of good files are good, so that what is behind the reader is tried too."""
    chance = random.Random(0)
    assert any(attempt(reader, chance.randbytes(40), folder) for _ in range(100))
