"""Pools of engines in a simulation: what they are, how a request finds one, and the link between two."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Sequence
from typing import Literal, TypeAlias

from kvroof.ground.errors import BadInput
from kvroof.ground.record import record, static
from kvroof.memory.blocks import Blocks
from kvroof.memory.prefix_tree import PrefixTree, Scope
from kvroof.schedule.policies import Policy
from kvroof.schedule.rounds import Round
from kvroof.schedule.scheduler import Scheduler
from kvroof.serving.demand.requests import Request
from kvroof.serving.simulation.schedule_trace import PoolName
from kvroof.serving.simulation.step_batch import StepSeconds

Router: TypeAlias = Literal["round_robin", "least_requests", "least_work"]


@record
class Pool:
    """`instances` equal engines, each with its own blocks and schedule.

    `least_requests` sends a request where the fewest are unfinished. `least_work` sends it where the fewest
    prompt tokens are still to be computed once it is there, so where its prefix is cached unless that is
    busy; in a decode pool, where the fewest prompt tokens are held. `window` is the tokens that a query
    sees where all layers slide.
    """

    step_s: StepSeconds = static()
    num_blocks: int
    block_size: int = 16
    instances: int = 1
    policy: Policy = Policy()
    prefix_cache: bool = static(default=False)
    host_blocks: int = 0
    window: int | None = None
    router: Router = static(default="least_requests")


@record
class Link:
    """What carries KV from the prefill pool to the decode pool.

    `transfer_s` maps tokens to the seconds a transfer takes alone; `channels` run at once at that speed, and
    more wait in their order. With `layers` a transfer goes layer by layer, and those that are ready leave
    while the prompt still runs: it begins up to `(layers - 1) / layers` of the prefill earlier, and ends
    one layer after the prefill at the earliest.
    """

    transfer_s: Callable[[int], float] = static()
    channels: int = 1
    layers: int | None = None


class Instance:
    """One engine of a pool while a simulation runs."""

    __slots__ = (
        "backlog",
        "number",
        "pool",
        "role",
        "round",
        "scheduler",
        "started_s",
        "unfinished",
        "waking",
    )

    def __init__(self, pool: Pool, role: PoolName, number: int) -> None:
        blocks = Blocks(pool.num_blocks, pool.block_size, host_blocks=pool.host_blocks)
        tree = PrefixTree(blocks) if pool.prefix_cache else None
        self.scheduler = Scheduler(
            pool.policy, blocks, tree, window=pool.window, hold_finished=role == "prefill"
        )
        self.pool, self.role, self.number = pool, role, number
        self.round: Round | None = None
        self.started_s = 0.0
        self.waking = False
        self.unfinished = self.backlog = 0

    def cached_tokens(self, keys: Sequence[Hashable], prompt: int) -> int:
        """Return how many tokens of a prompt are in the instance's cache now."""
        tree, size = self.scheduler.tree, self.pool.block_size
        return 0 if tree is None else size * len(tree.match(Scope(), keys[: (prompt - 1) // size]))


class Fleet:
    """The instances of a pool, and which of them takes the next request."""

    def __init__(self, pool: Pool, role: PoolName) -> None:
        if pool.instances < 1:
            raise BadInput(f"{pool.instances} instances", where=f"{role} pool")
        self.pool = pool
        self.instances = [Instance(pool, role, number) for number in range(pool.instances)]
        self._turn = -1

    def choose(self, keys: Sequence[Hashable], prompt: int) -> Instance:
        """Return the instance that takes a request with that prompt."""
        if len(self.instances) == 1:
            return self.instances[0]
        if self.pool.router == "round_robin":
            self._turn = (self._turn + 1) % len(self.instances)
            return self.instances[self._turn]
        if self.pool.router == "least_requests":
            return min(self.instances, key=lambda i: i.unfinished)
        return min(self.instances, key=lambda i: (i.backlog - i.cached_tokens(keys, prompt), i.unfinished))


class Wire:
    """A link while a simulation runs: transfers in their order, `channels` at once."""

    def __init__(self, link: Link) -> None:
        if link.channels < 1 or (link.layers is not None and link.layers < 1):
            raise BadInput(f"{link.channels} channels, {link.layers} layers", where="link")
        self._link = link
        self._free_s = [(0.0, channel) for channel in range(link.channels)]

    def send(self, tokens: int, now_s: float, prefill_s: float) -> tuple[float, float, int]:
        """Return when a transfer starts and ends, and on which channel.

        Args:
            tokens: Tokens whose KV is sent.
            now_s: When the decode side is ready for it.
            prefill_s: How long the prompt ran until just now; 0 where it has ended earlier.

        Raises:
            BadInput: A transfer time that is not one.
        """
        layers = self._link.layers
        seconds = self._link.transfer_s(tokens)
        if not 0 <= seconds < float("inf"):
            raise BadInput(f"{seconds} s for {tokens} tokens", where="transfer time")
        free, channel = heapq.heappop(self._free_s)
        earliest = now_s if layers is None else now_s - prefill_s * (layers - 1) / layers
        start = max(free, earliest)
        end = start + seconds
        if layers is not None:
            end = max(end, now_s + seconds / layers)
        heapq.heappush(self._free_s, (end, channel))
        return start, end, channel


def prompt_keys(request: Request, block_size: int) -> tuple[Hashable, ...]:
    """Return a name for each block that the prompt, or the output it names, fills; none where none is known.

    Raises:
        BadInput: Blocks that are not whole parts of the hashed ones.
    """
    hashes, size = request.block_hashes, request.hash_block_size
    if hashes is None:
        return ()
    if size % block_size:
        raise BadInput(
            f"blocks of {block_size} tokens cannot be told apart by hashes of {size}",
            where="--block-size",
            way_out=f"take {size}, or a number that divides it",
        )
    full, parts = request.named_tokens // block_size, size // block_size
    if parts == 1:
        return hashes[:full]
    return tuple((hashes[i // parts], i % parts) for i in range(full))
