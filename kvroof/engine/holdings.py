"""Blocks of windowed layers and of states: each sequence has its own, and prefixes have snapshots.

A window and a state are rewritten as a sequence goes on, so a block of them cannot be shared with one that
starts from an earlier token. What a prefix leaves there is kept as a copy, a snapshot, taken while the
prompt runs. A cached prefix of a model with such layers is found only where it has one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence

from kvroof.engine.cache import CachePlan
from kvroof.memory.blocks import Blocks
from kvroof.memory.prefix_tree import Node, PrefixTree, Scope


class Holdings:
    """The pools of every group but the first, large enough for `places` sequences or snapshots."""

    def __init__(self, plan: CachePlan, places: int) -> None:
        self._groups = plan.groups[1:]
        self.num_blocks = tuple((group.ring or 1) * places for group in self._groups)
        self._pools = [Blocks(count, 1) for count in self.num_blocks]

    @property
    def used_blocks(self) -> tuple[int, ...]:
        """Blocks that sequences hold in each group, snapshots left out."""
        return tuple(
            sum(len(pool.block_table(seq)) for seq in pool.sequences if seq >= 0) for pool in self._pools
        )

    def start(self, seq: int) -> None:
        """Begin a sequence, or a snapshot, with nothing."""
        for pool in self._pools:
            pool.start(seq)

    def grow(self, seq: int, tokens: int) -> None:
        """Give `seq` the blocks that `tokens` cached tokens take."""
        for group, pool in zip(self._groups, self._pools, strict=True):
            copies = pool.append(seq, group.blocks(tokens) - pool.tokens(seq))
            assert copies == ()

    def free(self, seq: int) -> None:
        """Let go of all blocks of `seq`."""
        for pool in self._pools:
            pool.free(seq)

    def tables(self, seq: int) -> tuple[tuple[int, ...], ...]:
        """Return the blocks of `seq` in each group."""
        return tuple(pool.block_table(seq) for pool in self._pools)


class SnapshotTree(PrefixTree):
    """A prefix tree that finds a prefix only where its window and its state were kept.

    Snapshots are numbered from -1 down; the one unused longest makes room for the next.
    """

    __slots__ = ("_free", "_holdings", "_kept")

    def __init__(self, blocks: Blocks, holdings: Holdings, snapshots: int) -> None:
        super().__init__(blocks)
        self._holdings = holdings
        self._free = [-1 - number for number in range(snapshots)]
        self._kept: OrderedDict[Node, int] = OrderedDict()

    def match(self, scope: Scope, keys: Sequence[Hashable]) -> list[Node]:
        """Return the nodes of the longest cached run of leading `keys` that ends at a snapshot."""
        found = super().match(scope, keys)
        while found and found[-1] not in self._kept:
            found.pop()
        return found

    def snapshot(self, node: Node) -> int:
        """Return the number of the node's snapshot."""
        self._kept.move_to_end(node)
        return self._kept[node]

    def reserve(self, tokens: int) -> int | None:
        """Return a snapshot with blocks for what `tokens` tokens leave, None where all are being made."""
        if not self._free and not self._kept:
            return None
        if not self._free:
            _, oldest = self._kept.popitem(last=False)
            self.discard(oldest)
        number = self._free.pop()
        self._holdings.start(number)
        self._holdings.grow(number, tokens)
        return number

    def attach(self, scope: Scope, keys: Sequence[Hashable], number: int) -> None:
        """Keep a snapshot for the prefix that `keys` name, unless it has one or is not cached."""
        found = super().match(scope, keys)
        if len(found) < len(keys) or found[-1] in self._kept:
            self.discard(number)
        else:
            self._kept[found[-1]] = number

    def discard(self, number: int) -> None:
        """Let go of a snapshot."""
        self._holdings.free(number)
        self._free.append(number)

    def _evict(self, block: int) -> None:
        number = self._kept.pop(self._nodes[block], None)
        super()._evict(block)
        if number is not None:
            self.discard(number)
