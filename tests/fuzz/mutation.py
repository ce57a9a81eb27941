"""Wrong, huge and hostile variants of a good file, decided by bytes: the same bytes give the same variant."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

STRANGE: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    3,
    2**31,
    2**63,
    -(2**63),
    10**30,
    10**400,
    0.5,
    -0.0,
    1e-320,
    1e308,
    float("inf"),
    float("nan"),
    "",
    "auto",
    "1e400",
    "../../../etc/passwd",
    "<script>alert(1)</script>",
    "{{ 7 * 7 }}",
    "\x1b[31m\u202e\x00",
    "x" * 5000,
    [],
    {},
    [[]],
    [None],
    [1, "a", {}],
    ["full_attention"] * 3,
    {"a": {"b": {"c": 1}}},
    [0] * 2000,
)


class Choices:
    """Bytes as a stream of choices; when they run out every choice is the first."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def below(self, count: int) -> int:
        """Return a number from 0 to `count - 1`."""
        taken = self.data[self.at : self.at + 2]
        self.at += 2
        return int.from_bytes(taken, "little") % count if count else 0

    def rest(self) -> bytes:
        """Return the bytes that no choice has taken."""
        return self.data[self.at :]


def mutated(value: Any, choices: Choices, times: int) -> Any:
    """Return a copy of nested mappings and lists with some leaves replaced, left out, doubled or renamed."""
    changed = deepcopy(value)
    for _ in range(times):
        changed = _once(changed, choices)
    return changed


def _once(value: Any, choices: Choices) -> Any:
    """Return the value with one place in it changed."""
    if isinstance(value, dict) and value and choices.below(8):
        key = list(value)[choices.below(len(value))]
        match choices.below(8):
            case 0:
                del value[key]
            case 1:
                value[f"{key}_{choices.below(100)}"] = value[key]
            case 2:
                other = list(value)[choices.below(len(value))]
                value[key], value[other] = value[other], value[key]
            case 3 if isinstance(value[key], (int, float)):
                value[key] = value[key] * (choices.below(7) - 3)
            case 4 if isinstance(value[key], (int, float)):
                value[key] = value[key] + choices.below(5) - 2
            case _:
                value[key] = _once(value[key], choices)
        return value
    if isinstance(value, list) and value and choices.below(4):
        at = choices.below(len(value))
        match choices.below(4):
            case 0:
                del value[at]
            case 1:
                value.insert(at, value[at])
            case _:
                value[at] = _once(value[at], choices)
        return value
    return deepcopy(STRANGE[choices.below(len(STRANGE))])


def toml(data: dict[str, Any], prefix: str = "") -> str:
    """Return a mapping as TOML, values that TOML lacks as words."""
    lines, tables = [], []
    for key, value in data.items():
        if isinstance(value, dict):
            path = f"{prefix}{json.dumps(key)}"
            tables.append(f"[{path}]\n{toml(value, f'{path}.')}")
        else:
            lines.append(f"{json.dumps(key)} = {_toml_value(value)}")
    return "\n".join([*lines, *tables]) + "\n"


def _toml_value(value: Any) -> str:
    if isinstance(value, float) and not isinstance(value, bool):
        return {"inf": "inf", "-inf": "-inf", "nan": "nan"}.get(str(value), repr(value))
    if isinstance(value, list):
        return f"[{', '.join(_toml_value(item) for item in value)}]"
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{json.dumps(k)} = {_toml_value(v)}' for k, v in value.items())} }}"
    return '"none"' if value is None else json.dumps(value)
