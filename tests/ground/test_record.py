"""Records are frozen values, and pytrees whose names and choices are structure."""

import dataclasses

import pytest

from kvroof.catalog.models import load_model
from kvroof.ground.record import record, register_pytrees, static
from kvroof.roofline.plan import Plan


def test_a_record_is_frozen_slotted_keyword_only_and_hashable():
    @record
    class Point:
        name: str = static(default="p")
        x: int = 0

    point = Point(x=3)
    assert hash(point) == hash(Point(x=3))
    with pytest.raises(dataclasses.FrozenInstanceError):
        point.x = 4
    with pytest.raises(TypeError):
        Point("p", 3)
    assert not hasattr(point, "__dict__")


def test_a_model_and_a_plan_survive_a_round_trip_through_their_leaves():
    import jax

    register_pytrees()
    register_pytrees()
    model = load_model("gemma-3-27b")
    for tree in (model, Plan.of(model, "h100-sxm", tp=2)):
        leaves, structure = jax.tree_util.tree_flatten(tree)
        assert jax.tree_util.tree_unflatten(structure, leaves) == tree
        assert all(isinstance(leaf, (int, float)) for leaf in leaves)
