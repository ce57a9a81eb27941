"""Reading a `config.json` that nobody vouches for: bounded, typed, and aware of what was not asked for."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

from kvroof.catalog.bounded import read_bytes
from kvroof.ground.errors import BadInput
from kvroof.ground.units import MIB

MAX_BYTES = 8 * MIB
MAX_DEPTH = 32
MAX_COUNT = 2**24
"""No head count, width or layer count of a real model comes near this."""

ALIASES: dict[str, tuple[str, ...]] = {
    "hidden_size": ("n_embd", "d_model", "dim", "n_embed", "model_dim", "embedding_dim"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers", "num_transformer_layers", "num_blocks"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads", "attention_heads"),
    "num_key_value_heads": ("num_kv_heads", "n_head_kv", "kv_n_heads"),
    "intermediate_size": ("n_inner", "ffn_dim", "ffn_hidden_size", "d_ff", "dff", "dim_ff"),
    "max_position_embeddings": (
        "n_positions",
        "max_seq_len",
        "seq_length",
        "max_sequence_length",
        "model_max_length",
    ),
    "torch_dtype": ("dtype",),
    "tie_word_embeddings": ("tie_embedding",),
    "vocab_size": ("padded_vocab_size",),
}
"""The same fact in other families' spelling; the first name is the one Llama's config uses."""

V = TypeVar("V")

LOOSE = frozenset({"max_position_embeddings", "torch_dtype", "vocab_size"})
"""Facts whose spellings differ in real files, where the first one holds (a padded vocabulary, a limit)."""

REQUIRED: Any = object()
"""The default of a key that has none: its absence is an error."""


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        BadInput: Missing, too large, not JSON, not an object, or too deep.
    """
    where = str(path)
    try:
        # Real configs hold Infinity (Mamba's time_step_limit); a number that decides cost must be whole.
        text = read_bytes(path, MAX_BYTES, "a complete config.json").decode("utf-8-sig")
        data = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        reason = "nested too deep" if isinstance(error, RecursionError) else f"not readable as JSON ({error})"
        raise BadInput(reason, where=where, way_out="give a complete config.json") from None
    if not isinstance(data, dict):
        raise BadInput(f"holds a {type(data).__name__}, not an object", where=where)
    _check_depth(data, where)
    return data


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object's pairs as a mapping; a key that is there twice has no meaning."""
    made = dict(pairs)
    if len(made) < len(pairs):
        twice = next(key for key, _ in pairs if sum(other == key for other, _ in pairs) > 1)
        raise ValueError(f"{twice!r} is there twice")
    return made


def _check_depth(data: object, where: str) -> None:
    level, depth = [data], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise BadInput(f"nested more than {MAX_DEPTH} deep", where=where)
        children = [
            list(x.values()) if isinstance(x, dict) else x for x in level if isinstance(x, (dict, list))
        ]
        level = [y for child in children for y in child if isinstance(y, (dict, list))]


