"""Quantities go in as people write them and come out in base units; what is not one is refused."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvroof.ground.errors import BadInput
from kvroof.ground.units import (
    GIB,
    KIB,
    MIB,
    TIB,
    format_bytes,
    format_count,
    format_decimal,
    format_time,
    parse_rate,
    parse_size,
    parse_time,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("131072", 131072),
        ("131_072", 131072),
        ("22GiB", 22 * 2**30),
        ("22 gib", 22 * 2**30),
        ("80GB", 80 * 10**9),
        ("13.04GiB", 14001593385),
        ("1e3 KiB", 1_024_000),
        ("0.5TiB", 2**39),
        ("1.5MB", 1_500_000),
        (" 7 b ", 7),
    ],
)
def test_a_size_is_whole_bytes(text, size):
    assert parse_size(text) == size
    assert isinstance(parse_size(text), int)


def test_a_gigabyte_is_not_a_gibibyte():
    assert parse_size("1GB") == 10**9
    assert parse_size("1GiB") == 2**30
    assert (KIB, MIB, GIB, TIB) == (2**10, 2**20, 2**30, 2**40)


@given(st.integers(0, 10**18))
def test_a_size_in_bytes_is_read_exactly(size):
    assert parse_size(str(size)) == parse_size(f"{size} B") == size


@given(st.integers(0, 2**30), st.sampled_from(("KiB", "MiB", "GiB", "TiB")))
def test_a_size_in_binary_units_is_exact(count, unit):
    scale = {"KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": TIB}[unit]
    assert parse_size(f"{count}{unit}") == count * scale


@given(st.integers(0, 2**60))
def test_a_formatted_size_is_read_back_to_its_digits(size):
    text = format_bytes(size)
    assert parse_size(text.replace(",", "")) == pytest.approx(size, rel=0.006)
    assert format_bytes(-size) == ("-" + text if size else text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("50ms", 0.05), ("1.5s", 1.5), ("3s", 3.0), ("20us", 2e-5), ("20µs", 2e-5), ("2min", 120)],
)
def test_a_time_is_seconds(text, seconds):
    assert parse_time(text) == seconds


@given(st.floats(1e-6, 999))
def test_a_formatted_time_is_read_back_to_its_digits(seconds):
    assert parse_time(format_time(seconds)) == pytest.approx(seconds, rel=0.006)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("400Gb/s", 50e9),
        ("400Gbps", 50e9),
        ("3.35TB/s", 3.35e12),
        ("64 GB/s", 64e9),
        ("1GiB/s", 2**30),
        ("8b/s", 1),
    ],
)
def test_a_rate_tells_bits_from_bytes(text, rate):
    assert parse_rate(text) == rate


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "GiB",
        "-1GiB",
        "-0.1",
        "1 parsec",
        "nan",
        "inf",
        "1e",
        "0x10",
        "1,5GiB",
        "1.GiB",
        "1GiBs",
        "1e9999",
    ],
)
def test_what_is_not_a_size_is_refused_with_its_place(text):
    with pytest.raises(BadInput) as caught:
        parse_size(text, "--capacity")
    assert caught.value.where == "--capacity"
    assert caught.value.way_out


@pytest.mark.parametrize("text", ["", "5", "5 hours", "-1ms", "5 MS", "ms", "nan"])
def test_what_is_not_a_time_is_refused(text):
    with pytest.raises(BadInput):
        parse_time(text, "--tpot")


@pytest.mark.parametrize("text", ["", "5", "5GB", "5Gx/s", "-5GB/s", "5 gigabytes/s", "GB/s"])
def test_what_is_not_a_rate_is_refused(text):
    with pytest.raises(BadInput):
        parse_rate(text, "--network")


@pytest.mark.parametrize(("parse", "text"), [(parse_time, "1e999s"), (parse_rate, "1e999GB/s")])
def test_a_quantity_beyond_every_float_is_refused(parse, text):
    with pytest.raises(BadInput):
        parse(text)


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text):
    for parse in (parse_size, parse_time, parse_rate):
        try:
            value = parse(text)
        except BadInput:
            continue
        assert value >= 0
        assert math.isfinite(value)


@given(st.from_regex(r"[0-9]{1,30}(e[0-9]{1,3})?(KiB|TB|ms|s|Gb/s|TiB/s|)", fullmatch=True))
def test_anything_like_a_quantity_is_finite_or_refused(text):
    for parse in (parse_size, parse_time, parse_rate):
        try:
            assert parse(text) >= 0
        except BadInput:
            continue


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1.00 KiB"),
        (int(-2.04 * 2**30), "-2.04 GiB"),
        (11_173_625_856, "10.41 GiB"),
        (5000 * 2**40, "5,000.00 TiB"),
    ],
)
def test_bytes_are_shown_in_binary_units_with_their_sign(size, text):
    assert format_bytes(size) == text


def test_bytes_of_any_size_can_be_shown():
    assert format_bytes(10**400)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (0.00512, "5.12 ms"), (2.5e-5, "25 us"), (3e-9, "3 ns"), (12, "12 s")]
)
def test_times_are_shown_in_the_unit_that_fits(seconds, text):
    assert format_time(seconds) == text


def test_a_time_just_under_a_unit_is_shown_without_an_exponent():
    assert "e" not in format_time(0.9996)
    assert format_time(float("inf")) == "inf s"


def test_counts_and_rates_have_decimal_prefixes():
    assert format_count(8_030_261_248) == "8.03B"
    assert format_count(671_026_404_352) == "671.03B"
    assert format_count(999) == "999"
    assert format_decimal(3.35e12, "B/s") == "3.35 TB/s"
    assert format_decimal(989e12, "FLOP/s") == "989 TFLOP/s"
    assert format_decimal(12, "B/s") == "12 B/s"
