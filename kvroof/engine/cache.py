"""The arrays that remember: pages of keys and values, and fixed states, in groups that share block tables.

Layers that keep the same tokens form a group, and a sequence has one block table per group:

- *full*: token t lies in the table's entry `t // block_size`; the table grows with the sequence.
- *windowed* (sliding, chunked): a ring of `ceil(window / block_size)` blocks. Token t lies in entry
  `t // block_size` modulo the ring and takes the place of a token that no later query sees.
- *state*: one block, a recurrent layer's state, rewritten in every step.

So a sequence holds in each group just what `kvroof.memory` counts under its paged allocator.
"""

# ruff: noqa: F722 - shapes are strings
from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from kvroof.engine.pages import NARROW, Pages, new_pages
from kvroof.ground.dtypes import DTYPES, Dtype
from kvroof.ground.errors import Unsupported
from kvroof.ground.numeric import ceil_div
from kvroof.ground.record import record, static
from kvroof.spec.architecture import Architecture, Mixer
from kvroof.spec.attention import GroupedAttention, LatentAttention
from kvroof.spec.precision import KVFormat, StateFormat
from kvroof.spec.reach import AnyReach, Chunked, Full, Sliding
from kvroof.spec.recurrent import Recurrent

_FP64 = Dtype(name="fp64", block_elements=1, block_bytes=8)
_STORED = {
    "float64": _FP64,
    "float32": DTYPES["fp32"],
    "bfloat16": DTYPES["bf16"],
    "float16": DTYPES["fp16"],
    "int8": DTYPES["int8"],
    "float8_e4m3fn": DTYPES["fp8"],
    "float8_e5m2": DTYPES["fp8"],
}
_FULL = Full()


@record
class Group:
    """Layers whose blocks are handed out together; without a `reach`, a fixed state."""

    reach: AnyReach | None = static()
    block_size: int = static()

    @property
    def name(self) -> str:
        """How the group is called in reports."""
        if self.reach is None:
            return "state"
        return f"{self.reach.kind} {self.reach.window}" if self.reach.window else self.reach.kind

    @property
    def ring(self) -> int | None:
        """Entries of the table after which it starts over; None for a table that grows."""
        if self.reach is None:
            return 1
        return None if self.reach.window is None else ceil_div(self.reach.window, self.block_size)

    def blocks(self, tokens: int) -> int:
        """Return the blocks that a sequence of `tokens` cached tokens holds."""
        if self.reach is None:
            return min(tokens, 1)
        return ceil_div(self.reach.kept(tokens), self.block_size)


@record
class CachePlan:
    """Which mixer keeps what where: the first group is the one whose table grows, even with no layer.

    `pages` are the attention layers that store, each with its group; `states` the recurrent layers.
    `places` gives, for each layer of the stack and each of its mixers, the index into one of the two.
    """

    groups: tuple[Group, ...] = static()
    pages: tuple[tuple[GroupedAttention | LatentAttention, int], ...] = static()
    states: tuple[Recurrent, ...] = static()
    places: tuple[tuple[int, ...], ...] = static()
    block_size: int = static()

    @property
    def state_group(self) -> int:
        """Index of the group of fixed states, which is the last."""
        return len(self.groups) - 1

    @property
    def keeps_all(self) -> bool:
        """Whether every group's table grows, so that a prefix can be reused at any block."""
        return all(group.ring is None for group in self.groups)

    def block_bytes(self, kv: KVFormat, state: StateFormat) -> tuple[int, ...]:
        """Return the bytes of one block of each group, over all its layers."""
        sizes = [0] * len(self.groups)
        for attention, group in self.pages:
            sizes[group] += self.block_size * kv.token_bytes(attention.cache)
        for mixer in self.states:
            sizes[self.state_group] += state.state_bytes(mixer.held)
        return tuple(sizes)


def plan_cache(model: Architecture, block_size: int) -> CachePlan:
    """Return where each layer of `model` keeps its tokens.

    A layer that stores nothing reads the nearest earlier cache of the same reach and widths.

    Raises:
        Unsupported: Attention that pages do not hold: compressed, sparse or across an encoder.
    """
    groups = [Group(reach=_FULL, block_size=block_size)]
    pages: list[tuple[GroupedAttention | LatentAttention, int]] = []
    states: list[Recurrent] = []
    places: list[tuple[int, ...]] = []

    def place(mixer: Mixer) -> int:
        if isinstance(mixer, Recurrent):
            states.append(mixer)
            return len(states) - 1
        attention = _checked(mixer)
        if not attention.stores_kv:
            return _source(attention, pages)
        group = Group(reach=attention.reach, block_size=block_size)
        if group not in groups:
            groups.append(group)
        pages.append((attention, groups.index(group)))
        return len(pages) - 1

    for index in model.order:
        places.append(tuple(place(mixer) for mixer in model.layers[index].layer.mixers))
    if states:
        groups.append(Group(reach=None, block_size=block_size))
    return CachePlan(
        groups=tuple(groups),
        pages=tuple(pages),
        states=tuple(states),
        places=tuple(places),
        block_size=block_size,
    )


def _checked(mixer: Mixer) -> GroupedAttention | LatentAttention:
    if not isinstance(mixer, GroupedAttention | LatentAttention) or mixer.index is not None:
        kind = mixer.kind
        raise Unsupported(f"the engine has no {kind} attention", where="engine", way_out="name another model")
    if not isinstance(mixer.reach, Full | Sliding | Chunked):
        raise Unsupported(f"the engine has no {mixer.kind} attention", where="engine")
    return mixer


