"""Formulas as data: a model evaluated on symbols leaves the arithmetic that it did.

A `Symbol` stands for a number that is not known yet. What is done with it is written down in its `Tape`,
each step once, so that another program can do the same arithmetic in the same order. Plain numbers that
meet no symbol are computed at once. A symbol has no truth value: what a formula decides must not hang on it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NoReturn, TypeAlias

Number: TypeAlias = "int | float | Symbol"

OPERATIONS = ("add", "subtract", "multiply", "divide", "power", "minimum", "maximum", "floor", "ceil")
"""What a step may be; a program names it by its place here. The last two take one operand, given twice."""
_NUMBERS = {name: number for number, name in enumerate(OPERATIONS)}
_COMMUTE = {"add", "multiply", "minimum", "maximum"}


class Symbol:
    """A number to be known later, as one line of a tape."""

    __slots__ = ("line", "tape")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, tape: Tape, line: int) -> None:
        self.tape = tape
        self.line = line

    def __array_namespace__(self) -> type[Namespace]:
        """Return what `minimum`, `maximum`, `floor` and `ceil` mean here (array API standard)."""
        return Namespace

    def __add__(self, other: Number) -> Number:
        return self.tape.step("add", self, other)

    def __radd__(self, other: Number) -> Number:
        return self.tape.step("add", other, self)

    def __sub__(self, other: Number) -> Number:
        return self.tape.step("subtract", self, other)

    def __rsub__(self, other: Number) -> Number:
        return self.tape.step("subtract", other, self)

    def __mul__(self, other: Number) -> Number:
        return self.tape.step("multiply", self, other)

    def __rmul__(self, other: Number) -> Number:
        return self.tape.step("multiply", other, self)

    def __truediv__(self, other: Number) -> Number:
        return self.tape.step("divide", self, other)

    def __rtruediv__(self, other: Number) -> Number:
        return self.tape.step("divide", other, self)

    def __pow__(self, other: Number) -> Number:
        return self.tape.step("power", self, other)

    def __rpow__(self, other: Number) -> Number:
        return self.tape.step("power", other, self)

    def __neg__(self) -> Number:
        return self.tape.step("subtract", 0, self)

    def _undecided(self, *_: object) -> NoReturn:
        raise TypeError("a symbol has no truth value: a formula may not branch on a number that it traces")

    __bool__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _undecided


class Namespace:
    """The functions that symbols have in the place of an array library's."""

    @staticmethod
    def minimum(a: Number, b: Number) -> Number:
        """Return the smaller of two numbers."""
        return _tape(a, b).step("minimum", a, b)

    @staticmethod
    def maximum(a: Number, b: Number) -> Number:
        """Return the larger of two numbers."""
        return _tape(a, b).step("maximum", a, b)

    @staticmethod
    def floor(a: Number) -> Number:
        """Return the largest whole number that is at most `a`."""
        return _tape(a).step("floor", a, a)

    @staticmethod
    def ceil(a: Number) -> Number:
        """Return the smallest whole number that is at least `a`."""
        return _tape(a).step("ceil", a, a)


def _tape(*numbers: Number) -> Tape:
    return next(number.tape for number in numbers if isinstance(number, Symbol))


class Tape:
    """The arithmetic of one or more formulas over the same `inputs`, every step written once."""

    def __init__(self, inputs: Iterable[str]) -> None:
        self.inputs = tuple(inputs)
        self._constants: dict[int | float, int] = {}
        self._steps: dict[tuple[int, int, int], int] = {}

    def symbol(self, name: str) -> Any:
        """Return the input called `name`; `Any`, since formulas are typed for plain numbers."""
        return Symbol(self, self.inputs.index(name))

    def step(self, operation: str, a: Number, b: Number) -> Number:
        """Return the symbol of `a operation b`, or a plain number where that is one without computing."""
        plain = _simpler(operation, a, b)
        if plain is not None:
            return plain
        left, right = self.line(a), self.line(b)
        if operation in _COMMUTE and left > right:
            left, right = right, left
        key = (_NUMBERS[operation], left, right)
        place = self._steps.setdefault(key, len(self._steps))
        return Symbol(self, len(self.inputs) + place)

    def line(self, number: Number) -> int:
        """Return where a number stands: inputs first, then steps; constants count down from -1."""
        if isinstance(number, Symbol):
            if number.tape is not self:
                raise ValueError("symbols of two tapes do not mix")
            return number.line
        return -1 - self._constants.setdefault(number, len(self._constants))

    def program(self) -> dict[str, Any]:
        """Return the tape as plain data: `inputs`, `constants`, and `steps` of (operation, line, line)."""
        return {
            "inputs": list(self.inputs),
            "constants": list(self._constants),
            "steps": [part for step in self._steps for part in step],
        }


def _simpler(operation: str, a: Number, b: Number) -> Number | None:
    """Return what a step with 0, with 1 or of equal symbols is without arithmetic, else None."""
    if isinstance(a, Symbol) and isinstance(b, Symbol):
        if a.line != b.line:
            return None
        if operation in ("minimum", "maximum"):
            return a
        return 0 if operation == "subtract" else None
    if isinstance(b, Symbol):
        assert not isinstance(a, Symbol)
        if a == 0 and operation in ("add", "multiply", "divide"):
            return b if operation == "add" else 0
        return b if a == 1 and operation == "multiply" else None
    if b == 0 and operation in ("add", "subtract", "multiply"):
        return 0 if operation == "multiply" else a
    return a if b == 1 and operation in ("multiply", "divide", "power") else None


class Pool:
    """Parts of a table, each kept once and then known by its number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, part: Any) -> int:
        """Return the number of a part: plain data, which may hold numbers of other parts."""
        return self._numbers.setdefault(json.dumps(part), len(self._numbers))

    def parts(self) -> list[Any]:
        """Return the parts in the order of their numbers."""
        return [json.loads(part) for part in self._numbers]
