"""Whatever a file or a person wrote, the error is one printable line of a bounded length."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvroof.ground.errors import BadInput, KvroofError, UnknownName, Unsupported

anything = st.text(max_size=2000)


@given(anything, st.none() | anything, st.none() | anything, st.none() | anything)
def test_an_error_is_one_printable_line(reason, where, key, way_out):
    line = KvroofError(reason, where=where, key=key, way_out=way_out).one_line()
    assert line.isprintable()
    assert len(line.splitlines()) <= 1
    assert len(line) < 800


@pytest.mark.parametrize(
    "nasty", ["a\nb", "a\r\nb", "\x1b[31mred", "a\u2028b", "\u202ereversed", "\ud800", "\0", "\t", "a\x85b"]
)
def test_control_characters_are_escaped(nasty):
    line = BadInput(nasty, where=nasty, key=nasty, way_out=nasty).one_line()
    assert line.isprintable()
    assert line.encode("utf-8")


def test_the_line_names_place_key_reason_and_way_out_in_that_order():
    error = BadInput("is not a number", where="config.json", key="hidden_size", way_out="write 4096")
    assert str(error) == "config.json: hidden_size: is not a number; write 4096"
    assert (error.where, error.key, error.way_out) == ("config.json", "hidden_size", "write 4096")
    assert str(BadInput("is not a number")) == "is not a number"


def test_every_refusal_is_a_kvroof_error():
    assert issubclass(UnknownName, BadInput)
    assert issubclass(BadInput, KvroofError)
    assert issubclass(Unsupported, KvroofError)
    assert not issubclass(Unsupported, BadInput)
