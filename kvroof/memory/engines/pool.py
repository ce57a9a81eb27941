"""What engines have in common: a pool of equal blocks, and how many of them a request takes."""

from __future__ import annotations

from kvroof.ground.numeric import ceil_div
from kvroof.ground.record import record, static
from kvroof.spec.reach import AnyReach, Full, Sliding


@record
class EngineOptions:
    """An engine's flags that decide what it allocates, with the engine's own defaults.

    `state_bytes_per_element` None takes the engine's choice for the model. `spec_tokens` are drafted
    tokens per step, which lengthen a convolution and multiply a state's pages.
    """

    block_size: int = 16
    max_model_len: int | None = None
    max_num_batched_tokens: int = 2048
    batches_in_flight: int = 1
    prefix_caching: bool = static(default=True)
    spec_tokens: int = 0
    tp: int = 1
    dcp: int = 1


@record
class PageGroup:
    """Layers of one kind that share a block table: each block holds `block_size` tokens of all of them.

    A state's group has `reach` None: its pages hold a whole state, whatever the length.
    """

    kind: str = static()
    layers: int
    block_size: int
    reach: AnyReach | None

    def blocks(self, tokens: int, options: EngineOptions) -> int:
        """Return the blocks that one request of `tokens` holds at most.

        Source: vLLM's `max_memory_usage_bytes` of its cache specs: a window needs its own tokens and
        those of the batches in flight, and one block more for where they begin.
        """
        if self.reach is None:
            return (2 if options.prefix_caching else 1) + options.spec_tokens
        if isinstance(self.reach, Full) or self.reach.window is None:
            return ceil_div(self.reach.kept(tokens), self.block_size)
        ahead = options.max_num_batched_tokens * options.batches_in_flight
        reached = min(self.reach.window - 1 + ahead, tokens)
        spare = 1 if isinstance(self.reach, Sliding) else 0
        return min(ceil_div(reached, self.block_size) + spare, ceil_div(tokens, self.block_size) + spare)


@record
class Pool:
    """A pool of blocks of `block_bytes` on one rank, which all groups draw from."""

    groups: tuple[PageGroup, ...]
    block_bytes: int
    options: EngineOptions
    padding_layers: int = 0
    padded_bytes: int = 0

    def request_blocks(self, tokens: int) -> int:
        """Return the blocks that one request of `tokens` takes over all groups."""
        return sum(group.blocks(tokens, self.options) for group in self.groups)

    def request_bytes(self, tokens: int) -> int:
        """Return the bytes that one request of `tokens` takes."""
        return self.request_blocks(tokens) * self.block_bytes

    def num_blocks(self, available_bytes: int) -> int:
        """Return the blocks that fit into `available_bytes`."""
        return max(available_bytes, 0) // self.block_bytes
