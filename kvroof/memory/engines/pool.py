"""A pool of equal blocks that groups of layers draw from, and how many of them a request takes."""

from __future__ import annotations

from kvroof.ground.numeric import ceil_div
from kvroof.ground.record import record, static
from kvroof.memory.demand import Demand
from kvroof.memory.engines.engine import Held, cached_tokens, is_cross
from kvroof.spec.reach import AnyReach, Chunked, Full, Sliding


@record
class PageGroup:
    """Layers of one kind that share a block table: each block holds `block_size` tokens of all of them.

    A state's group has no `reach`: each sequence holds `state_pages`, whatever its length. A window is
    charged with `ahead` tokens of a running prefill. Ranks of decode context parallelism (`dcp`) divide
    the tokens of full attention.
    """

    kind: str = static()
    layers: int
    block_size: int
    reach: AnyReach | None
    state_pages: int = 0
    ahead: int = 0
    dcp: int = 1

    def blocks(self, tokens: int) -> int:
        """Return the blocks that one request of `tokens` holds at most.

        A window: `ceil(min(W - 1 + M, L) / block) + 1`, the last for where the window begins in a block.
        A chunk begins with a block: `ceil(min(C + M, L) / block)`.

        Source: vLLM's `max_memory_usage_bytes` of its cache specs.
        """
        if self.reach is None:
            return self.state_pages
        if isinstance(self.reach, Sliding):
            reached = min(self.reach.size - 1 + self.ahead, tokens)
            return ceil_div(reached, self.block_size) + (1 if tokens else 0)
        if isinstance(self.reach, Chunked):
            return ceil_div(min(self.reach.size + self.ahead, tokens), self.block_size)
        return ceil_div(ceil_div(tokens, self.dcp), self.block_size)

    def blocks_for(self, demand: Demand) -> int:
        """Return the blocks of all sequences; of a shared prefix, full attention stores whole blocks once."""
        lengths = cached_tokens(demand, is_cross(self.reach))
        own = sum(self.blocks(tokens) * count for tokens, count in lengths)
        if not isinstance(self.reach, Full):
            return own
        return own - demand.shared_prefix // self.dcp // self.block_size * (demand.seqs - 1)


@record
class Pool:
    """A pool of blocks of `block_bytes` on one rank, which all groups draw from.

    `padding_layers` fill up the last group of each kind; `padded_bytes` fill up a state's page.
    """

    groups: tuple[PageGroup, ...]
    block_bytes: int
    padding_layers: int = 0
    padded_bytes: int = 0
    state_bytes: int = 0

    @property
    def block_size(self) -> int:
        """Tokens in the smallest block of a group."""
        return min(group.block_size for group in self.groups)

    def request_blocks(self, tokens: int) -> int:
        """Return the blocks that one request of `tokens` takes over all groups."""
        return sum(group.blocks(tokens) for group in self.groups)

    def num_blocks(self, available_bytes: int) -> int:
        """Return the blocks that fit into `available_bytes`."""
        return max(available_bytes, 0) // self.block_bytes

    def hold(self, demand: Demand) -> Held:
        """Return what the sequences of `demand` take."""
        blocks = sum(group.blocks_for(demand) for group in self.groups)
        growing = [group for group in self.groups if group.reach is not None and not is_cross(group.reach)]
        whole = [group for group in growing if isinstance(group.reach, Full)] or growing
        slots = used = 0
        for group in whole[:1]:
            slots = group.blocks_for(demand) * group.block_size * group.dcp
            kept = group.reach.kept if group.reach is not None else int
            used = min(slots, sum(kept(n) * count for n, count in demand.lengths))
            if isinstance(group.reach, Full):
                used = demand.tokens
        return Held(held_bytes=blocks * self.block_bytes, blocks=blocks, slots=max(slots, used), used=used)
