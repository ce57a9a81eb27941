"""The event loop of the simulator: steps, transfers and arrivals in the order of their times.

A step is an event at its end. Decode steps in which nothing else can happen are taken at once, up to the
earliest moment at which something could reach the instance from outside.
"""

from __future__ import annotations

import heapq
from array import array
from collections import deque
from collections.abc import Hashable, Sequence
from typing import TypeAlias

from kvroof.ground.errors import BadInput
from kvroof.schedule.rounds import Member, Round
from kvroof.schedule.scheduler import Scheduler
from kvroof.serving.demand.requests import Request
from kvroof.serving.simulation.instances import Fleet, Instance, Link, Pool, Wire, prompt_keys
from kvroof.serving.simulation.metrics import Served
from kvroof.serving.simulation.schedule_trace import Span
from kvroof.serving.simulation.step_batch import StepBatch

FOREVER = float("inf")
_SENT, _DONE, _WAKE = range(3)
"""Events of one moment in this order: what arrived is there before the next step is decided."""
Event: TypeAlias = tuple[float, int, int, Instance, int]
"""When, what, the order it was pushed in, where, and the request that it is about, or -1."""


class EventLoop:
    """The state of one simulation.

    Args:
        requests: What is asked.
        pool: What serves them, or runs their prompts.
        decode: The decode pool, where the phases are split.
        link: What carries the KV between the two.
        concurrency: Requests in the system at a time; None takes the arrival times.
        trace: Whether to keep spans.

    Attributes:
        done: Requests in the order they finished.
        rejected: Requests that never fit.
        spans: The schedule, not in order.
        gaps: Gaps between tokens; `counts` says how often each occurred.
        rounds: Steps run.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        pool: Pool,
        decode: Pool | None,
        link: Link | None,
        concurrency: int | None,
        trace: bool,
    ) -> None:
        count = len(requests)
        self.requests = requests
        self.front = Fleet(pool, "serve" if decode is None else "prefill")
        self.back = None if decode is None else Fleet(decode, "decode")
        self.wire = None if link is None else Wire(link)
        self.closed = concurrency is not None
        self.coming = deque(
            range(count) if self.closed else sorted(range(count), key=lambda i: requests[i].arrival_s)
        )
        self.trace = trace
        self.arrival = [r.arrival_s for r in requests]
        self.admitted, self.first, self.last = [-1.0] * count, [-1.0] * count, [-1.0] * count
        self.place, self.decode_place = [-1] * count, [-1] * count
        self.cached, self.preempted = [0] * count, [0] * count
        self.done: list[int] = []
        self.rejected: list[int] = []
        self.gaps: array[float] = array("d")
        self.counts: array[int] = array("q")
        self.spans: list[Span] = []
        self.rounds = 0
        self.order = 0
        self.events: list[Event] = []
        self.decode_events: list[Event] = []
        for _ in range(concurrency or 0):
            self._next_in_loop(0.0)

    def run(self) -> None:
        """Run to the end."""
        while True:
            queue = self._earliest()
            arrival = FOREVER if self.closed or not self.coming else self.arrival[self.coming[0]]
            if queue is None and arrival == FOREVER:
                break
            if queue is None or arrival <= queue[0][0]:
                self._arrive(self.coming.popleft(), arrival)
                continue
            now, kind, _, instance, request = heapq.heappop(queue)
            if kind == _SENT:
                self._land(instance, request, now)
            elif kind == _DONE:
                self._complete(instance, now)
            else:
                instance.waking = False
                if instance.round is None:
                    self._start(instance, now)

    def served(self) -> tuple[Served, ...]:
        """Return the finished requests in their order."""
        return tuple(
            Served(
                request=r,
                arrival_s=self.arrival[r],
                admitted_s=self.admitted[r],
                first_token_s=self.first[r],
                finish_s=self.last[r],
                input_tokens=self.requests[r].input_tokens,
                output_tokens=self.requests[r].output_tokens,
                cached_tokens=self.cached[r],
                preemptions=self.preempted[r],
                instance=self.place[r],
                decode_instance=self.decode_place[r] if self.decode_place[r] >= 0 else None,
            )
            for r in sorted(self.done)
        )

    def schedulers(self) -> list[Scheduler]:
        """Return the scheduler of every instance, those that run prompts first."""
        fleets = [self.front] if self.back is None else [self.front, self.back]
        return [instance.scheduler for fleet in fleets for instance in fleet.instances]

    def _earliest(self) -> list[Event] | None:
        """Return the heap whose first event is next."""
        if not self.decode_events:
            return self.events or None
        if not self.events:
            return self.decode_events
        return self.events if self.events[0] < self.decode_events[0] else self.decode_events

    def _push(self, when: float, kind: int, instance: Instance, request: int = -1) -> None:
        self.order += 1
        heap = self.decode_events if instance.role == "decode" and kind != _SENT else self.events
        heapq.heappush(heap, (when, kind, self.order, instance, request))

    def _horizon(self, instance: Instance) -> float:
        """Return the earliest moment at which something could reach `instance` from outside."""
        arrival = FOREVER if self.closed or not self.coming else self.arrival[self.coming[0]]
        if instance.role == "serve" and not self.closed:
            return arrival
        event = self.events[0][0] if self.events else FOREVER
        if self.decode_events and (self.closed or self._decode_waits()):
            event = min(event, self.decode_events[0][0])
        return min(arrival, event)

    def _decode_waits(self) -> bool:
        """Return whether a decode that ends may set a transfer off, and with it more."""
        return self.back is not None and any(i.scheduler.waiting for i in self.back.instances)

    def _next_in_loop(self, now: float) -> None:
        """Let the next request of a closed loop arrive; those that never fit give way to the next."""
        while self.coming:
            request = self.coming.popleft()
            self.arrival[request] = now
            if self._arrive(request, now):
                return

    def _arrive(self, request: int, now: float) -> bool:
        """Send a request to an instance; return whether its tokens fit."""
        asked = self.requests[request]
        keys: Sequence[Hashable] = ()
        if self.front.pool.prefix_cache:
            keys = prompt_keys(asked, self.front.pool.block_size)
        if not self._fits(asked):
            self.rejected.append(request)
            return False
        instance = self.front.choose(keys, asked.input_tokens)
        outputs = asked.output_tokens if self.back is None else 1
        instance.scheduler.add(request, asked.input_tokens, outputs, keys=keys)
        instance.unfinished += 1
        instance.backlog += asked.input_tokens
        self.place[request] = instance.number
        self._wake(instance, now)
        return True

    def _fits(self, asked: Request) -> bool:
        """Return whether every pool has room for the request when it is alone."""
        isl, osl = asked.input_tokens, asked.output_tokens
        front = self.front.instances[0].scheduler
        if self.back is None:
            return front.fits(isl, osl)
        return front.fits(isl, 1) and (osl == 1 or self.back.instances[0].scheduler.fits(isl, osl))

    def _wake(self, instance: Instance, now: float) -> None:
        if instance.round is None and not instance.waking:
            instance.waking = True
            self._push(now, _WAKE, instance)

    def _start(self, instance: Instance, now: float) -> None:
        """Decide the next step of an idle instance and begin it, if there is anything to run."""
        scheduler = instance.scheduler
        decided = scheduler.next_round()
        if decided.admitted:
            for request in decided.admitted:
                if self.admitted[request] < 0:
                    self.admitted[request] = now
                    self.cached[request] = scheduler.jobs[request].cached or 0
        for request in decided.preempted:
            self.preempted[request] += 1
        if not decided.members:
            instance.round = None
            return
        instance.round, instance.started_s = decided, now
        self._push(now + _seconds(instance, StepBatch(decided)), _DONE, instance)

    def _complete(self, instance: Instance, now: float) -> None:
        """End a step: hand out its tokens, let go of what is finished, go on with the next."""
        done = instance.round
        assert done is not None
        instance.round = None
        self.rounds += 1
        if self.trace:
            self.spans.append(_span(instance, now, 1, done.members, done.used_blocks))
        self._hand_out(done, now)
        finished = instance.scheduler.complete(done)
        for request in finished:
            instance.unfinished -= 1
            if instance.role == "decode":
                instance.backlog -= self.requests[request].input_tokens
            if self.back is not None and instance.role == "prefill":
                self._leave_prefill(instance, request, now)
            else:
                self._end(request, now)
        if instance.role == "decode":
            self._receive(instance, now)
        if not finished:
            now = self._coast(instance, done, now)
        self._start(instance, now)

    def _hand_out(self, done: Round, now: float) -> None:
        """Note the tokens that a step sampled, and the gaps since the ones before them."""
        first, last = self.first, self.last
        gaps: dict[float, int] = {}
        for request, _, _, samples in done.members:
            if not samples:
                continue
            if first[request] < 0:
                first[request] = now
                fleet = self.front.instances
                fleet[self.place[request]].backlog -= self.requests[request].input_tokens
            else:
                gap = now - last[request]
                gaps[gap] = gaps.get(gap, 0) + 1
            last[request] = now
        self.gaps.extend(gaps)
        self.counts.extend(gaps.values())

    def _coast(self, instance: Instance, last: Round, now: float) -> float:
        """Take the steps in which nothing but one token for each member happens; return their end."""
        rounds = instance.scheduler.steady_rounds(last)
        if not rounds:
            return now
        horizon, step_s = self._horizon(instance), instance.pool.step_s
        batch = StepBatch(last)
        batch.swapped_blocks = 0
        size, start, taken = batch.decodes, now, 0
        gaps = self.gaps
        while taken < rounds:
            batch.decode_kv += size
            end = now + step_s(batch)
            if not now <= end < horizon:
                break
            gaps.append(end - now)
            now = end
            taken += 1
        if taken:
            self.counts.extend([size] * taken)
            instance.scheduler.advance(taken)
            for member in last.members:
                self.last[member.request] = now
            self.rounds += taken
            if self.trace:
                instance.started_s = start
                members = tuple(Member(m.request, 1, m.kv_len + 1, True) for m in last.members)
                used = instance.scheduler.blocks.used_blocks
                self.spans.append(_span(instance, now, taken, members, used))
        return now

    def _leave_prefill(self, instance: Instance, request: int, now: float) -> None:
        """Send a request whose prompt has run to the decode pool; one of a single token is finished."""
        asked = self.requests[request]
        if asked.output_tokens == 1:
            instance.scheduler.release(request)
            self._end(request, now)
            return
        assert self.back is not None
        target = self.back.choose((), asked.input_tokens)
        target.scheduler.add(request, asked.input_tokens, asked.output_tokens, arriving=True)
        target.unfinished += 1
        target.backlog += asked.input_tokens
        self.decode_place[request] = target.number
        self._receive(target, now)

    def _receive(self, target: Instance, now: float) -> None:
        """Start the transfers that a decode instance has blocks for."""
        for request in target.scheduler.receive():
            assert self.wire is not None
            first = self.first[request]
            running = first - self.admitted[request] if first == now else 0.0
            tokens = self.requests[request].input_tokens
            start, end, channel = self.wire.send(tokens, now, running)
            self._push(end, _SENT, target, request)
            if self.trace:
                member = (Member(request, 0, tokens, False),)
                self.spans.append(
                    Span(
                        start_s=start,
                        end_s=end,
                        pool="link",
                        instance=channel,
                        rounds=0,
                        members=member,
                        used_blocks=0,
                    )
                )

    def _land(self, target: Instance, request: int, now: float) -> None:
        """Let a request decode whose KV has arrived, and free what the prefill instance kept of it."""
        source = self.front.instances[self.place[request]]
        source.scheduler.release(request)
        target.scheduler.arrived(request)
        self._wake(source, now)
        self._wake(target, now)

    def _end(self, request: int, now: float) -> None:
        self.done.append(request)
        if self.closed:
            self._next_in_loop(now)


def _seconds(instance: Instance, batch: StepBatch) -> float:
    seconds = instance.pool.step_s(batch)
    if not 0 <= seconds < FOREVER:
        raise BadInput(
            f"a step of {batch.decodes} decodes and prompts {batch.prefills} takes {seconds} s",
            where="step time",
        )
    return seconds


def _span(instance: Instance, end: float, rounds: int, members: tuple[Member, ...], used: int) -> Span:
    return Span(
        start_s=instance.started_s,
        end_s=end,
        pool=instance.role,
        instance=instance.number,
        rounds=rounds,
        members=members,
        used_blocks=used,
    )