def _source(
    reader: GroupedAttention | LatentAttention,
    pages: list[tuple[GroupedAttention | LatentAttention, int]],
) -> int:
    wanted = (reader.reach, reader.cache.k_width, reader.cache.v_width, reader.cache.split)
    for index in reversed(range(len(pages))):
        cache = pages[index][0].cache
        if (cache.reach, cache.k_width, cache.v_width, cache.split) == wanted:
            return index
    raise Unsupported("a layer reads the cache of an earlier one, and none is like it", where="engine")


class StateArrays(NamedTuple):
    """One recurrent layer's states: the last inputs of its convolution, and its recurrence, flat."""

    conv: Float[Array, "num_blocks columns channels"] | None
    recurrent: Float[Array, "num_blocks elements"] | None


class Cache(NamedTuple):
    """All that an engine remembers: pages by storing layer, states by recurrent layer."""

    pages: tuple[Pages, ...]
    states: tuple[StateArrays, ...]

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return sum(int(leaf.nbytes) for leaf in jax.tree_util.tree_leaves(self))


def formats(dtype: DTypeLike, kv_dtype: DTypeLike) -> tuple[KVFormat, StateFormat]:
    """Return, in the ledger's terms, how an engine stores its cache.

    A narrow dtype has an fp32 scale for each token and head. Convolutions keep `d_conv - 1` columns, as
    engines do; recurrences are in fp32, or in the model's dtype where that is wider.
    """
    stored, own = _STORED[jnp.dtype(kv_dtype).name], _STORED[jnp.dtype(dtype).name]
    scale = 4 if jnp.dtype(kv_dtype).name in NARROW else 0
    recurrent = _STORED[_recurrent_dtype(dtype).name]
    return (
        KVFormat(k=stored, v=stored, k_scale_bytes=scale, v_scale_bytes=scale),
        StateFormat(conv=own, recurrent=recurrent, dropped_columns=1),
    )


def _recurrent_dtype(dtype: DTypeLike) -> jnp.dtype:
    return jnp.promote_types(dtype, jnp.float32)


def new_state(mixer: Recurrent, num_blocks: int, dtype: DTypeLike) -> StateArrays:
    """Return zeroed states for `num_blocks` sequences in a layer of a model that computes in `dtype`."""
    held = mixer.held
    kept = dtype if held.in_model_dtype else _recurrent_dtype(dtype)
    columns = max(held.conv_kernel - 1, 0)
    return StateArrays(
        conv=jnp.zeros((num_blocks, columns, held.conv_channels), dtype) if held.conv_channels else None,
        recurrent=jnp.zeros((num_blocks, held.recurrent_elements), kept) if held.recurrent_elements else None,
    )


def new_cache(plan: CachePlan, num_blocks: Sequence[int], dtype: DTypeLike, kv_dtype: DTypeLike) -> Cache:
    """Return a zeroed cache with `num_blocks` blocks in each group."""
    return Cache(
        pages=tuple(
            new_pages(attention, num_blocks[group], plan.block_size, kv_dtype, scales="token")
            for attention, group in plan.pages
        ),
        states=tuple(new_state(mixer, num_blocks[plan.state_group], dtype) for mixer in plan.states),
    )


Tables = tuple[Int[Array, "..."], ...]
"""Blocks by group."""


def _by_block(plan: CachePlan, cache: Cache, act: Callable[[Array, int, int], Array]) -> Cache:
    """Return the cache with `act(array, axis of its blocks, its group)` in the place of each array."""
    pages = tuple(
        jax.tree_util.tree_map(lambda leaf, g=group: act(leaf, 1, g), held)
        for held, (_, group) in zip(cache.pages, plan.pages, strict=True)
    )
    states = tuple(
        jax.tree_util.tree_map(lambda leaf: act(leaf, 0, plan.state_group), held) for held in cache.states
    )
    return Cache(pages, states)


@partial(jax.jit, static_argnames="plan", donate_argnames="cache")
def copy_blocks(plan: CachePlan, cache: Cache, sources: Tables, targets: Tables) -> Cache:
    """Return the cache with blocks copied within each group, in place; a negative target copies nothing."""

    def act(leaf: Array, axis: int, group: int) -> Array:
        return _scatter(leaf, axis, targets[group], jnp.take(leaf, sources[group], axis, mode="clip"))

    return _by_block(plan, cache, act)


@partial(jax.jit, static_argnames="plan")
def read_blocks(plan: CachePlan, cache: Cache, blocks: Tables) -> Cache:
    """Return the contents of `blocks` of each group as a cache of just those."""
    return _by_block(plan, cache, lambda leaf, axis, group: jnp.take(leaf, blocks[group], axis, mode="clip"))


@partial(jax.jit, static_argnames="plan", donate_argnames="cache")
def write_blocks(plan: CachePlan, cache: Cache, blocks: Tables, contents: Cache) -> Cache:
    """Return the cache with `contents` written to `blocks`, in place; a negative one is left out."""
    arrays = iter(jax.tree_util.tree_leaves(contents))
    return _by_block(plan, cache, lambda leaf, axis, group: _scatter(leaf, axis, blocks[group], next(arrays)))


def _scatter(leaf: Array, axis: int, targets: Array, rows: Array) -> Array:
    safe = jnp.where(targets < 0, leaf.shape[axis], targets)
    if axis == 0:
        return leaf.at[safe].set(rows, mode="drop")
    return leaf.at[:, safe].set(rows, mode="drop")
