"""Quantities as people write them, in and out. Inside kvroof only base units exist: B, s, FLOP.

GiB is 2**30 bytes and GB is 10**9 bytes, always. A link's `Gb/s` is bits.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction

from kvroof.ground.errors import BadInput

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40
KB, MB, GB, TB = 10**3, 10**6, 10**9, 10**12

MAX_SIZE = 2**70
"""Bytes beyond which a size is a slip of the pen."""

_SIZES = {
    "": 1, "b": 1,
    "kib": KIB, "mib": MIB, "gib": GIB, "tib": TIB,
    "kb": KB, "mb": MB, "gb": GB, "tb": TB,
}  # fmt: skip
_TIMES = {
    "s": Fraction(1), "ms": Fraction(1, 10**3),
    "us": Fraction(1, 10**6), "µs": Fraction(1, 10**6), "min": Fraction(60),
}  # fmt: skip
_DECIMAL = {"": 1, "K": KB, "k": KB, "M": MB, "G": GB, "T": TB}
_QUANTITY = re.compile(r"\s*([+-]?\d{1,30}(?:\.\d{1,30})?(?:[eE][+-]?\d{1,3})?)\s*([A-Za-zµ/]*)\s*")


def _split(text: str, what: str, where: str | None, example: str) -> tuple[Fraction, str]:
    """Return the number and the unit of `text`, refusing what is not a positive quantity."""
    match = _QUANTITY.fullmatch(text.replace("_", ""))
    if match is None:
        raise BadInput(f"{text!r} is not a {what}", where=where, way_out=f"write it like {example}")
    value = Fraction(match[1])
    if value < 0:
        raise BadInput(f"{text!r} is negative", where=where, way_out=f"write it like {example}")
    return value, match[2]


def parse_size(text: str, where: str | None = None) -> int:
    """Return whole bytes of a size such as `22GiB`, `80 GB` or `131072`.

    Raises:
        BadInput: Not a size, negative, or an unknown unit.
    """
    value, unit = _split(text, "size", where, "22GiB, 80GB or 131072")
    if unit.lower() not in _SIZES:
        number = text.strip()[:-1].rstrip()
        half = unit.upper() in ("K", "M", "G", "T")
        raise BadInput(
            f"{text!r} has no known unit of size",
            where=where,
            way_out=f"write {number}{unit.upper()}B or {number}{unit.upper()}iB"
            if half
            else "use B, KiB, MiB, GiB, TiB, KB, MB, GB or TB",
        )
    size = value * _SIZES[unit.lower()]
    if size > MAX_SIZE:
        raise BadInput(f"{text!r} is more than any machine holds", where=where)
    return round(size)


def parse_time(text: str, where: str | None = None) -> float:
    """Return seconds of a time such as `50ms` or `1.5s`.

    Raises:
        BadInput: Not a time, negative, without a unit or with an unknown one.
    """
    value, unit = _split(text, "time", where, "50ms or 1.5s")
    if not unit:
        number = text.strip()
        raise BadInput(f"{number} has no unit", where=where, way_out=f"write {number}ms or {number}s")
    if unit not in _TIMES:
        raise BadInput(f"{text!r} has no known unit of time", where=where, way_out="use s, ms, us or min")
    return _finite(value * _TIMES[unit], text, where)


def parse_rate(text: str, where: str | None = None) -> float:
    """Return bytes per second of a rate such as `400Gb/s` (bits) or `3.35TB/s` (bytes).

    Raises:
        BadInput: Not a rate, negative, or an unknown unit.
    """
    value, unit = _split(text, "rate", where, "400Gb/s or 3.35TB/s")
    match = re.fullmatch(r"([KkMGT]?)(i?)([bB])(?:/s|ps)", unit)
    if match is None:
        raise BadInput(
            f"{text!r} has no known unit of rate", where=where, way_out="use Gb/s for bits or GB/s for bytes"
        )
    scale = _SIZES[match[1].lower() + "ib"] if match[1] and match[2] else _DECIMAL[match[1]]
    return _finite(value * scale / (8 if match[3] == "b" else 1), text, where)


def _finite(value: Fraction, text: str, where: str | None) -> float:
    try:
        return float(value)
    except OverflowError:
        raise BadInput(f"{text!r} is beyond every machine", where=where) from None


def format_bytes(size: float) -> str:
    """Return a size in binary units with its sign, e.g. `-2.04 GiB`; exact below 1 KiB."""
    for unit, scale in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(size) >= scale:
            if abs(size) > MAX_SIZE:
                return f"{int(size) // scale:,} {unit}"
            return f"{size / scale:,.2f} {unit}"
    return f"{size:,.0f} B"


def format_time(seconds: float) -> str:
    """Return a time in the unit that leaves one to three digits before the point, e.g. `5.12 ms`."""
    if seconds == 0 or not math.isfinite(seconds):
        return f"{seconds:.0f} s"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(seconds) >= 0.9995 * scale:
            return f"{seconds / scale:,.3g} {unit}" if abs(seconds) < 999.5 else f"{seconds:,.0f} s"
    return f"{seconds / 1e-9:.3g} ns"


def format_decimal(value: float, unit: str) -> str:
    """Return a value with a decimal prefix, e.g. `3.35 TB/s` or `989 TFLOP/s`."""
    for prefix, scale in (("P", 10**15), ("T", TB), ("G", GB), ("M", MB), ("K", KB)):
        if abs(value) >= scale:
            return f"{value / scale:.4g} {prefix}{unit}"
    return f"{value:.4g} {unit}"


def format_count(value: int) -> str:
    """Return a parameter count as people say it, e.g. `8.03B` (10**9) or `671.03B`."""
    for suffix, scale in (("T", TB), ("B", GB), ("M", MB), ("K", KB)):
        if value >= scale:
            return f"{value / scale:.2f}{suffix}"
    return str(value)
