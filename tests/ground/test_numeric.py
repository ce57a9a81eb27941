"""One formula, three readers: Python ints, NumPy and JAX arrays agree."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvroof.ground.numeric import (
    ceil_div,
    exact_div,
    floor_div,
    largest,
    maximum,
    minimum,
    relax,
    triangle,
)
from kvroof.memory.allocators import equal_lengths

whole = st.integers(0, 2**20)
positive = st.integers(1, 2**10)
PAIRS = {
    "minimum": minimum,
    "maximum": maximum,
    "floor_div": floor_div,
    "ceil_div": ceil_div,
}


@pytest.mark.parametrize("name", PAIRS)
@settings(max_examples=30, deadline=None)
@given(whole, positive)
def test_ints_numpy_and_jax_agree(name, a, b):
    import jax.numpy as jnp

    helper = PAIRS[name]
    exact = helper(a, b)
    assert isinstance(exact, int)
    for array in (np.float64, np.asarray, jnp.asarray):
        assert float(helper(array(float(a)), array(float(b)))) == exact
        assert float(helper(array(float(a)), b)) == exact


@settings(max_examples=30, deadline=None)
@given(st.lists(whole, min_size=1, max_size=5), positive)
def test_a_grid_is_its_points(values, b):
    grid = np.asarray(values, float)
    for helper in PAIRS.values():
        assert helper(grid, b).tolist() == [helper(v, b) for v in values]
    assert triangle(grid).tolist() == [triangle(v) for v in values]


@given(st.integers(0, 2**80))
def test_a_triangle_is_exact_at_any_size(n):
    assert triangle(n) * 2 == n * (n + 1)
    assert isinstance(triangle(n), int)


@given(st.integers(-(2**80), 2**80), st.integers(1, 2**40))
def test_floor_and_ceiling_enclose_the_quotient(a, b):
    assert floor_div(a, b) * b <= a <= ceil_div(a, b) * b
    assert ceil_div(a, b) - floor_div(a, b) == (1 if a % b else 0)


@given(st.integers(0, 2**80), st.integers(1, 2**40))
def test_an_exact_quotient_is_exact_or_an_error(a, b):
    assert exact_div(a * b, b) == a
    if a % b:
        with pytest.raises(ArithmeticError):
            exact_div(a, b)


def test_nothing_integer_crosses_the_door():
    import jax

    demand = equal_lengths(4096, 8)
    if not jax.config.jax_enable_x64:
        with pytest.raises(RuntimeError, match="jax_enable_x64"):
            relax(demand)
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    try:
        leaves = jax.tree_util.tree_leaves(relax(demand))
        assert {str(leaf.dtype) for leaf in leaves} == {"float64"}
        assert [float(leaf) for leaf in leaves] == [4096, 8, 0, 0]
    finally:
        jax.config.update("jax_enable_x64", before)


@given(st.integers(-5, 2**50), st.integers(1, 2**45), st.integers(-3, 2**50))
def test_the_largest_that_holds_is_found_from_any_guess(last, limit, guess):
    asked = []

    def holds(n):
        asked.append(n)
        return n <= last

    assert largest(holds, limit, guess) == max(min(last, limit), 0)
    assert all(1 <= n <= limit for n in asked)
    assert len(asked) <= 2 * limit.bit_length() + 3
