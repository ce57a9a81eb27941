"""The `@record` decorator: frozen, slotted, keyword-only dataclasses that JAX can map over."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar, cast, dataclass_transform

C = TypeVar("C", bound=type)

_records: list[type] = []
_registered: set[type] = set()


def static(*, default: Any = dataclasses.MISSING) -> Any:
    """Return a field that is structure, not number: names and choices that JAX must not trace."""
    return dataclasses.field(default=default, metadata={"static": True})


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(static, dataclasses.field))
def record(cls: C) -> C:
    """Return `cls` as a frozen, slotted, keyword-only dataclass, known as a pytree once JAX is in use.

    Validation belongs to the loaders: a pytree is rebuilt with tracers inside.
    """
    made: Any = dataclasses.dataclass(frozen=True, slots=True, kw_only=True)(cls)
    _records.append(made)
    return cast(C, made)


def register_pytrees() -> None:
    """Register every record defined so far with `jax.tree_util`; repeated calls do nothing."""
    import jax

    for cls in _records:
        if cls in _registered:
            continue
        fields = dataclasses.fields(cls)
        jax.tree_util.register_dataclass(
            cls,
            data_fields=[f.name for f in fields if not f.metadata.get("static")],
            meta_fields=[f.name for f in fields if f.metadata.get("static")],
        )
        _registered.add(cls)
