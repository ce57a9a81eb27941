"""The scheduler: who runs in the next step, and with how many tokens.

It knows no time and no arrays. A simulator and a real engine drive it alike: `next_round` decides, the
owner carries the round out, `complete` tells that it is done. Decisions depend only on the calls made and
their order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Sequence

from kvroof.ground.errors import BadInput, Unsupported
from kvroof.memory.blocks import Blocks, Copy
from kvroof.memory.prefix_tree import PrefixTree, Scope
from kvroof.schedule.admission import Admission
from kvroof.schedule.jobs import Job
from kvroof.schedule.policies import Policy, check_policy
from kvroof.schedule.rounds import Draft, Round, decoding


class Scheduler:
    """The waiting and the running requests of one engine.

    Args:
        policy: Which requests share a step.
        blocks: The pool that the cache lies in.
        tree: Its prefix tree; None looks nothing up.
        window: Tokens that a query sees, its own included; blocks that fall out are let go. None for all.
        hold_finished: Whether a finished request keeps its blocks until `release`, as when its KV is to
            be sent elsewhere.

    Raises:
        BadInput: A policy that cannot run.
        Unsupported: A window and a prefix tree: blocks that a window let go of cannot be found again.
    """

    def __init__(
        self,
        policy: Policy,
        blocks: Blocks,
        tree: PrefixTree | None = None,
        *,
        window: int | None = None,
        hold_finished: bool = False,
    ) -> None:
        check_policy(policy)
        if window is not None and tree is not None:
            raise Unsupported("prefix reuse with a sliding window", where="scheduler")
        self.policy, self.blocks, self.tree = policy, blocks, tree
        self.jobs: dict[int, Job] = {}
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []
        self.receiving: dict[int, Job] = {}
        self.held: dict[int, Job] = {}
        self.preemptions = 0
        self._admission = Admission(policy, blocks, tree, window)
        self._hold = hold_finished
        self._changed = True
        self._draft = Draft()

    def add(
        self,
        request: int,
        prompt_tokens: int,
        output_tokens: int,
        *,
        keys: Sequence[Hashable] = (),
        scope: Scope = Scope(),  # noqa: B008
        prefilled: bool = False,
        arriving: bool = False,
    ) -> Job:
        """Put a request at the end of the waiting queue and return its job.

        Args:
            request: Its number, not in use.
            prompt_tokens: Tokens of its prompt.
            output_tokens: Tokens to generate in all; it may be stopped earlier.
            keys: Names of the prompt's full blocks (`block_keys`).
            scope: Model and adapter.
            prefilled: Its prompt was run elsewhere, which sampled the first token; blocks for it are
                taken here.
            arriving: The same, and its KV is still to be sent: `receive` gives it blocks, `arrived`
                lets it run.

        Raises:
            BadInput: A number in use, a length that cannot be, or tokens that never fit into the pool.
        """
        least = 2 if prefilled or arriving else 1
        if request in self.jobs:
            raise BadInput("is in use", where=f"request {request}")
        if prompt_tokens < 1 or output_tokens < least:
            raise BadInput(
                f"{prompt_tokens} prompt and {output_tokens} output tokens",
                where=f"request {request}",
                way_out=f"give at least 1 and {least}",
            )
        job = Job(request, prompt_tokens, output_tokens, keys, scope)
        if prefilled or arriving:
            job.computed, job.known, job.arriving = prompt_tokens, prompt_tokens + 1, arriving
        self._admission.check_fits(job)
        self.jobs[request] = job
        self.waiting.append(job)
        self._changed = True
        return job

    def fits(self, prompt_tokens: int, output_tokens: int) -> bool:
        """Return whether a request can run when it is alone."""
        return self._admission.fits(Job(-1, prompt_tokens, output_tokens, (), Scope()))

    def next_round(self) -> Round:
        """Return what runs in the next step; no members when nothing can, though blocks may have moved."""
        self._draft = draft = Draft()
        if self.policy.name == "chunked":
            self._give_decodes_a_token()
            stalled = self._continue_prompts()
            if not (stalled or draft.preempted) or not draft.members:
                self._admit(self.policy.max_num_batched_tokens - draft.tokens, whole=False)
        elif self.policy.name == "continuous":
            self._admit(self.policy.max_num_batched_tokens, whole=True)
            if all(member.query_len == 1 for member in draft.members):
                self._give_decodes_a_token()
            if draft.preempted and not draft.members:
                self._admit(self.policy.max_num_batched_tokens, whole=True)
        else:
            if self.running:
                self._give_decodes_a_token()
            if not self.running:
                self._admit(None, whole=True)
        self._changed = False
        return draft.round(self.blocks.used_blocks)

    def complete(self, done: Round, stopped: Collection[int] = ()) -> tuple[int, ...]:
        """Take note that a round has run; return the requests that it finished.

        Full blocks of prompts enter the prefix tree here, which may put an equal block in place of a
        sequence's own: block tables are to be read anew for the next round.

        Args:
            done: The round that `next_round` returned last.
            stopped: Members whose sampled token ends them before their length does.
        """
        finished, jobs, slides = [], self.jobs, self._admission.window is not None
        for request, _, kv_len, samples in done.members:
            job = jobs[request]
            job.computed = kv_len
            if job.node is not None and job.indexed < len(job.keys):
                self._remember(job)
            if slides:
                self._admission.slide(job)
            if samples:
                job.known += 1
                if job.known > job.most_tokens or request in stopped:
                    finished.append(request)
        for request in finished:
            self._finish(self.jobs[request])
        return tuple(finished)

    def steady_rounds(self, last: Round) -> int:
        """Return how many rounds equal to `last`, just completed, follow if nothing is added meanwhile.

        Equal means the same members with a token each, nobody admitted, preempted or finished.
        """
        same = len(last.members) == len(self.running)
        if self._changed or not last.members or not same or last.admitted or last.preempted:
            return 0
        if self.waiting and self._admission.window is not None:
            return 0
        rounds = min([job.most_tokens - job.known for job in self.running])
        if rounds < 1 or not all(m.query_len == 1 and m.samples for m in last.members):
            return 0
        if any(job.node is not None and job.indexed < len(job.keys) for job in self.running):
            return 0
        needed = self.blocks.needed
        while rounds and sum(max(needed(job.request, rounds) - job.promise, 0) for job in self.running) > max(
            self._admission.unpromised, 0
        ):
            rounds //= 2
        return rounds

    def advance(self, rounds: int) -> None:
        """Do at once what that many `steady_rounds` would do one after another: every job gets a token."""
        size, grow = self.blocks.block_size, self._admission.grow
        crossings = sorted(
            (turn, place)
            for place, job in enumerate(self.running)
            for turn in range(-job.computed % size, rounds, size)
        )
        for turn, place in crossings:
            job = self.running[place]
            grow(job, turn + 1 - (self.blocks.tokens(job.request) - job.computed))
        for job in self.running:
            grow(job, rounds - (self.blocks.tokens(job.request) - job.computed))
            job.computed += rounds
            job.known += rounds
            if self._admission.window is not None:
                self._admission.slide(job)

    def receive(self) -> tuple[int, ...]:
        """Give blocks to the arriving requests at the head of the queue; return those that got them."""
        taken = []
        while self.waiting and self.waiting[0].arriving and self._has_slot():
            job = self.waiting[0]
            if not self._admission.admit(job, None):
                break
            self.waiting.popleft()
            self.receiving[job.request] = job
            taken.append(job.request)
        return tuple(taken)

    def arrived(self, request: int) -> None:
        """Let a request run whose KV has arrived in the blocks that `receive` gave it."""
        job = self.receiving.pop(request)
        job.arriving = False
        self.running.append(job)
        self._changed = True

    def fork(self, parent: int, child: int, output_tokens: int) -> bool:
        """Begin `child` as a copy of the running `parent`, as for several samples of one prompt.

        All blocks are shared until one of the two writes. Returns False, and begins nothing, for want of
        blocks or of a place.

        Raises:
            BadInput: A number in use, or an output no longer than what was generated.
        """
        source = self.jobs[parent]
        if child in self.jobs or source not in self.running:
            raise BadInput(f"cannot become a copy of {parent}", where=f"request {child}")
        if output_tokens <= source.generated:
            raise BadInput(f"{output_tokens} output tokens are there already", where=f"request {child}")
        job = Job(child, source.prompt, output_tokens, source.keys, source.scope)
        job.known, job.computed, job.cached = source.known, source.computed, source.computed
        job.node, job.indexed = source.node, source.indexed
        self._admission.check_fits(job)
        if not self._has_slot() or not self._admission.fork(source, job):
            return False
        self.jobs[child] = job
        self.running.append(job)
        self._changed = True
        return True

    def release(self, request: int) -> None:
        """Free the blocks of a finished request that were held."""
        del self.held[request]
        self.blocks.free(request)
        self._changed = True

    def _give_decodes_a_token(self) -> None:
        """Put every running decode into the round, the oldest first; the newest make room for them."""
        draft, fill = self._draft, self.blocks.fill
        members, preempted = draft.members, draft.preempted
        placed = {member.request for member in members}
        room = self.policy.max_num_batched_tokens if self.policy.name == "chunked" else None
        for job in tuple(self.running):
            request, known = job.request, job.known
            if known - job.computed != 1 or request in placed or request in preempted:
                continue
            if len(members) == room:
                break
            if fill(request, 1):
                members.append(decoding(request, known))
                if known == job.most_tokens:
                    draft.finished.append(request)
                continue
            copies = self._admission.grow(job, 1)
            while copies is None and self.running[-1].request not in placed:
                victim = self.running[-1]
                self._preempt(victim)
                if victim is job:
                    break
                copies = self._admission.grow(job, 1)
            if copies is not None:
                draft.place(job, 1, copies)

    def _continue_prompts(self) -> bool:
        """Put chunks of prompts that have begun into the round; return whether one found no blocks.

        Where nothing else runs, the newest make room for the oldest.
        """
        draft, stalled = self._draft, False
        left = self.policy.max_num_batched_tokens - draft.tokens
        for job in tuple(self.running):
            if left < 1:
                break
            if job.known - job.computed == 1 or job.request in draft.preempted:
                continue
            chunk = min(job.pending, left)
            copies = self._admission.grow(job, chunk)
            while copies is None and not draft.members and self.running[-1] is not job:
                self._preempt(self.running[-1])
                copies = self._admission.grow(job, chunk)
            if copies is None:
                stalled = True
            else:
                draft.place(job, chunk, copies)
                left -= chunk
        return stalled

    def _admit(self, left: int | None, *, whole: bool) -> None:
        """Begin waiting requests in their order while there are slots, blocks and `left` tokens (or any)."""
        while self.waiting and self._has_slot() and not self.waiting[0].arriving:
            if left is not None and left < 1:
                break
            placed = self._begin(self.waiting[0], left, whole=whole)
            if placed is None:
                break
            left = None if left is None else left - placed

    def _begin(self, job: Job, left: int | None, *, whole: bool) -> int | None:
        """Begin the request at the head of the queue; return the tokens it runs now, None if it must wait."""
        draft = self._draft
        if job.swapped:
            copies = self._admission.admit_swapped(job)
            if copies is None:
                return None
            draft.swapped_in += copies
            job.swapped = False
        else:
            if whole and left is not None and draft.members and self._uncached(job) > left:
                return None
            if not self._admission.admit(job, None if whole else left):
                return None
        self.waiting.popleft()
        self.running.append(job)
        draft.admitted.append(job.request)
        tokens = job.pending if whole or left is None else min(job.pending, left)
        copies = self._admission.grow(job, tokens)
        if copies is None:
            return 0
        draft.place(job, tokens, copies)
        return tokens

    def _uncached(self, job: Job) -> int:
        """Return the tokens of a waiting job that its first step would run."""
        if self.tree is None or job.computed:
            return job.pending
        size = self.blocks.block_size
        return job.known - size * len(self.tree.match(job.scope, job.keys[: (job.known - 1) // size]))

    def _preempt(self, job: Job) -> None:
        """Take the blocks of the newest running job and put it back at the head of the queue."""
        draft = self._draft
        assert self.running.pop() is job
        self._admission.withdraw(job)
        copies: tuple[Copy, ...] | None = None
        if self.policy.preemption == "swap":
            copies = self.blocks.swap_out(job.request)
        if copies is None:
            self.blocks.free(job.request)
            job.computed = 0
        else:
            job.swapped = True
            draft.swapped_out += copies
        job.node = None
        job.preemptions += 1
        self.preemptions += 1
        self.waiting.appendleft(job)
        draft.preempted.append(job.request)

    def _remember(self, job: Job) -> None:
        """Put the prompt's blocks that are now full into the prefix tree."""
        assert self.tree is not None
        full = min(job.computed // self.blocks.block_size, len(job.keys))
        while job.indexed < full:
            assert job.node is not None
            job.node = self.tree.extend(job.node, job.keys[job.indexed], job.request, job.indexed)
            job.indexed += 1

    def _finish(self, job: Job) -> None:
        self.running.remove(job)
        self._admission.withdraw(job)
        del self.jobs[job.request]
        if self._hold:
            self.held[job.request] = job
        else:
            self.blocks.free(job.request)
        self._changed = True

    def _has_slot(self) -> bool:
        return len(self.running) + len(self.receiving) < self.policy.max_num_seqs
