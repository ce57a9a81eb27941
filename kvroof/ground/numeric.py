"""Numbers that are exact integers on the ground and float64 arrays once relaxed.

A formula is written once with plain operators and the helpers below. Called with Python ints it
is exact; called with NumPy or JAX arrays the same line is evaluated over a grid or differentiated.
Types are written for the exact reading: a relaxed record has arrays where it says `int`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
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
        kind: type = type(value)
        if not _is_numpys(kind):
            return value.__array_namespace__()
        import numpy

        found = found or numpy
    return found


@cache
def _is_numpys(kind: type) -> bool:
    """Return whether NumPy made a type: asked once of each, for its module's name is slow to take apart."""
    return kind.__module__.partition(".")[0] == "numpy"


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


def largest(holds: Callable[[int], bool], limit: int, guess: int = 1) -> int:
    """Return the largest n in 0..limit for which `holds`, which is monotone; 0 when none does.

    An exact inverse by bisection, so that it is right also where growth is not linear. A good `guess` saves
    most of the trials.
    """
    low, high, step = 0, limit + 1, 1
    guess = minimum(maximum(guess, 1), limit)
    if holds(guess):
        low = guess
        while low + step <= limit and holds(low + step):
            low, step = low + step, step * 2
        high = minimum(low + step, high)
    else:
        high = guess
        while high - step >= 1 and not holds(high - step):
            high, step = high - step, step * 2
        low = maximum(high - step, 0)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


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
