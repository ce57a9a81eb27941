"""Plain data as TOML: its own values first, then a table for each mapping within."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def to_toml(table: Mapping[str, Any], comment: Iterable[str] = (), digits: int = 17) -> str:
    """Return a mapping of numbers, words, lists and mappings as TOML, after a comment.

    Args:
        table: What is written; None is left out.
        comment: Lines that stand before it.
        digits: Decimal digits of a float that count, at most; with 17 it is read back as it was.
    """
    head = [f"# {line}".rstrip() for line in comment]
    lines = _lines("", table, digits)
    return "\n".join([*head, "", *lines] if head else lines) + "\n"


def _lines(name: str, table: Mapping[str, Any], digits: int) -> Iterator[str]:
    within = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    own = {key: value for key, value in table.items() if key not in within and value is not None}
    if name and (own or not within):
        yield from ("", f"[{name}]")
    for key, value in own.items():
        yield f"{_key(key)} = {_value(value, digits)}"
    for key, value in within.items():
        yield from _lines(f"{name}.{_key(key)}" if name else _key(key), value, digits)


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _value(key, 0)


def _value(value: Any, digits: int) -> str:
    if isinstance(value, float):
        shown = (f"{value:.{n}g}" for n in range(min(6, digits), digits + 1))
        text = next((text for text in shown if float(text) == value), f"{value:.{digits}g}")
        return text if any(c in text for c in ".en") else f"{text}.0"
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_key(key)} = {_value(one, digits)}' for key, one in value.items())} }}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_value(one, digits) for one in value)}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
