"""Exact-prefix reuse: which blocks of a new prompt are in the cache already.

A block can be reused where the model's weights, the adapter, and every token from the first position on are
the same: a changed token invalidates all that comes after it and nothing before it, and what only means
the same shares nothing. So the tree has a root per model and adapter, and an edge per block, labelled by
the block's token ids (or by the opaque name that a trace gives them); the position is the depth. Only full
blocks are in it.

The tree holds its blocks beside the sequences that use them. One that no sequence uses stays until the pool
runs out of blocks: then the one unused longest goes, always a leaf, since a sequence that holds a block
holds the blocks before it and lets go of them later.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from kvroof.ground.record import record, static
from kvroof.memory.blocks import Blocks


@record
class Scope:
    """What must be the same besides tokens and positions: a fingerprint of the weights, and the adapter."""

    model: str = static(default="")
    adapter: str | None = static(default=None)


class Node:
    """A cached block in its place: the blocks before it are those of its ancestors. A root has no block."""

    __slots__ = ("block", "children", "key", "parent")

    def __init__(self, parent: Node | None = None, key: Hashable = None, block: int = -1) -> None:
        self.parent, self.key, self.block = parent, key, block
        self.children: dict[Hashable, Node] = {}


class PrefixTree:
    """The prefix tree of a pool of blocks.

    Args:
        blocks: The pool; it has one tree.

    Raises:
        BlockMisuse: The pool has a tree already.
    """

    __slots__ = ("_blocks", "_nodes", "_roots", "evictions", "hit_tokens", "requested_tokens")

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self._roots: dict[Scope, Node] = {}
        self._nodes: dict[int, Node] = {}
        self.requested_tokens, self.hit_tokens, self.evictions = 0, 0, 0
        blocks.tell_evictions(self._evict)

    @property
    def cached_blocks(self) -> int:
        """Blocks in the tree, whether sequences use them or not."""
        return len(self._nodes)

    @property
    def hit_rate(self) -> float:
        """Share of the requested tokens that were found, 0 before anything was requested."""
        return self.hit_tokens / self.requested_tokens if self.requested_tokens else 0.0

    def root(self, scope: Scope) -> Node:
        """Return where prompts of `scope` begin."""
        node = self._roots.get(scope)
        if node is None:
            node = self._roots[scope] = Node()
        return node

    def match(self, scope: Scope, keys: Sequence[Hashable]) -> list[Node]:
        """Return the nodes of the longest cached run of leading `keys`; nothing is held or counted."""
        found: list[Node] = []
        node = self._roots.get(scope)
        if node is None:
            return found
        for key in keys:
            node = node.children.get(key)
            if node is None:
                break
            found.append(node)
        return found

    def extend(self, node: Node, key: Hashable, seq: int, index: int) -> Node:
        """Return the node below `node` for logical block `index` of `seq`, which has just been filled.

        Where an equal block is cached already, `seq` takes that one and its own is let go: its block
        table changes. `seq` holds the blocks of `node` and its ancestors, as its first `index` ones.

        Args:
            node: The place of the block before, or a root.
            key: The token ids of the block, or their name.
            seq: The sequence that holds the block.
            index: Its logical number.
        """
        known = node.children.get(key)
        if known is not None:
            self._blocks.share(seq, index, known.block)
            return known
        block = self._blocks.keep(seq, index)
        made = node.children[key] = self._nodes[block] = Node(node, key, block)
        return made

    def count(self, requested_tokens: int, hit_tokens: int) -> None:
        """Add one look-up to the figures: the tokens it asked for, and those it found."""
        self.requested_tokens += requested_tokens
        self.hit_tokens += hit_tokens

    def _evict(self, block: int) -> None:
        node = self._nodes.pop(block)
        assert node.parent is not None
        assert not node.children
        del node.parent.children[node.key]
        self.evictions += 1


def block_keys(token_ids: Sequence[int], block_size: int) -> tuple[tuple[int, ...], ...]:
    """Return the token ids of each full block: equal keys mean equal tokens, not only equal hashes."""
    full = len(token_ids) // block_size
    return tuple(tuple(token_ids[i * block_size : (i + 1) * block_size]) for i in range(full))
