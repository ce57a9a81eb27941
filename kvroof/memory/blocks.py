"""The blocks of a paged KV cache: which physical block holds each logical block of a sequence.

Only numbers are kept here. Whoever owns the bytes carries out the copies that an operation returns, in
their order and before anything is written. A block is written by one sequence only: a shared last block
is copied before it is appended to. Out of blocks is an answer (None, and nothing has changed), since the
schedule decides what follows; freeing twice is a mistake and raises.

A prefix tree may keep a full block after every sequence has let go of it. Such a block is idle: it counts
as free, and the one that has been idle longest is taken back when no other block is left.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from kvroof.ground.errors import BadInput, KvroofError
from kvroof.ground.numeric import ceil_div

HOLE = -1
"""Stands in a block table for a block that was dropped because no query sees it any more."""


class BlockMisuse(KvroofError):
    """A call that only a mistake can make: a sequence freed twice, or started twice."""


class Copy(NamedTuple):
    """One block to copy: all its slots, from block `src` to block `dst`."""

    src: int
    dst: int


class _Table:
    """One sequence: its blocks in logical order, its tokens, and where its blocks are."""

    __slots__ = ("blocks", "dropped", "swapped", "tokens")

    def __init__(self, blocks: list[int], tokens: int, dropped: int = 0) -> None:
        self.blocks, self.tokens, self.dropped, self.swapped = blocks, tokens, dropped, False


class Blocks:
    """A pool of `num_blocks` blocks of `block_size` tokens, and the block tables of its sequences.

    Args:
        num_blocks: Blocks on the device.
        block_size: Tokens in a block.
        host_blocks: Blocks in host memory that sequences can be swapped out to.
        order: The order in which fresh blocks are handed out; each of them once. None counts up from 0.

    Raises:
        BadInput: A size that is not positive, or an order that is not one.
    """

    __slots__ = (
        "_evicted",
        "_free",
        "_host_free",
        "_idle",
        "_kept",
        "_refs",
        "_tables",
        "block_size",
        "host_blocks",
        "num_blocks",
    )

    def __init__(
        self,
        num_blocks: int,
        block_size: int = 16,
        *,
        host_blocks: int = 0,
        order: Iterable[int] | None = None,
    ) -> None:
        if num_blocks < 1 or block_size < 1 or host_blocks < 0:
            raise BadInput(
                f"{num_blocks} blocks of {block_size} tokens, {host_blocks} on the host", where="blocks"
            )
        fresh = list(range(num_blocks) if order is None else order)
        if order is not None and sorted(fresh) != list(range(num_blocks)):
            raise BadInput(f"the order does not name {num_blocks} blocks once each", where="blocks")
        self.num_blocks, self.block_size, self.host_blocks = num_blocks, block_size, host_blocks
        self._free = fresh[::-1]
        self._host_free = list(range(host_blocks))[::-1]
        self._refs = [0] * num_blocks
        self._tables: dict[int, _Table] = {}
        self._kept: set[int] = set()
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._evicted: Callable[[int], None] | None = None

    @property
    def free_blocks(self) -> int:
        """Blocks that can be handed out: unused ones, and kept ones that no sequence holds."""
        return len(self._free) + len(self._idle)

    @property
    def used_blocks(self) -> int:
        """Blocks that sequences hold, a shared one once."""
        return self.num_blocks - self.free_blocks

    @property
    def idle_blocks(self) -> int:
        """Blocks that only the prefix tree keeps."""
        return len(self._idle)

    @property
    def host_free_blocks(self) -> int:
        """Host blocks that nobody holds."""
        return len(self._host_free)

    @property
    def sequences(self) -> tuple[int, ...]:
        """The sequences that have a block table, in the order they started."""
        return tuple(self._tables)

    def tokens(self, seq: int) -> int:
        """Return the tokens that `seq` has slots for."""
        return self._table(seq).tokens

    def block_table(self, seq: int) -> tuple[int, ...]:
        """Return the physical block of each logical block of `seq`; `HOLE` where one was dropped.

        The numbers are host blocks while `seq` is swapped out.
        """
        return tuple(self._table(seq).blocks)

    def held_blocks(self, seq: int) -> int:
        """Return how many blocks `seq` holds, dropped ones left out, on the device or on the host."""
        table = self._table(seq)
        return len(table.blocks) - table.dropped

    def references(self, block: int) -> int:
        """Return how many hold `block`: sequences, and the prefix tree."""
        return self._refs[block]

    def is_idle(self, block: int) -> bool:
        """Return whether only the prefix tree keeps `block`."""
        return block in self._idle

    def is_swapped(self, seq: int) -> bool:
        """Return whether the blocks of `seq` are on the host."""
        return self._table(seq).swapped

    def blocks_for(self, tokens: int) -> int:
        """Return the blocks that `tokens` take."""
        return ceil_div(tokens, self.block_size)

    def needed(self, seq: int, tokens: int) -> int:
        """Return the free blocks that appending `tokens` to `seq` takes, with the copy of a shared tail."""
        table = self._table(seq)
        new = -(-(table.tokens + tokens) // self.block_size) - len(table.blocks)
        return new + self._copies_tail(table) if tokens else 0

    def start(self, seq: int, shared: Sequence[int] = (), *, holes: int = 0) -> None:
        """Begin a sequence whose first tokens are those of the full blocks `shared`.

        Args:
            seq: Its number.
            shared: Blocks that somebody holds; they are held once more.
            holes: Blocks before these that no query will see, so that they are not there.

        Raises:
            BlockMisuse: `seq` has a block table already, or a shared block is not in use.
        """
        if seq in self._tables:
            raise BlockMisuse("started twice", where=f"sequence {seq}")
        for block in shared:
            if not self._refs[block]:
                raise BlockMisuse("shared, but nobody holds it", where=f"block {block}")
        for block in shared:
            self._hold(block)
        held = [HOLE] * holes + list(shared)
        self._tables[seq] = _Table(held, len(held) * self.block_size, holes)

    def append(self, seq: int, tokens: int) -> tuple[Copy, ...] | None:
        """Give `seq` slots for `tokens` more; return the copies to make first, or None for want of blocks.

        Raises:
            BlockMisuse: `seq` is unknown or swapped out.
        """
        table = self._resident(seq)
        if not tokens:
            return ()
        new = -(-(table.tokens + tokens) // self.block_size) - len(table.blocks)
        copying = self._copies_tail(table)
        if new + copying > len(self._free) + len(self._idle):
            return None
        copies: tuple[Copy, ...] = ()
        if copying:
            shared = table.blocks[-1]
            table.blocks[-1] = self._take()
            self._let_go(shared)
            copies = (Copy(shared, table.blocks[-1]),)
        for _ in range(new):
            table.blocks.append(self._take())
        table.tokens += tokens
        return copies

    def fill(self, seq: int, tokens: int) -> bool:
        """Append where that only fills the last block, which nobody shares; return whether it did.

        Raises:
            BlockMisuse: `seq` is unknown or swapped out.
        """
        table = self._tables.get(seq)
        if table is None or table.swapped:
            self._resident(seq)
        assert table is not None
        used = table.tokens % self.block_size
        if not used or used + tokens > self.block_size or self._refs[table.blocks[-1]] > 1:
            return False
        table.tokens += tokens
        return True

    def fork(self, parent: int, child: int) -> None:
        """Begin `child` as a copy of `parent`: every block is shared, none is copied yet.

        Raises:
            BlockMisuse: `parent` is unknown or swapped out, or `child` has started.
        """
        table = self._resident(parent)
        if child in self._tables:
            raise BlockMisuse("started twice", where=f"sequence {child}")
        for block in table.blocks[table.dropped :]:
            self._hold(block)
        self._tables[child] = _Table(list(table.blocks), table.tokens, table.dropped)

    def free(self, seq: int) -> None:
        """Let go of all blocks of `seq`, the last first, wherever they are.

        Raises:
            BlockMisuse: `seq` is unknown, so freed already.
        """
        table = self._table(seq)
        del self._tables[seq]
        held = table.blocks[table.dropped :]
        if table.swapped:
            self._host_free.extend(reversed(held))
        else:
            for block in reversed(held):
                self._let_go(block)

    def shrink(self, seq: int, tokens: int) -> None:
        """Take the last tokens of `seq` back so that `tokens` are left, and let go of blocks left empty.

        Raises:
            BlockMisuse: `seq` is unknown or swapped out, or has not that many, or they were dropped.
        """
        table = self._resident(seq)
        if not table.dropped * self.block_size <= tokens <= table.tokens:
            raise BlockMisuse(f"{tokens} of its {table.tokens} tokens", where=f"sequence {seq}")
        table.tokens = tokens
        while len(table.blocks) > self.blocks_for(tokens):
            self._let_go(table.blocks.pop())

    def drop_before(self, seq: int, position: int) -> int:
        """Let go of the blocks of `seq` that lie wholly before `position`; return how many that were.

        The table keeps a `HOLE` in each place, so that logical blocks stay where they are.

        Raises:
            BlockMisuse: `seq` is unknown or swapped out, or has not that many tokens.
        """
        table = self._resident(seq)
        if position > table.tokens:
            raise BlockMisuse(f"position {position} of {table.tokens}", where=f"sequence {seq}")
        first, last = table.dropped, max(position, 0) // self.block_size
        if last <= first:
            return 0
        for index in range(last - 1, first - 1, -1):
            self._let_go(table.blocks[index])
            table.blocks[index] = HOLE
        table.dropped = last
        return last - first

    def swap_out(self, seq: int) -> tuple[Copy, ...] | None:
        """Move `seq` to the host; return the copies from device to host blocks, None if it has no room.

        Shared blocks are copied like the others: what sharing saved is lost until the sequence ends.

        Raises:
            BlockMisuse: `seq` is unknown or swapped out already.
        """
        table = self._resident(seq)
        held = table.blocks[table.dropped :]
        if len(held) > len(self._host_free):
            return None
        copies = tuple(Copy(block, self._host_free.pop()) for block in held)
        for block in reversed(held):
            self._let_go(block)
        table.blocks[table.dropped :] = [copy.dst for copy in copies]
        table.swapped = True
        return copies

    def swap_in(self, seq: int) -> tuple[Copy, ...] | None:
        """Move `seq` back; return the copies from host to device blocks, None for want of blocks.

        Raises:
            BlockMisuse: `seq` is unknown or not swapped out.
        """
        table = self._table(seq)
        if not table.swapped:
            raise BlockMisuse("is not swapped out", where=f"sequence {seq}")
        held = table.blocks[table.dropped :]
        if len(held) > self.free_blocks:
            return None
        copies = tuple(Copy(block, self._take()) for block in held)
        self._host_free.extend(reversed(held))
        table.blocks[table.dropped :] = [copy.dst for copy in copies]
        table.swapped = False
        return copies

    def keep(self, seq: int, index: int) -> int:
        """Hold logical block `index` of `seq` for the prefix tree as well; return which block that is.

        Raises:
            BlockMisuse: `seq` is unknown or swapped out, has no such full block, or the tree holds it.
        """
        table = self._resident(seq)
        self._check_full(seq, table, index)
        block = table.blocks[index]
        if block in self._kept:
            raise BlockMisuse("is kept already", where=f"block {block}")
        self._kept.add(block)
        self._refs[block] += 1
        return block

    def share(self, seq: int, index: int, block: int) -> None:
        """Put `block`, which holds the same tokens, in place of logical block `index` of `seq`.

        Raises:
            BlockMisuse: `seq` is unknown or swapped out, has no such full block, or nobody holds `block`.
        """
        table = self._resident(seq)
        self._check_full(seq, table, index)
        if not self._refs[block]:
            raise BlockMisuse("shared, but nobody holds it", where=f"block {block}")
        self._hold(block)
        self._let_go(table.blocks[index])
        table.blocks[index] = block

    def tell_evictions(self, listener: Callable[[int], None]) -> None:
        """Call `listener` with each kept block that is taken back.

        Raises:
            BlockMisuse: Somebody listens already.
        """
        if self._evicted is not None:
            raise BlockMisuse("one prefix tree keeps blocks already", where="blocks")
        self._evicted = listener

    def _table(self, seq: int) -> _Table:
        try:
            return self._tables[seq]
        except KeyError:
            raise BlockMisuse("has no blocks: never started, or freed", where=f"sequence {seq}") from None

    def _resident(self, seq: int) -> _Table:
        table = self._table(seq)
        if table.swapped:
            raise BlockMisuse("is swapped out", where=f"sequence {seq}")
        return table

    def _check_full(self, seq: int, table: _Table, index: int) -> None:
        if not table.dropped <= index < table.tokens // self.block_size:
            raise BlockMisuse(f"has no full block {index}", where=f"sequence {seq}")

    def _copies_tail(self, table: _Table) -> bool:
        return table.tokens % self.block_size != 0 and self._refs[table.blocks[-1]] > 1

    def _hold(self, block: int) -> None:
        self._refs[block] += 1
        self._idle.pop(block, None)

    def _let_go(self, block: int) -> None:
        left = self._refs[block] = self._refs[block] - 1
        if not left:
            self._free.append(block)
        elif left == 1 and block in self._kept:
            self._idle[block] = None

    def _take(self) -> int:
        """Return a block that nobody holds; the caller has made sure that there is one."""
        if self._free:
            block = self._free.pop()
        else:
            block, _ = self._idle.popitem(last=False)
            self._kept.remove(block)
            assert self._evicted is not None
            self._evicted(block)
        self._refs[block] = 1
        return block
