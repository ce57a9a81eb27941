"""One round of a schedule: what runs in the next step, and what was done to make room for it."""

from __future__ import annotations

from typing import NamedTuple

from kvroof.ground.record import record, static
from kvroof.memory.blocks import Copy
from kvroof.schedule.jobs import Job


class Member(NamedTuple):
    """A request in a round: its last `query_len` of `kv_len` tokens are run.

    It `samples` a token where they are the last ones it knows, so not in the earlier chunks of a prompt.
    """

    request: int
    query_len: int
    kv_len: int
    samples: bool


def decoding(request: int, kv_len: int) -> Member:
    """Return a member that runs one token and samples the next."""
    return tuple.__new__(Member, (request, 1, kv_len, True))


@record
class Round:
    """A decision. Whoever carries it out makes the copies first, in the order of the fields here.

    `swapped_out` copies device blocks to host blocks, `swapped_in` host blocks to device blocks, and
    `copies` gives a sequence its own last block before it is written. `admitted` have just begun (or begun
    again), `preempted` have lost their place; `finished` sample their last token in this round, unless
    something stops them earlier. `used_blocks` is the pool's count with the round's tokens in it.
    """

    members: tuple[Member, ...] = static()
    admitted: tuple[int, ...] = static(default=())
    preempted: tuple[int, ...] = static(default=())
    finished: tuple[int, ...] = static(default=())
    swapped_out: tuple[Copy, ...] = static(default=())
    swapped_in: tuple[Copy, ...] = static(default=())
    copies: tuple[Copy, ...] = static(default=())
    used_blocks: int

    @property
    def tokens(self) -> int:
        """Tokens run in the round."""
        return sum(m.query_len for m in self.members)

    @property
    def decodes_only(self) -> bool:
        """Whether every member runs one token."""
        return all(m.query_len == 1 for m in self.members)


class Draft:
    """A round that is being decided."""

    __slots__ = (
        "admitted",
        "copies",
        "finished",
        "members",
        "preempted",
        "swapped_in",
        "swapped_out",
    )

    def __init__(self) -> None:
        self.members: list[Member] = []
        self.admitted: list[int] = []
        self.preempted: list[int] = []
        self.finished: list[int] = []
        self.copies: tuple[Copy, ...] = ()
        self.swapped_in: tuple[Copy, ...] = ()
        self.swapped_out: tuple[Copy, ...] = ()

    @property
    def tokens(self) -> int:
        """Tokens in the round so far."""
        return sum([member.query_len for member in self.members])

    def place(self, job: Job, query_len: int, copies: tuple[Copy, ...] = ()) -> None:
        """Put `query_len` tokens of `job` into the round."""
        kv_len = job.computed + query_len
        samples = kv_len == job.known
        self.members.append(Member(job.request, query_len, kv_len, samples))
        if copies:
            self.copies += copies
        if samples and kv_len == job.most_tokens:
            self.finished.append(job.request)

    def round(self, used_blocks: int) -> Round:
        """Return the decision."""
        return Round(
            members=tuple(self.members),
            admitted=tuple(self.admitted),
            preempted=tuple(self.preempted),
            finished=tuple(self.finished),
            swapped_out=self.swapped_out,
            swapped_in=self.swapped_in,
            copies=self.copies,
            used_blocks=used_blocks,
        )
