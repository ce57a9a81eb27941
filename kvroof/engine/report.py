"""What a run of the engine leaves behind: its rounds, its requests, its bytes."""

from __future__ import annotations

from kvroof.ground.record import record, static
from kvroof.spec.workload import Step


@record
class TimedStep:
    """One call of the decoder: what ran, in how many padded rows of how many tokens, and how long it took."""

    step: Step
    rows: int
    row_tokens: int
    seconds: float


@record
class Ran:
    """A request in a round: its last `query_len` of `kv_len` tokens ran; `token` is what it sampled."""

    request: int
    query_len: int
    kv_len: int
    token: int | None


@record
class BlockTable:
    """A sequence's physical blocks in logical order, after a round, and the tokens in them."""

    request: int
    kv_len: int
    blocks: tuple[int, ...] = static()


@record
class RoundRecord:
    """One round: who ran, what was done to make room, where everybody's tokens lie, and the time it took.

    `idle_slots` are places that no request took. `copied_blocks` got their own copy before a write,
    `swapped_blocks` moved to the host or back. `shared_blocks` are in more than one table. `held_bytes` are
    those of all blocks that sequences hold, a shared one once; `unshared_bytes` what the ledger allocates
    for the same sequences if they share nothing.
    """

    index: int
    start_s: float
    seconds: float
    ran: tuple[Ran, ...] = static()
    admitted: tuple[int, ...] = static()
    preempted: tuple[int, ...] = static()
    finished: tuple[int, ...] = static()
    waiting: tuple[int, ...] = static()
    idle_slots: int
    copied_blocks: int
    swapped_blocks: int
    used_blocks: int
    tables: tuple[BlockTable, ...] = static()
    shared_blocks: tuple[int, ...] = static()
    held_bytes: int
    unshared_bytes: int
    steps: tuple[TimedStep, ...] = static()


@record
class RequestRecord:
    """One request: what was found in the cache, what it generated, and when its tokens came.

    `least_margin` is the smallest lead of a sampled token over the next best one. `ttft_s` is counted from
    the arrival; None where the first token was sampled elsewhere.
    """

    request: int
    prompt_tokens: int
    cached_tokens: int
    output: tuple[int, ...] = static()
    ttft_s: float | None
    itl_s: tuple[float, ...] = static()
    token_s: tuple[float, ...] = static()
    arrival_s: float
    preemptions: int
    least_margin: float | None


@record
class GroupRecord:
    """Layers that share block tables: their pool, the bytes of a block over them, the most that was held."""

    name: str = static()
    layers: int
    num_blocks: int
    block_bytes: int
    most_blocks: int


@record
class RunReport:
    """A whole run. `allocated_bytes` are those of the arrays, `ledger_bytes` what the spec says they take."""

    model: str = static()
    policy: str = static()
    dtype: str = static()
    kv_dtype: str = static()
    block_size: int
    groups: tuple[GroupRecord, ...] = static()
    allocated_bytes: int
    ledger_bytes: int
    rounds: tuple[RoundRecord, ...] = static()
    requests: tuple[RequestRecord, ...] = static()
    prefix_hit_rate: float | None
    preemptions: int
    makespan_s: float
    compile_s: float

    @property
    def peak(self) -> RoundRecord:
        """The round after which the sequences had most cached, by the ledger and before any sharing."""
        return max(self.rounds, key=lambda done: done.unshared_bytes)