class Config:
    """A mapping whose reads are typed, bounded and remembered.

    A key that is absent and one that is null are the same. `read` is the set of keys asked for, which
    is what decides the cost, and what the exporter writes; `known` are keys that mean nothing here.
    """

    def __init__(self, data: Mapping[str, Any], where: str, path: str = "") -> None:
        self.data, self.where, self.path = data, where, path
        self.read: set[str] = set()
        self.known: set[str] = set()
        self.nulls: set[str] = set()
        self.children: dict[str, Config] = {}
        self.arrays: set[tuple[str, type | tuple[type, ...], int | None]] = set()

    def fail(self, key: str, reason: str, way_out: str | None = None) -> NoReturn:
        """Raise BadInput that names this file and `key`."""
        raise BadInput(reason, where=self.where, key=self.path + key, way_out=way_out)

    def has(self, key: str) -> bool:
        """Return whether the key, or its other spelling, is there and not null."""
        return self._value(key) is not None

    def says_null(self, key: str) -> bool:
        """Return whether the file has the key and says null, for the few classes where absence differs."""
        self.read.add(key)
        found = key in self.data and self.data[key] is None
        if found:
            self.nulls.add(key)
        return found

    def read_nothing(self, keys: Collection[str]) -> None:
        """Say that `keys` are understood to mean nothing here."""
        self.known.update(keys)

    def integer(
        self, key: str, default: int = REQUIRED, *, minimum: int = 1, maximum: int = MAX_COUNT
    ) -> int:
        """Return a whole number between `minimum` and `maximum`.

        Raises:
            BadInput: Absent without a default, another type, or out of bounds.
        """
        value = self._value(key)
        if value is None:
            return self._default(key, default)
        return self._bounded(key, value, minimum, maximum)

    def optional_integer(self, key: str, *, minimum: int = 1, maximum: int = MAX_COUNT) -> int | None:
        """Return a whole number, or None where the file leaves it out or says null."""
        value = self._value(key)
        return None if value is None else self._bounded(key, value, minimum, maximum)

    def boolean(self, key: str, default: bool = REQUIRED) -> bool:
        """Return true or false.

        Raises:
            BadInput: Absent without a default, or another type.
        """
        value = self._value(key)
        if value is None:
            return self._default(key, default)
        if not isinstance(value, bool):
            self.fail(key, f"{_show(value)} is not true or false")
        return value

    def text(self, key: str, default: str = REQUIRED) -> str:
        """Return a string.

        Raises:
            BadInput: Absent without a default, or another type.
        """
        value = self._value(key)
        if value is None:
            return self._default(key, default)
        if not isinstance(value, str):
            self.fail(key, f"{_show(value)} is not a string")
        return value

    def optional_number(self, key: str) -> float | None:
        """Return a finite number, or None where the file leaves it out or says null."""
        value = self._value(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            self.fail(key, f"{_show(value)} is not a number")
        return float(value)

    def array(self, key: str, kind: type | tuple[type, ...], length: int | None = None) -> list[Any] | None:
        """Return a list whose items are of `kind`, None where the file leaves it out or says null.

        Raises:
            BadInput: Another type, items of another type, or another length than the layers need.
        """
        value = self._value(key)
        if value is None:
            return None
        if (key, kind, length) in self.arrays:
            return cast(list[Any], value)
        if not isinstance(value, list):
            self.fail(key, f"{_show(value)} is not a list")
        if length is not None and len(value) != length:
            self.fail(key, f"has {len(value)} entries for {length} layers")
        wanted = kind if isinstance(kind, tuple) else (kind,)
        for item in value:
            if not isinstance(item, wanted) or (isinstance(item, bool) and bool not in wanted):
                self.fail(key, f"holds {_show(item)}")
        self.arrays.add((key, kind, length))
        return value

    def child(self, key: str) -> Config | None:
        """Return the object under `key`, None where the file leaves it out or says null.

        Raises:
            BadInput: Another type.
        """
        value = self._value(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.fail(key, f"{_show(value)} is not an object")
        if key not in self.children:
            self.children[key] = Config(value, self.where, f"{self.path}{key}.")
        return self.children[key]

    def kept(self) -> dict[str, Any]:
        """Return the part of the file that was read, in its own layout."""
        return {
            key: self.children[key].kept() if key in self.children else value
            for key, value in self.data.items()
            if key in self.read and (value is not None or key in self.nulls)
        }

    def _value(self, key: str) -> Any:
        found: dict[str, Any] = {}
        for name in (key, *ALIASES.get(key, ())):
            self.read.add(name)
            if self.data.get(name) is not None:
                found[name] = self.data[name]
        first = next(iter(found.values()), None)
        if key not in LOOSE and any(value != first for value in found.values()):
            self.fail(" and ".join(found), "say different things of the same", "leave one of them out")
        return first

    def _default(self, key: str, default: V) -> V:
        if default is REQUIRED:
            spelled = " or ".join((key, *ALIASES.get(key, ())))
            self.fail(key, "missing, and it decides the size", f"add {spelled}")
        return default

    def _bounded(self, key: str, value: object, minimum: int, maximum: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            self.fail(key, f"{_show(value)} is not a whole number")
        if not minimum <= value <= maximum:
            self.fail(key, f"{_show(value)} is not between {minimum} and {maximum}")
        return value


def _show(value: object) -> str:
    if isinstance(value, (dict, list)):
        return f"a {'list' if isinstance(value, list) else 'mapping'} of {len(value)}"
    if isinstance(value, int) and abs(value) > 10**20:
        return "a number of more than 20 digits"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
