"""Laws of the table of families."""

from __future__ import annotations

from collections import Counter

from kvroof.catalog.families import FAMILIES


def test_a_model_type_is_declared_once() -> None:
    twice = [name for name, count in Counter(iter(FAMILIES)).items() if count > 1]
    assert twice == []


def test_every_declared_type_is_found() -> None:
    assert all(name in FAMILIES for name in FAMILIES)
    assert len(FAMILIES) == len(list(FAMILIES)) > 150
    assert "no-such-type" not in FAMILIES
