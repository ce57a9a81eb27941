"""Numbers that are exact integers on the ground and float64 arrays once relaxed.

A formula is written once with plain operators and the helpers below. Called with Python ints it
is exact; called with NumPy or JAX arrays the same line is evaluated over a grid or differentiated.
Types are written for the exact reading: a relaxed record has arrays where it says `int`.
"""

from __future__ import annotations

from typing import Any, TypeVar, cast

from kvroof.ground.record import register_pytrees

N = TypeVar("N", int, float)
T = TypeVar("T")


def _array_module(*values: Any) -> Any:
    """Return the array namespace that `values` need, or None when all are plain Python numbers.

    Every array names its own, and so may any other kind of number; beside another, NumPy's gives way.

    Source: Python array API standard, `__array_namespace__`.
    """
    found = None
    for value in values:
        if isinstance(value, (int, float)):
            continue
        if type(value).__module__.partition(".")[0] == "numpy":
            import numpy

            found = found or numpy
        else:
            return value.__array_namespace__()
    return found


def minimum(a: N, b: N) -> N:
    """Return the smaller of two numbers, element by element for arrays."""
    xp = _array_module(a, b)
    return min(a, b) if xp is None else cast(N, xp.minimum(a, b))


def maximum(a: N, b: N) -> N:
    """Return the larger of two numbers, element by element for arrays."""
    xp = _array_module(a, b)
    return max(a, b) if xp is None else cast(N, xp.maximum(a, b))


def floor_div(a: N, b: N) -> N:
    """Return `a // b`: exact for ints, the floor of the quotient for arrays."""
    xp = _array_module(a, b)
    return a // b if xp is None else cast(N, xp.floor(a / b))


def ceil_div(a: N, b: N) -> N:
    """Return the smallest whole number that is at least `a / b`."""
    xp = _array_module(a, b)
    return -(-a // b) if xp is None else cast(N, xp.ceil(a / b))


def whole_blocks(a: int, b: int) -> int:
    """Return the blocks of `b` that hold `a`: the last one counts whole, but relaxed it is a share.

    A relaxed count has to have a slope, which a ceiling has not.
    """
    return cast(int, a / b) if _array_module(a, b) is not None else ceil_div(a, b)


def exact_div(a: int, b: int) -> int:
    """Return `a / b` where the caller has made sure that it divides; relaxed, the plain quotient.

    Raises:
        ArithmeticError: Two Python ints that do not divide.
    """
    if _array_module(a, b) is not None or isinstance(a, float) or isinstance(b, float):
        return cast(int, a / b)
    if a % b:
        raise ArithmeticError(f"{a} is not a multiple of {b}")
    return a // b


def shared_by(ranks: int, split: int) -> int:
    """Return how many of `ranks` divide something among themselves that `split` of them can at most."""
    return 1 if ranks == 1 else minimum(ranks, split)


def triangle(n: int) -> int:
    """Return `n (n + 1) / 2`, the causal query-key pairs among the first `n` tokens."""
    return exact_div(n * (n + 1), 2)


def relax(tree: T) -> T:
    """Return `tree` with every numeric leaf as a float64 JAX array: the one door out of the integers.

    Raises:
        RuntimeError: 64-bit floats are off in JAX (`jax.config.update("jax_enable_x64", True)`).
    """
    import jax

    if not getattr(jax.config, "jax_enable_x64"):  # noqa: B009 - the stubs leave it out
        raise RuntimeError('relax() needs 64-bit floats: jax.config.update("jax_enable_x64", True)')
    register_pytrees()
    return cast(T, jax.tree_util.tree_map(lambda x: jax.numpy.asarray(x, jax.numpy.float64), tree))
