"""Storage formats are whole blocks, so that block-scaled ones are exact."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvroof.ground.dtypes import DTYPES, parse_dtype
from kvroof.ground.errors import BadInput


@pytest.mark.parametrize(
    ("name", "bytes_per_element"),
    [
        ("fp32", Fraction(4)),
        ("bf16", Fraction(2)),
        ("fp16", Fraction(2)),
        ("fp8", Fraction(1)),
        ("int8", Fraction(1)),
        ("int4", Fraction(1, 2)),
        ("fp4", Fraction(1, 2)),
        ("mxfp4", Fraction(17, 32)),  # 4.25 bits
        ("nvfp4", Fraction(9, 16)),  # 4.5 bits
        ("q8_0", Fraction(34, 32)),
        ("q5_1", Fraction(24, 32)),
        ("q5_0", Fraction(22, 32)),
        ("q4_1", Fraction(20, 32)),
        ("q4_0", Fraction(18, 32)),
        ("iq4_nl", Fraction(18, 32)),
    ],
)
def test_a_format_has_its_bytes_per_element(name, bytes_per_element):
    dtype = parse_dtype(name)
    assert Fraction(dtype.block_bytes, dtype.block_elements) == bytes_per_element
    assert dtype.row_bytes(1024) == 1024 * bytes_per_element


@given(st.sampled_from(sorted(DTYPES)), st.integers(0, 10**12))
def test_a_row_takes_the_fewest_whole_blocks_that_hold_it(name, elements):
    dtype = DTYPES[name]
    blocks, rest = divmod(dtype.row_bytes(elements), dtype.block_bytes)
    assert rest == 0
    assert 0 <= blocks * dtype.block_elements - elements < dtype.block_elements


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("bfloat16", "bf16"),
        ("torch.bfloat16", "bf16"),
        ("float16", "fp16"),
        ("half", "fp16"),
        ("F16", "fp16"),
        ("torch.float32", "fp32"),
        ("fp8_e4m3", "fp8"),
        ("float8_e4m3fn", "fp8"),
        (" BF16 ", "bf16"),
        ("Q8_0", "q8_0"),
    ],
)
def test_a_format_is_known_in_torch_and_in_llama_cpp_spelling(spelling, name):
    assert parse_dtype(spelling).name == name


@pytest.mark.parametrize("text", ["", "fp9", "bf15", "q9_9", "float", "eight bits", "bf16/fp16"])
def test_an_unknown_format_is_refused_with_the_closest_names(text):
    if text == "float":
        assert parse_dtype(text).name == "fp32"
        return
    with pytest.raises(BadInput) as caught:
        parse_dtype(text, "--kv-dtype")
    assert caught.value.where == "--kv-dtype"
    assert caught.value.way_out


@pytest.mark.parametrize("name", ["int4", "mxfp4", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"])
def test_a_weight_only_format_names_no_arithmetic(name):
    assert DTYPES[name].compute is None


@pytest.mark.parametrize(
    ("name", "compute"),
    [("fp8", "fp8"), ("bf16", "bf16"), ("int8", "int8"), ("nvfp4", "fp4"), ("fp4", "fp4")],
)
def test_a_format_with_arithmetic_names_it(name, compute):
    assert DTYPES[name].compute == compute
