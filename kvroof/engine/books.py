"""The books of a runner: what each round did, where everybody's tokens lay after it, and their bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from kvroof.engine.cache import CachePlan
from kvroof.engine.executor import Executor
from kvroof.engine.holdings import Holdings
from kvroof.engine.report import (
    BlockTable,
    GroupRecord,
    Ran,
    RequestRecord,
    RoundRecord,
    RunReport,
    TimedStep,
)
from kvroof.memory.allocators import Allocator
from kvroof.memory.blocks import Blocks
from kvroof.memory.demand import ragged
from kvroof.memory.kv import cache_bytes
from kvroof.schedule.rounds import Round
from kvroof.schedule.scheduler import Scheduler
from kvroof.spec.architecture import Architecture


class Books:
    """The rounds of one engine, written down as they are done."""

    def __init__(
        self, model: Architecture, plan: CachePlan, blocks: Blocks, holdings: Holdings, executor: Executor
    ) -> None:
        self._model, self._plan, self._blocks = model, plan, blocks
        self._holdings, self._executor = holdings, executor
        self.block_bytes = plan.block_bytes(executor.kv_format, executor.state_format)
        self.rounds: list[RoundRecord] = []
        self._most = [0] * len(plan.groups)

    def write(
        self,
        decided: Round,
        sampled: dict[int, int],
        scheduler: Scheduler,
        here: Sequence[int],
        steps: Iterable[TimedStep],
        start_s: float,
        end_s: float,
    ) -> RoundRecord:
        """Write down a round that has run, before its finished requests let go, and return the entry.

        Args:
            decided: The round.
            sampled: The token that each request sampled.
            scheduler: Who waits, and how many may run.
            here: The sequences whose blocks are on the device.
            steps: The calls of the decoder.
            start_s: When it began.
            end_s: When it was done.
        """
        tables = tuple(
            BlockTable(request=seq, kv_len=self._blocks.tokens(seq), blocks=self._blocks.block_table(seq))
            for seq in here
        )
        holders = Counter(block for table in tables for block in table.blocks)
        used = (self._blocks.used_blocks, *self._holdings.used_blocks)
        self._most = [max(most, now) for most, now in zip(self._most, used, strict=True)]
        entry = RoundRecord(
            index=len(self.rounds) + 1,
            start_s=start_s,
            seconds=end_s - start_s,
            ran=tuple(
                Ran(request=m.request, query_len=m.query_len, kv_len=m.kv_len, token=sampled.get(m.request))
                for m in decided.members
            ),
            admitted=decided.admitted,
            preempted=decided.preempted,
            finished=decided.finished,
            waiting=tuple(job.request for job in scheduler.waiting),
            idle_slots=scheduler.policy.max_num_seqs - len(decided.members),
            copied_blocks=len(decided.copies),
            swapped_blocks=len(decided.swapped_out) + len(decided.swapped_in),
            used_blocks=self._blocks.used_blocks,
            tables=tables,
            shared_blocks=tuple(sorted(block for block, count in holders.items() if count > 1)),
            held_bytes=sum(n * size for n, size in zip(used, self.block_bytes, strict=True)),
            unshared_bytes=self._unshared_bytes(tables),
            steps=tuple(steps),
        )
        self.rounds.append(entry)
        return entry

    def _unshared_bytes(self, tables: Sequence[BlockTable]) -> int:
        """Return what the ledger allocates for these sequences, each with blocks of its own."""
        if not tables:
            return 0
        paged = Allocator(name="paged", block_size=self._blocks.block_size)
        stored = self._executor.kv_format, self._executor.state_format
        return cache_bytes(self._model, ragged(table.kv_len for table in tables), paged, *stored)

    def report(self, scheduler: Scheduler, requests: Iterable[RequestRecord]) -> RunReport:
        """Return what happened so far."""
        executor, settings = self._executor, self._executor.settings
        layers = Counter(group for _, group in self._plan.pages)
        if self._plan.states:
            layers[self._plan.state_group] = len(self._plan.states)
        groups = tuple(
            GroupRecord(name=g.name, layers=layers[i], num_blocks=n, block_bytes=size, most_blocks=most)
            for i, (g, n, size, most) in enumerate(
                zip(self._plan.groups, executor.num_blocks, self.block_bytes, self._most, strict=True)
            )
        )
        return RunReport(
            model=self._model.name,
            policy=scheduler.policy.name,
            dtype=settings.dtype,
            kv_dtype=settings.kv_dtype or settings.dtype,
            block_size=settings.block_size,
            groups=groups,
            allocated_bytes=executor.cache.nbytes,
            ledger_bytes=sum(group.num_blocks * group.block_bytes for group in groups),
            rounds=tuple(self.rounds),
            requests=tuple(requests),
            prefix_hit_rate=None if scheduler.tree is None else scheduler.tree.hit_rate,
            preemptions=scheduler.preemptions,
            makespan_s=max((done.start_s + done.seconds for done in self.rounds), default=0.0),
            compile_s=executor.compile_s,
        )
