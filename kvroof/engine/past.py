"""What a layer sees of earlier tokens: nothing but the step's own, or a paged cache that it also fills."""

# ruff: noqa: F722 - shapes are strings
from __future__ import annotations

from typing import NamedTuple, Protocol, cast, runtime_checkable

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from kvroof.engine.cache import Cache, CachePlan, StateArrays, Tables, new_state
from kvroof.engine.paged_attention import paged_attention
from kvroof.engine.pages import Pages, write_pages
from kvroof.engine.rotary import Rotary
from kvroof.engine.visible import first_visible, query_positions, visible
from kvroof.spec.attention import Execution
from kvroof.spec.reach import AnyReach
from kvroof.spec.recurrent import Recurrent


class Entry(NamedTuple):
    """What a layer stores of the step's tokens; without `v` the values are the keys, before any `rope`."""

    k: Float[Array, "num_seqs query_len num_kv_heads k_dim"]
    v: Float[Array, "num_seqs query_len num_kv_heads v_dim"] | None = None
    rope: Float[Array, "num_seqs query_len num_kv_heads rope_dim"] | None = None


@runtime_checkable
class Past(Protocol):
    """How layers reach earlier tokens. A `place` is the layer's index in the plan's pages or states."""

    positions: Int[Array, "num_seqs query_len"]
    real: Bool[Array, "num_seqs query_len"]
    query_lens: Int[Array, " num_seqs"]
    rotary: Rotary

    @property
    def execution(self) -> Execution:
        """The form in which latent attention is stored and scored."""
        ...

    def attend(
        self,
        place: int,
        reach: AnyReach,
        queries: Float[Array, "num_seqs query_len num_heads qk_dim"],
        entry: Entry | None,
        scale: float,
        sinks: Float[Array, " num_heads"] | None,
    ) -> Float[Array, "num_seqs query_len num_heads v_dim"]:
        """Return the queries' attention; the `entry` of their own tokens is stored first.

        Without an entry the layer reads what an earlier one stored at the same place.
        """
        ...

    def recall(self, place: int) -> StateArrays:
        """Return each sequence's state in a recurrent layer, zero at its start."""
        ...

    def keep(self, place: int, state: StateArrays) -> None:
        """Store each sequence's new state."""
        ...


class NoPast:
    """Sequences run whole, without a cache: keys and values live as long as the step."""

    execution: Execution = "expanded"

    def __init__(
        self, states: tuple[Recurrent, ...], lens: Int[Array, " num_seqs"], query_len: int, dtype: DTypeLike
    ) -> None:
        self._states, self._dtype = states, dtype
        self._entries: dict[int, Entry] = {}
        self.query_lens = lens
        self.positions = jnp.broadcast_to(jnp.arange(query_len, dtype=lens.dtype), (lens.shape[0], query_len))
        self.real = self.positions < lens[:, None]
        self.rotary = Rotary(self.positions)

    def attend(
        self,
        place: int,
        reach: AnyReach,
        queries: Float[Array, "num_seqs query_len num_heads qk_dim"],
        entry: Entry | None,
        scale: float,
        sinks: Float[Array, " num_heads"] | None,
    ) -> Float[Array, "num_seqs query_len num_heads v_dim"]:
        """Return the attention of every token over those before it in its own row."""
        if entry is not None:
            self._entries[place] = entry
        keys, values, _ = self._entries[place]
        assert values is not None
        exact = jnp.promote_types(queries.dtype, jnp.float32)
        group = queries.shape[2] // keys.shape[2]
        keys, values = (jnp.repeat(rows, group, axis=2).astype(exact) for rows in (keys, values))
        scores = jnp.einsum("sqhd,sthd->shqt", queries.astype(exact), keys, precision="highest") * scale
        tokens = jnp.arange(queries.shape[1], dtype=self.query_lens.dtype)
        seen = visible(reach, self.positions, tokens, self.query_lens, self.query_lens)
        scores = jnp.where(seen[:, None], scores, -1e30)
        if sinks is not None:
            sink = jnp.broadcast_to(sinks.astype(exact)[:, None, None], (*scores.shape[:3], 1))
            scores = jnp.concatenate([scores, sink], axis=-1)
        shares = jax.nn.softmax(scores, axis=-1)[..., : tokens.shape[0]]
        return jnp.einsum("shqt,sthv->sqhv", shares, values, precision="highest").astype(queries.dtype)

    def recall(self, place: int) -> StateArrays:
        """Return zeros: every sequence is at its start."""
        return new_state(self._states[place], self.query_lens.shape[0], self._dtype)

    def keep(self, place: int, state: StateArrays) -> None:
        """Forget the state: nothing comes after."""


class _Way(NamedTuple):
    """How a step's tokens reach the layers of one group.

    They are written to `slots` (-1: not at all) and read through `table`. Where a `copy` of those blocks is
    read in place of the pages, its own slots for the step's tokens are `copy_slots`.
    """

    slots: Int[Array, "num_seqs query_len"]
    table: Int[Array, "num_seqs max_blocks"]
    copy: Int[Array, " blocks"] | None = None
    copy_slots: Int[Array, "num_seqs query_len"] | None = None


