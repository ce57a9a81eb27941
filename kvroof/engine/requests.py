"""Requests as an engine keeps them: the token ids, when each came, and their blocks on the way elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from kvroof.engine.cache import Cache
from kvroof.engine.report import RequestRecord
from kvroof.ground.record import record, static
from kvroof.schedule.jobs import Job


@record
class Request:
    """A prompt, and how many tokens are wanted behind it; it arrives `arrival_s` after the run begins."""

    request: int
    tokens: tuple[int, ...] = static()
    output_tokens: int
    arrival_s: float = 0.0


class Sent:
    """A request whose prompt was run, with the contents of its blocks in logical order, by group."""

    __slots__ = ("contents", "kv_len", "request", "sampled")

    def __init__(self, request: Request, sampled: tuple[int, ...], kv_len: int, contents: Cache) -> None:
        self.request, self.sampled, self.kv_len, self.contents = request, sampled, kv_len, contents


class Kept:
    """What a runner knows of one request: its tokens, and when those that it sampled came."""

    __slots__ = ("asked", "job", "margins", "sampled_s", "tokens")

    def __init__(self, asked: Request, job: Job, first: Sequence[int] = ()) -> None:
        self.asked, self.job, self.tokens = asked, job, [*asked.tokens, *first]
        self.sampled_s: list[float] = []
        self.margins: list[float] = []

    @property
    def output(self) -> tuple[int, ...]:
        """The tokens generated so far."""
        return tuple(self.tokens[len(self.asked.tokens) :])

    def sampled(self, token: int, margin: float, now_s: float) -> None:
        """Take note of a sampled token."""
        self.tokens.append(token)
        self.margins.append(margin)
        self.sampled_s.append(now_s)

    def record(self) -> RequestRecord:
        """Return what came of the request."""
        here = len(self.output) == len(self.sampled_s) > 0
        return RequestRecord(
            request=self.asked.request,
            prompt_tokens=len(self.asked.tokens),
            cached_tokens=self.job.cached or 0,
            output=self.output,
            ttft_s=self.sampled_s[0] - self.asked.arrival_s if here else None,
            itl_s=tuple(b - a for a, b in zip(self.sampled_s, self.sampled_s[1:], strict=False)),
            token_s=tuple(self.sampled_s),
            arrival_s=self.asked.arrival_s,
            preemptions=self.job.preemptions,
            least_margin=min(self.margins, default=None),
        )
