"""The caches and states of a model, each distinct one with the number of layers that have it."""

from __future__ import annotations

from collections.abc import Iterator

from kvroof.spec.architecture import Architecture
from kvroof.spec.cache import Cache, State


def caches(model: Architecture) -> Iterator[tuple[Cache, int]]:
    """Yield the cache of each group of equal layers, with the number of layers in it."""
    for group in model.layers:
        for mixer in group.layer.mixers:
            for cache in mixer.caches:
                yield cache, group.count


def states(model: Architecture) -> Iterator[tuple[str, State, int]]:
    """Yield the fixed state of each group of equal layers, with its kind and their number."""
    for group in model.layers:
        for mixer in group.layer.mixers:
            if mixer.state is not None:
                yield mixer.kind, mixer.state, group.count
