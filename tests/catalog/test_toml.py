"""The writer of TOML against the reader of the standard library."""

import tomllib

from hypothesis import given
from hypothesis import strategies as st

from kvroof.catalog.toml import to_toml

WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
PLAIN = st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), FLOATS, WORDS)
ITEMS = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3), max_leaves=6)
TABLES = st.recursive(
    st.dictionaries(WORDS, st.one_of(ITEMS, st.lists(st.dictionaries(WORDS, ITEMS, max_size=2), max_size=2))),
    lambda inner: st.dictionaries(WORDS, st.one_of(ITEMS, inner), max_size=3),
    max_leaves=5,
)


@given(TABLES)
def test_what_is_written_is_read_back_as_it_was(table):
    read = tomllib.loads(to_toml(table, ["a comment", "", "of lines"]))
    assert read == table
    assert repr(read) == repr(table) or set(map(str, read)) == set(map(str, table))


@given(FLOATS)
def test_a_float_stays_a_float_within_its_digits(value):
    for digits in (4, 17):
        read = tomllib.loads(to_toml({"x": value}, digits=digits))["x"]
        assert isinstance(read, float)
        assert read == (value if digits == 17 else float(f"{value:.4g}"))


def test_none_is_left_out_and_an_empty_table_is_kept():
    assert to_toml({"a": None, "b": {}, "c": {"d": {"e": 1}}}) == "\n[b]\n\n[c.d]\ne = 1\n"
