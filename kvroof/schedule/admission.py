"""Admission by free blocks: who may begin, and whose blocks are set aside.

A job that is admitted is promised blocks: for its first step, its prompt, or its whole output. Promised
blocks are free, but nobody else gets them.
"""

from __future__ import annotations

from kvroof.ground.errors import BadInput
from kvroof.ground.numeric import ceil_div
from kvroof.memory.blocks import Blocks, Copy
from kvroof.memory.prefix_tree import PrefixTree
from kvroof.schedule.jobs import Job
from kvroof.schedule.policies import Policy


class Admission:
    """The promises made on a pool of blocks.

    Args:
        policy: For how much of a job blocks must be at hand.
        blocks: The pool.
        tree: Its prefix tree, if prompts are looked up.
        window: Tokens that a query sees, its own included; None for all of them.
    """

    __slots__ = ("_blocks", "_policy", "_tree", "promised", "window")

    def __init__(self, policy: Policy, blocks: Blocks, tree: PrefixTree | None, window: int | None) -> None:
        self._policy, self._blocks, self._tree, self.window = policy, blocks, tree, window
        self.promised = 0

    @property
    def unpromised(self) -> int:
        """Free blocks that nobody was promised."""
        return self._blocks.free_blocks - self.promised

    def check_fits(self, job: Job) -> None:
        """Check that `job` can run when it is alone.

        Raises:
            BadInput: Its tokens never fit into the pool.
        """
        if not self.fits(job):
            raise BadInput(
                f"{job.prompt} prompt and {job.output} output tokens do not fit into"
                f" {self._blocks.num_blocks} blocks of {self._blocks.block_size} tokens",
                where=f"request {job.request}",
                way_out="give the cache more blocks, or leave the request out",
            )

    def fits(self, job: Job) -> bool:
        """Return whether `job` can run when it is alone."""
        return self._most_blocks(job, job.most_tokens) <= self._blocks.num_blocks

    def admit(self, job: Job, most_tokens: int | None) -> bool:
        """Begin `job` if there are blocks for it: its table is started, with what is cached of its prompt.

        Args:
            job: It waits, and is not on the host.
            most_tokens: Tokens of it that its first step may run; None for all that are pending.
        """
        blocks, size = self._blocks, self._blocks.block_size
        nodes = []
        if self._tree is not None and not job.computed:
            nodes = self._tree.match(job.scope, job.keys[: (job.known - 1) // size])
        ready = job.computed or len(nodes) * size
        first = job.known if most_tokens is None else min(job.known, ready + most_tokens)
        secured = {"none": first, "prompt": job.known, "output": job.most_tokens}[self._policy.reserve]
        most, holes = self._most_blocks(job, secured), self._unseen(job) // size
        promise = min(most, blocks.blocks_for(secured) - holes) - len(nodes)
        if promise > self.unpromised - sum(blocks.is_idle(node.block) for node in nodes):
            return False
        blocks.start(job.request, [node.block for node in nodes], holes=holes)
        job.secured, job.most, job.promise = blocks.blocks_for(secured), most, promise
        self.promised += promise
        if job.computed:
            made = self.grow(job, job.computed - holes * size)
            assert made is not None
        elif self._tree is not None:
            job.computed, job.indexed = ready, len(nodes)
            job.node = nodes[-1] if nodes else self._tree.root(job.scope)
        if job.cached is None:
            job.cached = len(nodes) * size
            if self._tree is not None and not job.generated:
                self._tree.count(job.prompt, job.cached)
        return True

    def admit_swapped(self, job: Job) -> tuple[Copy, ...] | None:
        """Bring `job` back from the host if there are blocks for it and for its next step."""
        held = self._blocks.held_blocks(job.request)
        has = self._blocks.blocks_for(job.computed)
        promise = max(min(job.secured - has, job.most - held), 0)
        if held + max(promise, self._blocks.blocks_for(job.computed + 1) - has) > self.unpromised:
            return None
        copies = self._blocks.swap_in(job.request)
        assert copies is not None
        job.promise = promise
        self.promised += promise
        return copies

    def grow(self, job: Job, tokens: int) -> tuple[Copy, ...] | None:
        """Give `job` slots for `tokens` more; return the copies to make, or None for want of blocks."""
        if self._blocks.fill(job.request, tokens):
            return ()
        needed = self._blocks.needed(job.request, tokens)
        own = min(needed, job.promise)
        if needed - own > self.unpromised:
            return None
        copies = self._blocks.append(job.request, tokens)
        assert copies is not None
        job.promise -= own
        self.promised -= own
        return copies

    def fork(self, parent: Job, child: Job) -> bool:
        """Begin `child` with the blocks of `parent` if there are blocks for what they will not share."""
        blocks = self._blocks
        target = parent.known if self._policy.reserve != "output" else child.most_tokens
        partial = int(parent.computed % blocks.block_size != 0)
        promise = blocks.blocks_for(target) - blocks.blocks_for(parent.computed) + partial
        if promise + partial > self.unpromised:
            return False
        blocks.fork(parent.request, child.request)
        child.secured = blocks.blocks_for(target)
        child.most, child.promise = self._most_blocks(child, target), promise
        parent.promise += partial
        self.promised += promise + partial
        return True

    def slide(self, job: Job) -> None:
        """Let go of the blocks that no later query of `job` sees; what it was promised stays its own."""
        if self._blocks.drop_before(job.request, self._unseen(job)):
            to_come = job.secured - self._blocks.blocks_for(job.computed)
            promise = max(min(to_come, job.most - self._blocks.held_blocks(job.request)), 0)
            self.promised += promise - job.promise
            job.promise = promise

    def withdraw(self, job: Job) -> None:
        """Take back what `job` was promised and has not used."""
        self.promised -= job.promise
        job.promise = 0

    def _unseen(self, job: Job) -> int:
        """Return how many of the computed tokens no later query of `job` sees."""
        return 0 if self.window is None else max(job.computed - self.window + 1, 0)

    def _most_blocks(self, job: Job, tokens: int) -> int:
        """Return the most blocks that `job` holds at a time until it has `tokens`."""
        size = self._blocks.block_size
        whole = ceil_div(tokens, size)
        if self.window is None:
            return whole
        step = self._policy.max_num_batched_tokens if self._policy.name == "chunked" else job.most_tokens
        return min(whole, ceil_div(self.window - 1 + step, size) + 1)
