"""The caches and states of a model, each distinct one with the number of layers that have it."""

from __future__ import annotations

from collections.abc import Iterator

from kvroof.spec.architecture import Architecture
from kvroof.spec.cache import Cache, State
from kvroof.spec.precision import HF_STATE, StateFormat
from kvroof.spec.reach import Encoder


def caches(model: Architecture) -> Iterator[tuple[Cache, int]]:
    """Yield the cache of each group of equal layers, with the number of layers in it."""
    for group in model.layers:
        for mixer in group.layer.mixers:
            for cache in mixer.caches:
                yield cache, group.count


def crosses(model: Architecture) -> bool:
    """Return whether a layer of the model looks at an encoder's tokens."""
    return any(isinstance(cache.reach, Encoder) for cache, _ in caches(model))


def states(model: Architecture) -> Iterator[tuple[str, State, int]]:
    """Yield the fixed state of each group of equal layers, with its kind and their number."""
    for group in model.layers:
        for mixer in group.layer.mixers:
            if mixer.state is not None:
                yield mixer.kind, mixer.state, group.count


def has_state(model: Architecture) -> bool:
    """Return whether a layer of the model keeps a fixed state."""
    return any(True for _ in states(model))


def fixed_bytes(model: Architecture, state: StateFormat = HF_STATE, tp: int = 1) -> int:
    """Return the state bytes that one sequence holds on one of `tp` ranks, whatever its length."""
    return sum(layers * state.state_bytes(held, tp) for _, held, layers in states(model))
