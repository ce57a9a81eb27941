"""A schedule as it ran: who was in which step, when and where; to be drawn, or opened in a trace viewer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from kvroof.ground.record import record, static
from kvroof.schedule.rounds import Member

PoolName: TypeAlias = Literal["serve", "prefill", "decode", "link"]


@record
class Span:
    """`rounds` steps in a row with the same members, or one transfer of KV (on the link, 0 rounds).

    `members` are those of the first step: in each later one every `kv_len` is one more. `used_blocks` is
    the pool's count in the last.
    """

    start_s: float
    end_s: float
    pool: PoolName = static()
    instance: int
    rounds: int
    members: tuple[Member, ...] = static()
    used_blocks: int

    @property
    def tokens(self) -> int:
        """Tokens run."""
        return self.rounds * sum(m.query_len for m in self.members)

    @property
    def kind(self) -> Literal["prefill", "decode", "mixed", "transfer"]:
        """What the steps do."""
        if not self.rounds:
            return "transfer"
        ones = sum(m.query_len == 1 for m in self.members)
        return "decode" if ones == len(self.members) else "mixed" if ones else "prefill"


def chrome_trace(spans: Sequence[Span]) -> dict[str, Any]:
    """Return the spans as Chrome's trace-event format, which Perfetto opens; JSON can hold it as it is.

    A pool is a process, an instance a thread; times are microseconds.

    Source: Trace Event Format, Google, "Complete Events" and "Metadata Events".
    """
    pools = {name: number for number, name in enumerate(dict.fromkeys(s.pool for s in spans))}
    threads = sorted({(pools[s.pool], s.instance) for s in spans})
    events = [named("process", pid, 0, name) for name, pid in pools.items()]
    events += [named("thread", pid, tid, f"instance {tid}") for pid, tid in threads]
    for span in spans:
        members = [{"request": m.request, "query_len": m.query_len, "kv_len": m.kv_len} for m in span.members]
        facts = {"rounds": span.rounds, "used_blocks": span.used_blocks, "members": members}
        place = pools[span.pool], span.instance
        made = complete(span.kind, *place, span.start_s, span.end_s - span.start_s, facts)
        events.append(made | {"cat": span.pool})
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def named(what: Literal["process", "thread"], pid: int, tid: int, name: str) -> dict[str, Any]:
    """Return the event that names a process or a thread."""
    return {"ph": "M", "name": f"{what}_name", "pid": pid, "tid": tid, "args": {"name": name}}


def complete(
    name: str, pid: int, tid: int, start_s: float, seconds: float, args: dict[str, Any]
) -> dict[str, Any]:
    """Return the event of a stretch of time."""
    span = {"ts": start_s * 1e6, "dur": seconds * 1e6}
    return {"ph": "X", "name": name, "pid": pid, "tid": tid, "args": args} | span
