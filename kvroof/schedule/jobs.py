"""A request as the schedule sees it: what is known of it, what is computed, what is still to come."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from kvroof.memory.prefix_tree import Node, Scope


class Job:
    """One request in a scheduler.

    Its prompt and the tokens sampled since are `known`; the KV of the first `computed` is in the cache.
    Decoding means that one known token is not computed: the one sampled last.

    Attributes:
        request: Its number.
        prompt: Prompt tokens.
        output: Tokens to generate in all.
        known: Tokens known: the prompt and what was sampled.
        most_tokens: Tokens in the cache at the end: the last sampled one is never run.
        computed: Tokens whose KV is in the cache.
        keys: Names of the prompt's full blocks, for the prefix tree. A runner may add those of blocks
            that it has filled since.
        scope: What else must be the same for a block to be reused.
        cached: Tokens found in the cache when it was first admitted.
        preemptions: How often it lost its place.
        arriving: Whether its KV comes from elsewhere and has not arrived.
        swapped: Whether its KV is on the host.
        secured: Blocks of its table that it was admitted with: held, promised, or dropped since.
        most: Blocks that it holds at most while it fills those.
        promise: Free blocks that nobody else gets.
        node: Where its last cached block is in the prefix tree; None where it is not in the tree.
        indexed: Its blocks that are in the tree.
    """

    __slots__ = (
        "arriving",
        "cached",
        "computed",
        "indexed",
        "keys",
        "known",
        "most",
        "most_tokens",
        "node",
        "output",
        "preemptions",
        "promise",
        "prompt",
        "request",
        "scope",
        "secured",
        "swapped",
    )

    def __init__(
        self, request: int, prompt: int, output: int, keys: Sequence[Hashable], scope: Scope
    ) -> None:
        self.request, self.prompt, self.output = request, prompt, output
        self.keys: list[Hashable] = list(keys)
        self.scope = scope
        self.known = prompt
        self.most_tokens = prompt + output - 1
        self.computed = self.preemptions = 0
        self.cached: int | None = None
        self.arriving = self.swapped = False
        self.promise = self.secured = self.most = self.indexed = 0
        self.node: Node | None = None

    @property
    def generated(self) -> int:
        """Tokens sampled so far."""
        return self.known - self.prompt

    @property
    def pending(self) -> int:
        """Known tokens that are not computed; 1 while decoding."""
        return self.known - self.computed
