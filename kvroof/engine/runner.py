"""The runner: carries out what the schedule decides, on real arrays, and writes down what happened.

The scheduler and its blocks are the ones a simulator uses. The runner keeps the token ids, gives the device
the block tables, makes the copies a round asks for, and tells the scheduler when the round is done.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from kvroof.engine.books import Books
from kvroof.engine.cache import Cache, plan_cache
from kvroof.engine.executor import Executor, Listed, Row, Settings
from kvroof.engine.holdings import Holdings, SnapshotTree
from kvroof.engine.report import RoundRecord, RunReport, TimedStep
from kvroof.engine.requests import Kept, Request, Sent
from kvroof.ground.errors import BadInput
from kvroof.memory.blocks import Blocks
from kvroof.memory.prefix_tree import PrefixTree, Scope, block_keys
from kvroof.schedule.policies import Policy
from kvroof.schedule.rounds import Member, Round
from kvroof.schedule.scheduler import Scheduler
from kvroof.spec.architecture import Architecture
from kvroof.spec.workload import Sequences, Step


class Runner:
    """One engine that serves requests.

    Args:
        model: What to serve; its weights are random, the same for the same `seed`.
        policy: Which requests share a round.
        settings: The sizes of the engine.
        seed: Of the weights.
        share_prefixes: Whether prompts are looked up in what is cached.
        pack_finished: Whether the blocks of a finished request are read into `packed`, to be sent away.
        order: The order in which fresh blocks are handed out; None counts up.

    Raises:
        Unsupported: A part of the model that the engine does not run.
        BadInput: Settings or a policy that cannot be.
    """

    def __init__(
        self,
        model: Architecture,
        policy: Policy,
        settings: Settings,
        *,
        seed: int = 0,
        share_prefixes: bool = False,
        pack_finished: bool = False,
        order: Iterable[int] | None = None,
    ) -> None:
        self.model, self.policy, self.settings = model, policy, settings
        self.plan = plan_cache(model, settings.block_size)
        self.blocks = Blocks(
            settings.num_blocks, settings.block_size, host_blocks=settings.host_blocks, order=order
        )
        self.holdings = Holdings(self.plan, policy.max_num_seqs + settings.snapshots)
        self.tree = self._tree() if share_prefixes else None
        self.scheduler = Scheduler(policy, self.blocks, self.tree, hold_finished=pack_finished)
        num_blocks = (settings.num_blocks, *self.holdings.num_blocks)
        self.executor = Executor(model, self.plan, settings, num_blocks, seed)
        self.books = Books(model, self.plan, self.blocks, self.holdings, self.executor)
        self.kept: dict[int, Kept] = {}
        self.packed: dict[int, Sent] = {}
        self._scope = Scope(model=f"{model.name}, {settings.dtype}, seed {seed}")
        self._pack = pack_finished
        self._aside: dict[int, Cache] = {}
        self._resident: set[int] = set()
        self._began_s = self.executor.now()

    def _tree(self) -> PrefixTree:
        """Return the prefix tree that suits the model.

        Raises:
            BadInput: The model needs snapshots, and there are none or they are not at whole blocks.
        """
        if self.plan.keeps_all:
            return PrefixTree(self.blocks)
        cut, snapshots = self.settings.snapshot_tokens, self.settings.snapshots
        if snapshots < 1 or cut is None or cut < 1 or cut % self.settings.block_size:
            raise BadInput(
                "windows and states are reused from snapshots, taken at whole blocks",
                where="snapshots",
                way_out="give snapshots and snapshot_tokens, a multiple of block_size",
            )
        return SnapshotTree(self.blocks, self.holdings, snapshots)

    def add(self, asked: Request) -> None:
        """Put a request into the queue.

        Raises:
            BadInput: A number in use, or tokens that never fit.
        """
        keys = block_keys(asked.tokens, self.settings.block_size) if self.tree is not None else ()
        job = self.scheduler.add(
            asked.request, len(asked.tokens), asked.output_tokens, keys=keys, scope=self._scope
        )
        self.kept[asked.request] = Kept(asked, job)

    def add_sent(self, sent: Sent) -> None:
        """Put a request into the queue whose prompt was run elsewhere; it begins with those blocks.

        Raises:
            BadInput: A number in use, or tokens that never fit.
        """
        asked = sent.request
        job = self.scheduler.add(
            asked.request, len(asked.tokens), asked.output_tokens, scope=self._scope, prefilled=True
        )
        self.kept[asked.request] = Kept(asked, job, sent.sampled)
        self._aside[asked.request] = sent.contents

    def fork(self, parent: int, child: int, output_tokens: int) -> bool:
        """Begin `child` as a copy of the running `parent`; False for want of room.

        Blocks are shared until one of the two writes into one; windows and states are copied at once.
        """
        if not self.scheduler.fork(parent, child, output_tokens):
            return False
        source, job = self.kept[parent], self.scheduler.jobs[child]
        asked = Request(request=child, tokens=source.asked.tokens, output_tokens=output_tokens)
        self.kept[child] = Kept(asked, job, source.output)
        self._begin(child, job.computed)
        self.executor.copy(((), *self.holdings.tables(parent)), ((), *self.holdings.tables(child)))
        return True

    def run(self, requests: Iterable[Request] = ()) -> None:
        """Serve `requests`, and those that wait already, until the last has its tokens."""
        coming = sorted(requests, key=lambda asked: asked.arrival_s)
        self._began_s = self.executor.now()
        while coming or self.scheduler.jobs:
            now_s = self.executor.now() - self._began_s
            while coming and coming[0].arrival_s <= now_s:
                self.add(coming.pop(0))
            if self.scheduler.jobs:
                self.round()
            else:
                time.sleep(coming[0].arrival_s - now_s)

    def round(self) -> RoundRecord:
        """Decide a round, carry it out, and return what happened.

        A round may run nothing and only move blocks.

        Raises:
            BadInput: Nothing ran in the last round either: whoever waits finds no blocks to begin with.
        """
        start_s = self.executor.now() - self._began_s
        decided = self.scheduler.next_round()
        done = self.books.rounds
        if not decided.members and done and not done[-1].ran:
            raise BadInput("no request can run", where="blocks", way_out="give the cache more blocks")
        self._leave(decided)
        for request in decided.admitted:
            self._admit(request)
        others = ((),) * len(self.holdings.num_blocks)
        self.executor.copy(
            (tuple(copy.src for copy in decided.copies), *others),
            (tuple(copy.dst for copy in decided.copies), *others),
        )
        for member in decided.members:
            self.holdings.grow(member.request, member.kv_len)
        steps, snapshots = self._run(decided.members)
        here = [seq for seq in self.blocks.sequences if seq in self._resident]
        sampled = {m.request: self.kept[m.request].tokens[-1] for m in decided.members if m.samples}
        end_s = self.executor.now() - self._began_s
        entry = self.books.write(decided, sampled, self.scheduler, here, steps, start_s, end_s)
        for request in self.scheduler.complete(decided):
            self._finish(request)
        for request, tokens, number in snapshots:
            assert isinstance(self.tree, SnapshotTree)
            keys = self.kept[request].job.keys[: tokens // self.settings.block_size]
            self.tree.attach(self._scope, keys, number)
        return entry

    def _leave(self, decided: Round) -> None:
        """Let the preempted go; what was swapped out is read first, windows and states with it."""
        for request in decided.preempted:
            if request not in self._resident:
                continue
            hosts = self._host_blocks(request, decided)
            sources = [copy.src for copy in decided.swapped_out if copy.dst in hosts]
            if sources:
                self._aside[request] = self.executor.read((sources, *self.holdings.tables(request)))
            self._end(request)

    def _host_blocks(self, request: int, decided: Round) -> set[int]:
        """Return the host blocks that a preempted request was swapped out to; it may be back already."""
        if request not in self.blocks.sequences:
            return set()
        table = set(self.blocks.block_table(request))
        if self.blocks.is_swapped(request):
            return table
        return {copy.src for copy in decided.swapped_in if copy.dst in table}

    def _admit(self, request: int) -> None:
        """Give a request that begins what it has already: its own blocks from elsewhere, or a prefix."""
        job = self.kept[request].job
        if job not in self.scheduler.running:
            return
        self._begin(request, job.computed)
        contents = self._aside.pop(request, None)
        if not job.computed:
            return
        if contents is not None:
            table = self.blocks.block_table(request)[: self.blocks.blocks_for(job.computed)]
            self.executor.write((table, *self.holdings.tables(request)), contents)
        elif isinstance(self.tree, SnapshotTree):
            assert job.node is not None
            self._copy_others(self.tree.snapshot(job.node), request)

    def _begin(self, request: int, tokens: int) -> None:
        self._resident.add(request)
        self.holdings.start(request)
        self.holdings.grow(request, tokens)

    def _end(self, request: int) -> None:
        self._resident.remove(request)
        self.holdings.free(request)

    def _copy_others(self, source: int, target: int) -> None:
        """Copy the windows and states of one sequence or snapshot to another, as far as that has blocks."""
        wanted = self.holdings.tables(target)
        found = (
            table[: len(blocks)] for table, blocks in zip(self.holdings.tables(source), wanted, strict=True)
        )
        self.executor.copy(((), *found), ((), *wanted))

    def _run(self, members: Sequence[Member]) -> tuple[list[TimedStep], list[tuple[int, int, int]]]:
        """Run the tokens of a round: rows of one token in one step, longer ones in another.

        Prompts whose windows or states are to be reused are cut at the tokens of a snapshot. Returns the
        steps, and (request, tokens, snapshot) of each one taken.
        """
        steps: list[TimedStep] = []
        taken: list[tuple[int, int, int]] = []
        waves = [list(self._parts(member)) for member in members]
        for wave in range(max(map(len, waves), default=0)):
            parts = [part[wave] for part in waves if wave < len(part)]
            for chosen in ([p for p in parts if p.query_len == 1], [p for p in parts if p.query_len > 1]):
                if chosen:
                    steps.append(self._step(chosen))
            for part in parts:
                number = self._snapshot(part)
                if number is not None:
                    taken.append((part.request, part.kv_len, number))
        return steps, taken

    def _parts(self, member: Member) -> Iterator[Member]:
        """Yield the tokens of a member in the parts in which they run; only the last may sample."""
        start, cut = member.kv_len - member.query_len, self.settings.snapshot_tokens
        if isinstance(self.tree, SnapshotTree) and cut is not None:
            last = len(self.kept[member.request].job.keys) * self.settings.block_size
            for end in range((start // cut + 1) * cut, min(member.kv_len - 1, last) + 1, cut):
                yield Member(member.request, end - start, end, False)
                start = end
        yield member._replace(query_len=member.kv_len - start)

    def _snapshot(self, part: Member) -> int | None:
        """Return the snapshot taken where a part ended; None where there is none to take."""
        cut = self.settings.snapshot_tokens
        keys = self.kept[part.request].job.keys
        if not isinstance(self.tree, SnapshotTree) or cut is None or part.kv_len % cut:
            return None
        if part.kv_len > len(keys) * self.settings.block_size:
            return None
        number = self.tree.reserve(part.kv_len)
        if number is not None:
            self._copy_others(part.request, number)
        return number

    def _step(self, parts: Sequence[Member]) -> TimedStep:
        rows = []
        for part in parts:
            tokens = self.kept[part.request].tokens[part.kv_len - part.query_len : part.kv_len]
            rows.append(Row(tokens, part.kv_len, self._tables(part.request)))
        ran = self.executor.run(rows, max(part.query_len for part in parts))
        now_s = self.executor.now() - self._began_s
        for part, token, margin in zip(parts, ran.tokens, ran.margins, strict=True):
            if part.samples:
                self.kept[part.request].sampled(token, margin, now_s)
        groups = tuple(
            Sequences(count=count, query_len=query_len, kv_len=kv_len)
            for (query_len, kv_len), count in Counter((p.query_len, p.kv_len) for p in parts).items()
        )
        return TimedStep(
            step=Step(groups=groups), rows=ran.shape[0], row_tokens=ran.shape[1], seconds=ran.seconds
        )

    def _tables(self, request: int) -> Listed:
        return (self.blocks.block_table(request), *self.holdings.tables(request))

    def _finish(self, request: int) -> None:
        kept = self.kept[request]
        if self._pack:
            kv_len = self.blocks.tokens(request)
            contents = self.executor.read(self._tables(request))
            self.packed[request] = Sent(kept.asked, kept.output, kv_len, contents)
            self.scheduler.release(request)
        self._end(request)

    def report(self) -> RunReport:
        """Return what happened so far."""
        return self.books.report(self.scheduler, (kept.record() for kept in self.kept.values()))