class PagedPast:
    """A cache in blocks: the step's tokens are written to it, then all are read through the block tables."""

    execution: Execution = "absorbed"

    def __init__(
        self,
        plan: CachePlan,
        cache: Cache,
        tables: Tables,
        query_lens: Int[Array, " num_seqs"],
        kv_lens: Int[Array, " num_seqs"],
        query_len: int,
    ) -> None:
        self._plan, self._tables, self._kv_lens = plan, tables, kv_lens
        self._pages, self._states = list(cache.pages), list(cache.states)
        self._views: dict[int, tuple[Pages, Array]] = {}
        self._ways: dict[int, _Way] = {}
        self.query_lens = query_lens
        self.positions = query_positions(query_len, kv_lens, query_lens)
        self.real = jnp.arange(query_len, dtype=query_lens.dtype) < query_lens[:, None]
        self.rotary = Rotary(self.positions)

    @property
    def cache(self) -> Cache:
        """The cache with everything the step stored."""
        return Cache(tuple(self._pages), tuple(self._states))

    def attend(
        self,
        place: int,
        reach: AnyReach,
        queries: Float[Array, "num_seqs query_len num_heads qk_dim"],
        entry: Entry | None,
        scale: float,
        sinks: Float[Array, " num_heads"] | None,
    ) -> Float[Array, "num_seqs query_len num_heads v_dim"]:
        """Return the queries' attention over the pages, which hold the `entry` by then."""
        if entry is not None:
            self._views[place] = self._store(place, entry)
        pages, table = self._views[place]
        return paged_attention(
            queries,
            pages,
            table,
            self._kv_lens,
            scale=scale,
            reach=reach,
            query_lens=self.query_lens,
            sinks=sinks,
        )

    def _store(self, place: int, entry: Entry) -> tuple[Pages, Array]:
        """Write the step's tokens; return the pages and the table through which they are read."""
        number = self._plan.pages[place][1]
        if number not in self._ways:
            self._ways[number] = self._way(number)
        way, pages = self._ways[number], self._pages[place]
        self._pages[place] = _written(pages, way.slots, entry)
        blocks, slots = way.copy, way.copy_slots
        if blocks is None or slots is None:
            return self._pages[place], way.table
        copied = jax.tree_util.tree_map(lambda leaf: jnp.take(leaf, blocks, 1, mode="clip"), pages)
        return _written(copied, slots, entry), way.table

    def _way(self, number: int) -> _Way:
        """Return the way of a group.

        A ring has room for what later queries see, not for all that a long chunk's queries see. Such a
        chunk is scored over a copy of the ring's window with the chunk behind it, which lives as long as
        the step, and only its last tokens enter the ring.
        """
        group, table = self._plan.groups[number], self._tables[number]
        size, query_len = group.block_size, self.positions.shape[1]
        if group.ring is None or group.reach is None:
            return _Way(jnp.where(self.real, _slots(table, self.positions, size), -1), table)
        room, window = group.ring * size, group.reach.window or 0
        entries = jnp.arange(self._tables[0].shape[1], dtype=table.dtype)
        logical = table[:, entries % group.ring]
        last = self.real & (self.positions >= self._kv_lens[:, None] - room)
        slots = jnp.where(last, _slots(logical, self.positions, size), -1)
        if query_len <= room - window + 1:
            return _Way(slots, logical)
        span = (window + query_len - 2) // size + 2
        first = first_visible(group.reach, self.positions[:, 0]) // size
        wanted = first[:, None] + jnp.arange(span, dtype=table.dtype)
        copy = jnp.take_along_axis(logical, jnp.minimum(wanted, entries[-1]), axis=1).reshape(-1)
        own = jnp.arange(table.shape[0], dtype=table.dtype)[:, None] * span
        behind = entries - first[:, None]
        spread = jnp.where((behind >= 0) & (behind < span), own + behind, -1)
        copy_slots = jnp.where(self.real, _slots(spread, self.positions, size), -1)
        return _Way(slots, spread, copy, copy_slots)

    def recall(self, place: int) -> StateArrays:
        """Return each sequence's state; a sequence's first step starts from zero, whatever its block held."""
        blocks = self._tables[self._plan.state_group][:, 0]
        started = self._kv_lens > self.query_lens

        def found(leaf: Array) -> Array:
            rows = jnp.take(leaf, blocks, 0, mode="clip")
            return jnp.where(started.reshape(-1, *[1] * (rows.ndim - 1)), rows, 0)

        return cast(StateArrays, jax.tree_util.tree_map(found, self._states[place]))

    def keep(self, place: int, state: StateArrays) -> None:
        """Write each sequence's state to its block; empty rows of the batch write nothing."""
        blocks = self._tables[self._plan.state_group][:, 0]

        def put(leaf: Array, rows: Array) -> Array:
            target = jnp.where(self.query_lens > 0, blocks, leaf.shape[0])
            return leaf.at[target].set(rows.astype(leaf.dtype), mode="drop")

        self._states[place] = jax.tree_util.tree_map(put, self._states[place], state)


def _slots(table: Array, positions: Array, block_size: int) -> Int[Array, "num_seqs query_len"]:
    """Return the slot of each position; what lies beyond the table has none."""
    entry = positions // block_size
    found = jnp.take_along_axis(table, jnp.minimum(entry, table.shape[1] - 1), axis=1)
    slot = found * block_size + positions % block_size
    return jnp.where((entry < table.shape[1]) & (found >= 0), slot, -1)


def _written(pages: Pages, slots: Array, entry: Entry) -> Pages:
    """Return the pages with the tokens of `entry` written to their slots."""
    rows = [None if part is None else part.reshape(-1, *part.shape[2:]) for part in entry]
    assert rows[0] is not None
    return write_pages(pages, slots.reshape(-1), rows[0], rows[1], rows[2])
