"""Which family a `model_type` belongs to. A new one is declared in a module here, in its `FAMILIES`."""

from __future__ import annotations

from kvroof.catalog.families import dense, moe
from kvroof.catalog.families.family import Decoder, Family, build

FAMILIES: dict[str, Family] = {**dense.FAMILIES, **moe.FAMILIES}

__all__ = ["FAMILIES", "Decoder", "Family", "build"]
