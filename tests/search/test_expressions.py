"""A formula that is run on symbols leaves the arithmetic that it did with numbers."""

import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvroof.ground.numeric import ceil_div, exact_div, floor_div, maximum, minimum, triangle
from kvroof.search.expressions import OPERATIONS, Pool, Tape

WORK: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "power": operator.pow,
    "minimum": min,
    "maximum": max,
    "floor": lambda a, _: math.floor(a),
    "ceil": lambda a, _: math.ceil(a),
}
FORMULAS: dict[str, Callable[[Any, Any], Any]] = {
    "a window's pairs": lambda n, w: triangle(minimum(n, w)) + w * maximum(n - w, 0),
    "whole chunks": lambda n, w: floor_div(n, w) * triangle(w) + triangle(n - floor_div(n, w) * w),
    "tiles": lambda n, w: ceil_div(n, 128) * ceil_div(w, 128),
    "distinct experts": lambda n, w: w * (1 - (1 - 1 / w) ** n),
    "a soft maximum": lambda n, w: (n**1.5 + w**1.5) ** (1 / 1.5),
    "nothing to do": lambda n, w: 0 * n + 1 * w - 0 + exact_div(n, 1) * 1 - n + 0 / w,
    "from the other side": lambda n, w: 3 - n + 2 / w + 2 ** (0 - w / n) + -n,
}
sizes = st.integers(1, 10**6)


def run(tape: Tape, number: Any, **values: float) -> float:
    """Return what a line of a tape is for given inputs, as a program in another language finds it."""
    program = tape.program()
    lines = [values[name] for name in program["inputs"]]

    def at(line: int) -> float:
        return lines[line] if line >= 0 else program["constants"][-1 - line]

    steps = iter(program["steps"])
    for kind, a, b in zip(steps, steps, steps, strict=True):
        lines.append(WORK[OPERATIONS[kind]](at(a), at(b)))
    return at(tape.line(number))


@pytest.mark.parametrize("name", FORMULAS)
@given(n=sizes, w=sizes)
def test_a_tape_does_the_arithmetic_of_its_formula(name, n, w):
    tape = Tape(("n", "w"))
    traced = FORMULAS[name](tape.symbol("n"), tape.symbol("w"))
    assert run(tape, traced, n=n, w=w) == pytest.approx(FORMULAS[name](n, w), rel=1e-13)


def test_arithmetic_of_plain_numbers_is_not_written_down():
    tape = Tape(("n",))
    assert minimum(3, 4) * 5 + 0 * tape.symbol("n") == 15
    assert tape.program()["steps"] == []


def test_a_step_is_written_once_whoever_asks_for_it():
    tape = Tape(("n", "w"))
    n, w = tape.symbol("n"), tape.symbol("w")
    assert tape.line(n * w + 1) == tape.line(1 + w * n)
    assert len(tape.program()["steps"]) == 2 * 3
    assert tape.line(n - w) != tape.line(w - n)


@pytest.mark.parametrize("decide", [bool, lambda n: n > 1, lambda n: n == 1, lambda n: max(n, 1)])
def test_a_formula_cannot_branch_on_a_symbol(decide):
    with pytest.raises(TypeError, match="no truth value"):
        decide(Tape(("n",)).symbol("n"))


def test_symbols_of_two_tapes_do_not_mix():
    with pytest.raises(ValueError, match="two tapes"):
        Tape(("n",)).symbol("n") + Tape(("n",)).symbol("n")


def test_a_pool_keeps_equal_parts_once():
    pool = Pool()
    assert [pool.number(part) for part in ([1, "a"], {"x": 2}, [1, "a"])] == [0, 1, 0]
    assert pool.parts() == [[1, "a"], {"x": 2}]
