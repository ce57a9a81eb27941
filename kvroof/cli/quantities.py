"""What the words of an option are read as: sizes, rates, times, lists, files. Errors name the option."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast

import click

from kvroof.catalog.whole_file import writable
from kvroof.ground.errors import BadInput
from kvroof.ground.units import MIB, parse_rate, parse_size, parse_time

if TYPE_CHECKING:
    from kvroof.search.question import Chunking

T = TypeVar("T")

LEAST_PRICE, MOST_PRICE = 1e-6, 1e6
"""Dollars per device and hour."""


class Quantity(click.ParamType[T], Generic[T]):
    """An option whose words a function reads; a value that is one already is left as it is.

    Args:
        name: What `--help` calls it.
        read: Makes a value of the words and the option's name.
        kind: The type of such a value.
    """

    def __init__(self, name: str, read: Callable[[str, str | None], T], kind: type[T]) -> None:
        self.name, self._read, self._kind = name, read, kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:
        """Return the value.

        Raises:
            BadInput: Words that say none.
        """
        return value if isinstance(value, self._kind) else self._read(value, param.opts[0] if param else None)


def _memory(words: str, where: str | None) -> int:
    """Return bytes; a bare number below 1 MiB is a unit forgotten."""
    found, number = parse_size(words, where), words.strip()
    if 0 < found < MIB and number[-1].isdecimal():
        raise BadInput(f"{number} bytes?", where=where, way_out=f"write {number}GB or {number}GiB")
    return found


def _positive(parse: Callable[[str, str | None], float], what: str) -> Callable[[str, str | None], float]:
    def read(words: str, where: str | None) -> float:
        found = parse(words, where)
        if found <= 0:
            raise BadInput(f"{words!r} is not a positive {what}", where=where)
        return found

    return read


_seconds = _positive(parse_time, "time")


def _times(words: str, where: str | None) -> tuple[float, ...]:
    return tuple(sorted(_seconds(part, where) for part in words.split(",")))


def _counts(words: str, where: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in words.split(","))
    except ValueError:
        raise BadInput(
            f"{words!r} is not a list of whole numbers", where=where, way_out="write it like 2,4,8"
        ) from None


def _two_pools(words: str, where: str | None) -> tuple[int, ...]:
    first, colon, later = words.partition(":")
    if not (colon and first.isdecimal() and later.isdecimal() and int(first) and int(later)):
        raise BadInput(f"{words!r} is not two numbers of instances", where=where, way_out="write it like 2:1")
    return int(first), int(later)


def _number(words: str, where: str | None, what: str) -> float:
    try:
        return float(words)
    except ValueError:
        raise BadInput(f"{words[:80]!r} is no {what}", where=where, way_out="give a number") from None


def arrivals(*, burst: bool = False) -> Quantity[float]:
    """Return the type of a rate of requests per second; with `burst` all may come at once (`inf`)."""

    def read(words: str, where: str | None) -> float:
        from kvroof.serving.demand.requests import check_arrival_rate

        rate = _number(words, where, "rate")
        check_arrival_rate(rate, burst=burst)
        return rate

    return Quantity("requests/s", read, float)


def _percent(words: str, where: str | None) -> float:
    share = _number(words, where, "percentage")
    if 0 < share < 1:
        raise BadInput(f"{words} % of the requests?", where=where, way_out=f"write {100 * share:g}")
    if not 0 < share < 100:
        raise BadInput(f"{words[:80]} % of the requests", where=where, way_out="give 1 to 99")
    return share


def _count_or_all(words: str, where: str | None) -> int | Literal["all"]:
    if words.lower() == "all":
        return "all"
    try:
        return int(words)
    except ValueError:
        raise BadInput(f"{words[:80]!r} is no number", where=where, way_out="write it like 1000") from None


def _chunk(words: str, where: str | None) -> int | Chunking:
    if words in ("auto", "whole"):
        return cast("Chunking", words)
    try:
        return int(words)
    except ValueError:
        raise BadInput(f"{words!r} is no number of tokens", where=where, way_out="or auto, whole") from None


def _price(words: str, where: str | None) -> tuple[str, float]:
    machine, _, amount = words.partition("=")
    try:
        price = float(amount)
    except ValueError:
        price = 0.0
    if not LEAST_PRICE <= price <= MOST_PRICE:
        raise BadInput(f"{words[:80]!r} is no price", where=where, way_out="write h100-sxm=2.5")
    return machine, price


def prices_of(
    given: Iterable[tuple[str, float]], machines: Collection[str], *, of_all: bool = False
) -> dict[str, float]:
    """Return the prices that were given by machine.

    Args:
        given: Machines and their prices.
        machines: The names of those that may have one.
        of_all: Whether each of them needs one, if any has.

    Raises:
        BadInput: A price of another machine, or one that lacks.
    """
    from kvroof.catalog.profiles import load_hardware

    found = {}
    for name, price in given:
        own = name if name in machines else load_hardware(name).name
        if own not in machines:
            raise BadInput(f"{own} is not among the machines", where="--price", way_out="name it as HW too")
        found[own] = price
    missing = [machine for machine in machines if machine not in found]
    if of_all and found and missing:
        raise BadInput(f"{missing[0]} has no price", where="--price", way_out=f"add --price {missing[0]}=2.5")
    return found


def written(*endings: str) -> Quantity[Path]:
    """Return the type of a file that will be written, refused before the work where it cannot be.

    Args:
        endings: What its name may end in, the usual one first; anything where none is given.
    """
    return Quantity("file", lambda words, where: writable(words, endings, where or ""), Path)


SIZE = Quantity("size", _memory, int)
"""Bytes: 22GiB, 80GB or 80000000000."""
RATE = Quantity("rate", _positive(parse_rate, "rate"), float)
"""Bytes per second: 80GB/s or 400Gb/s."""
TIME = Quantity("time", _seconds, float)
"""Seconds: 50ms or 1.5s."""
TIMES = Quantity("times", _times, tuple)
"""Seconds in rising order: 20ms,50ms."""
ARRIVALS = arrivals()
"""Requests per second."""
PERCENT = Quantity("percent", _percent, float)
"""A percentage of the requests: 90, and not 0.9."""
COUNT_OR_ALL: Quantity[Any] = Quantity("count", _count_or_all, int)
"""How many: 1000, or all."""
COUNTS = Quantity("counts", _counts, tuple)
"""Whole numbers: 100,2048,33."""
TWO_POOLS = Quantity("split", _two_pools, tuple)
"""Prefill and decode instances: 2:1."""
CHUNK: Quantity[Any] = Quantity("chunk", _chunk, int)
"""Prompt tokens of a step: a number, auto or whole."""
PRICE = Quantity("price", _price, tuple)
"""A machine, and dollars per device and hour: h100-sxm=2.5."""
