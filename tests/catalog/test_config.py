"""A config that nobody vouches for is read by type and within bounds, and what was read is remembered."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvroof.catalog.config import ALIASES, LOOSE, MAX_BYTES, MAX_COUNT, MAX_DEPTH, Config, read_json
from kvroof.ground.errors import BadInput

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def config(**data):
    return Config(data, "my.json")


def refusal(read):
    with pytest.raises(BadInput) as caught:
        read()
    assert caught.value.where == "my.json"
    assert caught.value.one_line().isprintable()
    return caught.value


def outcome(read):
    """Return the line that refuses a read, empty where it is answered."""
    try:
        read()
    except BadInput as error:
        return error.one_line()
    return ""


# Typed reads


@given(st.integers(1, MAX_COUNT))
def test_a_whole_number_within_bounds_is_read(n):
    assert config(a=n).integer("a") == n
    assert config(a=n).optional_integer("a") == n


@pytest.mark.parametrize(
    "value", [0, -1, MAX_COUNT + 1, 10**400, 1.0, 2.5, "7", True, [], {}, math.nan, math.inf]
)
def test_what_is_not_a_whole_number_within_bounds_is_refused(value):
    for read in (config(a=value).integer, config(a=value).optional_integer):
        assert refusal(lambda read=read: read("a")).key == "a"


def test_bounds_can_be_narrowed_and_widened():
    assert config(a=0).integer("a", minimum=0) == 0
    assert config(a=2**40).integer("a", maximum=2**40) == 2**40
    refusal(lambda: config(a=9).integer("a", maximum=8))


@pytest.mark.parametrize("data", [{}, {"a": None}])
def test_absent_and_null_are_the_same(data):
    read = Config(data, "my.json")
    assert read.integer("a", 5) == 5
    assert read.optional_integer("a") is None
    assert read.boolean("a", True) is True
    assert read.text("a", "x") == "x"
    assert read.optional_number("a") is None
    assert read.array("a", int) is None
    assert read.child("a") is None
    assert not read.has("a")
    assert "add a" in refusal(lambda: read.integer("a")).way_out


@pytest.mark.parametrize("value", [0, 1, "true", [], "false"])
def test_true_and_false_are_no_numbers_and_no_words(value):
    refusal(lambda: config(a=value).boolean("a"))
    assert config(a=True).boolean("a") is True


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, True, "1.5", []])
def test_a_number_is_finite(value):
    refusal(lambda: config(a=value).optional_number("a"))


@pytest.mark.parametrize("value", [5, True, [], {}])
def test_text_is_text(value):
    refusal(lambda: config(a=value).text("a"))


@pytest.mark.parametrize("value", ["abc", {"a": 1}, 5, [1, "x"], [1, None], [True], [1.0]])
def test_a_list_of_whole_numbers_holds_whole_numbers(value):
    refusal(lambda: config(a=value).array("a", int))


def test_a_list_has_the_length_the_layers_need():
    assert config(a=[1, 2]).array("a", int, 2) == [1, 2]
    assert "2 entries for 3 layers" in refusal(lambda: config(a=[1, 2]).array("a", int, 3)).reason


@given(values)
def test_any_value_is_read_or_refused(value):
    for read in (
        lambda: config(a=value).integer("a"),
        lambda: config(a=value).optional_integer("a"),
        lambda: config(a=value).boolean("a"),
        lambda: config(a=value).text("a"),
        lambda: config(a=value).optional_number("a"),
        lambda: config(a=value).array("a", int),
        lambda: config(a=value).child("a"),
    ):
        line = outcome(read)
        assert line.isprintable()
        assert len(line) < 500


# Names and what was read


@pytest.mark.parametrize("name", ALIASES)
def test_another_spelling_is_the_same_fact(name):
    for other in ALIASES[name]:
        assert Config({other: "x"}, "my.json").text(name) == "x"
        assert Config({name: "x", other: "x"}, "my.json").text(name) == "x"
        assert Config({name: None, other: "y"}, "my.json").text(name) == "y"


@pytest.mark.parametrize("name", sorted(set(ALIASES) - LOOSE))
def test_two_spellings_that_disagree_are_refused(name):
    for other in ALIASES[name]:
        error = refusal(lambda other=other: Config({name: "x", other: "y"}, "my.json").text(name))
        assert name in error.key
        assert other in error.key


def test_a_missing_key_is_asked_for_in_every_spelling():
    way_out = refusal(lambda: config().integer("hidden_size")).way_out
    for name in ("hidden_size", *ALIASES["hidden_size"]):
        assert name in way_out


def test_what_was_read_is_what_is_kept():
    read = config(a=1, b=2, unread=3, nothing=None, inner={"c": 4, "unread": 5})
    read.integer("a")
    read.integer("b")
    read.optional_integer("nothing")
    inner = read.child("inner")
    assert inner is read.child("inner")
    inner.integer("c")
    assert read.kept() == {"a": 1, "b": 2, "inner": {"c": 4}}
    assert refusal(lambda: inner.integer("d")).key == "inner.d"


# Files


def written(tmp_path, content):
    path = tmp_path / "config.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def test_a_file_with_a_byte_order_mark_is_read(tmp_path):
    assert read_json(written(tmp_path, b"\xef\xbb\xbf" + b'{"a": 1}')) == {"a": 1}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b'{"a": 1',
        b"\xff\xfe\x00",
        b"[1, 2]",
        b"null",
        b"3",
        b'"text"',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"a": ' + b"9" * 5000 + b"}",
    ],
    ids=range(11),
)
def test_what_is_not_a_json_object_is_refused(tmp_path, content):
    with pytest.raises(BadInput) as caught:
        read_json(written(tmp_path, content))
    assert caught.value.where.endswith("config.json")
    assert caught.value.one_line().isprintable()


@pytest.mark.parametrize("opening", ['{"a":', "["])
def test_nesting_is_bounded(tmp_path, opening):
    closing = {"{": "}", "[": "]"}[opening[0]]
    deep = '{"a":' + opening * MAX_DEPTH + "1" + closing * MAX_DEPTH + "}"
    with pytest.raises(BadInput, match="deep"):
        read_json(written(tmp_path, deep.encode()))


def test_a_file_too_large_to_be_a_config_is_not_read(tmp_path):
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(200 * 2**20)
    with pytest.raises(BadInput, match=r"larger than a complete config\.json"):
        read_json(path)
    assert MAX_BYTES < 200 * 2**20


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    with pytest.raises(BadInput, match="no such file"):
        read_json(tmp_path / "nothing.json")
    with pytest.raises(BadInput, match="not a regular file"):
        read_json(tmp_path)
