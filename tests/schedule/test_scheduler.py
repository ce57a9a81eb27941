"""Who runs in the next step: the seed lessons' rounds, and laws that every policy keeps."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvroof.ground.errors import BadInput, Unsupported
from kvroof.memory.blocks import HOLE, Blocks
from kvroof.memory.prefix_tree import PrefixTree, Scope
from kvroof.schedule.policies import Policy
from kvroof.schedule.scheduler import Scheduler

from .machine import Machine, expected, random_policy, random_prompt, random_source

ROUNDS = {"A": 2, "B": 4, "C": 2}


def lesson(name):
    """Return the members of each round: A, B, C need 2, 4, 2 rounds, prefill done, two slots."""
    scheduler = Scheduler(Policy(name=name, max_num_seqs=2), Blocks(100, 4))
    for number, rounds in enumerate(ROUNDS.values()):
        scheduler.add(number, 3, rounds + 1, prefilled=True)
    seen = []
    while scheduler.jobs:
        decided = scheduler.next_round()
        scheduler.complete(decided)
        seen.append({"ABC"[member.request] for member in decided.members})
    assert scheduler.blocks.free_blocks == 100
    return seen


def test_row_14_static_batching_lets_c_wait_for_the_whole_batch():
    assert lesson("static") == [{"A", "B"}, {"A", "B"}, {"B"}, {"B"}, {"C"}, {"C"}]


def test_row_14_a_slot_is_idle_while_c_waits():
    idle = [2 - len(members) for members in lesson("static")]
    assert idle == [0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize("name", ["continuous", "chunked"])
def test_row_15_continuous_batching_lets_c_join_in_round_3(name):
    assert lesson(name) == [{"A", "B"}, {"A", "B"}, {"B", "C"}, {"B", "C"}]


def test_row_15_the_total_work_is_the_same():
    """6 rounds against 4 are no speed-up of 1.5: as many tokens are run."""
    assert sum(map(len, lesson("static"))) == sum(map(len, lesson("continuous"))) == sum(ROUNDS.values())


def chunks(machine, request):
    return [m.query_len for r in machine.rounds for m in r.members if m.request == request]


def test_static_runs_the_prompts_of_a_batch_in_one_step():
    machine = Machine(Policy(name="static", max_num_seqs=3, max_num_batched_tokens=1))
    for request in range(3):
        machine.add(request, [request] * 5, 3)
    machine.run()
    assert [r.tokens for r in machine.rounds] == [15, 3, 3]


def test_continuous_never_mixes_prompts_with_decodes():
    machine = Machine(Policy(name="continuous", max_num_batched_tokens=8))
    machine.add(0, [0] * 5, 9)
    machine.step()
    machine.add(1, [1] * 5, 2)
    machine.add(2, [2] * 5, 2)
    machine.run()
    shapes = [[m.query_len for m in r.members] for r in machine.rounds]
    assert shapes[:4] == [[5], [5], [5], [1, 1, 1]]


def test_a_prompt_longer_than_the_budget_runs_alone():
    machine = Machine(Policy(name="continuous", max_num_batched_tokens=4))
    machine.add(0, [0] * 9, 2)
    machine.add(1, [1] * 3, 2)
    machine.run()
    assert [r.tokens for r in machine.rounds[:2]] == [9, 3]


def test_chunked_prefill_fills_the_budget_that_decodes_leave():
    machine = Machine(Policy(max_num_seqs=4, max_num_batched_tokens=8), num_blocks=40)
    machine.add(0, [0] * 3, 9)
    machine.step()
    machine.add(1, [1] * 20, 2)
    machine.run()
    assert [[m.query_len for m in r.members] for r in machine.rounds[:5]] == [
        [3],
        [1, 7],
        [1, 7],
        [1, 6],
        [1, 1],
    ]
    assert [m.samples for r in machine.rounds for m in r.members if m.request == 1] == [
        False,
        False,
        True,
        True,
    ]


def test_admission_by_prompt_waits_for_blocks_and_by_output_for_more():
    """Six blocks of 4; a request of 8 prompt and 5 output tokens takes 2 blocks, then 3."""
    admitted = {}
    for reserve in ("prompt", "output"):
        machine = Machine(Policy(reserve=reserve), num_blocks=7)
        for request in range(3):
            machine.add(request, [request] * 8, 5)
        admitted[reserve] = len(machine.step().admitted)
        machine.run()
        assert (machine.scheduler.preemptions > 0) == (reserve == "prompt")
    assert admitted == {"prompt": 3, "output": 2}


def test_the_newest_makes_room_and_comes_back_first():
    machine = Machine(Policy(name="continuous"), num_blocks=4)
    machine.add(0, [0] * 8, 8)
    machine.add(1, [1] * 7, 8)
    machine.add(2, [2] * 8, 2)
    machine.run()
    assert [r.preempted for r in machine.rounds if r.preempted] == [(1,), (2,)]
    again = next(i for i, r in enumerate(machine.rounds) if 1 in r.admitted and i > 0)
    third = next(i for i, r in enumerate(machine.rounds) if 2 in r.admitted)
    assert again <= third
    for request in range(3):
        assert machine.answer(request) == expected(machine.prompts[request], 8 if request < 2 else 2)


def test_swapping_keeps_what_recomputing_runs_again():
    work = {}
    for preemption in ("recompute", "swap"):
        machine = Machine(Policy(preemption=preemption), num_blocks=4, host_blocks=4)
        machine.add(0, [0] * 8, 8)
        machine.add(1, [1] * 7, 8)
        machine.run()
        assert machine.scheduler.preemptions == 1
        assert any(r.swapped_out for r in machine.rounds) == (preemption == "swap")
        work[preemption] = machine.computed_tokens
    assert work["swap"] == 8 + 7 + 7 + 7
    assert work["recompute"] > work["swap"]


def test_a_prefix_in_the_cache_is_not_run_again():
    machine = Machine(Policy(), reuse=True)
    machine.add(0, [1, 2, 3, 4, 5, 6, 7, 8, 9], 2)
    machine.run()
    machine.add(1, [1, 2, 3, 4, 5, 6, 7, 8, 0], 2)
    job = machine.scheduler.jobs[1]
    machine.run()
    assert job.cached == 8
    assert chunks(machine, 1) == [1, 1]
    assert (machine.tree.requested_tokens, machine.tree.hit_tokens) == (18, 8)


def test_the_last_prompt_token_is_run_even_where_all_of_it_is_cached():
    machine = Machine(Policy(), reuse=True)
    for request in range(2):
        machine.add(request, [1, 2, 3, 4, 5, 6, 7, 8], 1)
        machine.run()
    assert chunks(machine, 1) == [4]


def test_prompts_of_another_adapter_share_nothing():
    machine = Machine(Policy(), reuse=True)
    machine.add(0, [1] * 9, 1)
    machine.run()
    machine.add(1, [1] * 9, 1, scope=Scope(adapter="lora"))
    machine.run()
    assert chunks(machine, 1) == [9]


def test_a_fork_shares_blocks_until_one_of_the_two_writes():
    machine = Machine(Policy())
    machine.add(0, [1] * 5, 6)
    machine.step()
    assert machine.scheduler.fork(0, 1, 4)
    machine.tokens[1], machine.prompts[1] = list(machine.tokens[0]), [1] * 5
    assert machine.blocks.used_blocks == 2
    decided = machine.step()
    assert len(decided.copies) == 1
    assert machine.blocks.used_blocks == 3
    machine.run()
    assert machine.answer(0) == expected([1] * 5, 6)
    assert machine.answer(1) == expected([1] * 5, 4)
    assert machine.blocks.free_blocks == 24


def test_a_fork_without_room_or_place_is_an_answer():
    machine = Machine(Policy(max_num_seqs=1))
    machine.add(0, [1] * 5, 6)
    machine.step()
    assert not machine.scheduler.fork(0, 1, 4)
    full = Machine(Policy(reserve="output"), num_blocks=3)
    full.add(0, [1] * 5, 6)
    full.step()
    assert not full.scheduler.fork(0, 1, 6)
    with pytest.raises(BadInput):
        full.scheduler.fork(0, 0, 6)
    with pytest.raises(BadInput):
        full.scheduler.fork(0, 1, 1)


def test_a_handed_over_request_runs_when_its_kv_has_arrived():
    scheduler = Scheduler(Policy(), Blocks(5, 4))
    scheduler.add(0, 8, 4, arriving=True)
    scheduler.add(1, 8, 4, arriving=True)
    scheduler.add(2, 8, 4, arriving=True)
    assert scheduler.next_round().members == ()
    assert scheduler.receive() == (0,), "two prompts take 4 blocks, and the second's next token a sixth"
    assert scheduler.blocks.tokens(0) == 8
    scheduler.arrived(0)
    decided = scheduler.next_round()
    assert [(m.query_len, m.kv_len, m.samples) for m in decided.members] == [(1, 9, True)]
    for _ in range(3):
        finished = scheduler.complete(decided)
        decided = scheduler.next_round()
    assert finished == (0,)
    assert scheduler.receive() == (1,)


def test_a_finished_request_keeps_its_blocks_until_they_are_released():
    scheduler = Scheduler(Policy(), Blocks(5, 4), hold_finished=True)
    scheduler.add(0, 8, 1)
    assert scheduler.complete(scheduler.next_round()) == (0,)
    assert (scheduler.blocks.used_blocks, tuple(scheduler.held)) == (2, (0,))
    scheduler.release(0)
    assert scheduler.blocks.free_blocks == 5


def test_a_request_can_be_stopped_before_its_length():
    scheduler = Scheduler(Policy(), Blocks(5, 4))
    scheduler.add(0, 3, 10)
    assert scheduler.complete(scheduler.next_round(), stopped={0}) == (0,)
    assert scheduler.blocks.free_blocks == 5


def test_a_window_keeps_no_more_blocks_than_it_sees():
    machine = Machine(Policy(max_num_batched_tokens=256), num_blocks=100, block_size=4, window=9)
    machine.add(0, [1, 0, 1], 100)
    while machine.scheduler.jobs:
        machine.step()
        if machine.scheduler.jobs:
            assert machine.blocks.used_blocks <= 3
    assert machine.answer(0) == expected([1, 0, 1], 100)


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"name": "fastest"}, "static, continuous, chunked"),
        ({"reserve": "all"}, "none, prompt, output"),
        ({"max_num_seqs": 0}, "positive"),
        ({"max_num_batched_tokens": 0}, "positive"),
        ({"max_num_seqs": 64, "max_num_batched_tokens": 32}, "each of 64"),
    ],
)
def test_a_policy_that_cannot_run_is_refused(changed, word):
    with pytest.raises(BadInput, match=word):
        Scheduler(Policy(**changed), Blocks(4))


def test_a_request_that_never_fits_is_refused():
    scheduler = Scheduler(Policy(), Blocks(4, 4))
    assert scheduler.fits(9, 8)
    assert not scheduler.fits(9, 9)
    with pytest.raises(BadInput, match="do not fit into 4 blocks"):
        scheduler.add(0, 9, 9)
    scheduler.add(1, 9, 8)
    with pytest.raises(BadInput, match="in use"):
        scheduler.add(1, 1, 1)
    with pytest.raises(BadInput, match="at least"):
        scheduler.add(2, 4, 1, prefilled=True)


def test_a_window_with_prefix_reuse_is_refused():
    blocks = Blocks(4)
    with pytest.raises(Unsupported):
        Scheduler(Policy(), blocks, PrefixTree(blocks), window=8)


def random_machine(seed):
    """Return a machine with a random policy, and requests that come while it runs."""
    source = random_source(seed)
    policy, choices = random_policy(source)
    machine = Machine(policy, **choices)
    later, number = [], source.randint(1, 12)
    while number:
        prompt, output = random_prompt(source, 20), source.randint(1, 12)
        number -= 1
        if machine.scheduler.fits(len(prompt), output):
            later.append((source.choice([0, 0, 1, 3]), prompt, output))
    return machine, later


def run_all(machine, later):
    outputs, waiting = {}, list(enumerate(later))
    while waiting or machine.scheduler.jobs:
        while waiting and (waiting[0][1][0] == 0 or not machine.scheduler.jobs):
            request, (_, prompt, output) = waiting.pop(0)
            machine.add(request, prompt, output)
            outputs[request] = output
        if waiting:
            request, (gap, prompt, output) = waiting[0]
            waiting[0] = (request, (gap - 1, prompt, output))
        assert machine.step().members
    return outputs


@settings(max_examples=500, deadline=None)
@given(st.integers(0, 2**32))
def test_however_it_is_scheduled_every_request_gets_its_own_tokens(seed):
    """Policies, admission, preemption both ways, prefix reuse and windows change when, never what."""
    machine, later = random_machine(seed)
    outputs = run_all(machine, later)
    for request, output in outputs.items():
        assert machine.answer(request) == expected(machine.prompts[request], output)
    assert len(outputs) == len(later)
    assert machine.blocks.free_blocks == machine.blocks.num_blocks
    assert machine.blocks.host_free_blocks == machine.blocks.host_blocks
    assert machine.scheduler._admission.promised == 0


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32))
def test_no_round_breaks_a_limit(seed):
    machine, later = random_machine(seed)
    run_all(machine, later)
    policy = machine.policy
    for decided in machine.rounds:
        members = decided.members
        assert len(members) <= policy.max_num_seqs
        assert len({m.request for m in members}) == len(members)
        assert all(1 <= m.query_len <= m.kv_len for m in members)
        assert 0 < decided.used_blocks <= machine.blocks.num_blocks
        if policy.name == "chunked":
            assert decided.tokens <= policy.max_num_batched_tokens
        if policy.name == "continuous" and not decided.decodes_only and len(members) > 1:
            assert decided.tokens <= policy.max_num_batched_tokens
        if policy.reserve == "output":
            assert not decided.preempted
    if not machine.scheduler.preemptions:
        cached = machine.tree.hit_tokens if machine.tree is not None else 0
        prompts = sum(len(prompt) for _, prompt, _ in later)
        assert machine.computed_tokens == prompts - cached + sum(output - 1 for _, _, output in later)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32))
def test_steady_rounds_at_once_are_the_rounds_one_by_one(seed):
    """After each round, what `advance` would do is compared with what the same rounds then really do."""
    slow, later = random_machine(seed)
    fast, _ = random_machine(seed)
    for request, (_, prompt, output) in enumerate(later):
        slow.add(request, prompt, output)
        fast.add(request, prompt, output)
    jumped = 0
    while fast.scheduler.jobs:
        last = fast.scheduler.next_round()
        slow_last = slow.scheduler.next_round()
        assert last == slow_last
        fast.scheduler.complete(last)
        slow.scheduler.complete(slow_last)
        rounds = fast.scheduler.steady_rounds(last)
        if rounds:
            fast.scheduler.advance(rounds)
            jumped += rounds
        for turn in range(1, rounds + 1):
            one = slow.scheduler.next_round()
            assert [m.request for m in one.members] == [m.request for m in last.members]
            assert [m.kv_len - turn for m in one.members] == [m.kv_len for m in last.members]
            assert (one.admitted, one.preempted, one.finished) == ((), (), ())
            assert slow.scheduler.complete(one) == ()
        for seq in slow.blocks.sequences:
            tables = slow.blocks.block_table(seq), fast.blocks.block_table(seq)
            if slow.window is not None:  # dropped at once, so in another order
                tables = tuple([block == HOLE for block in table] for table in tables)
            assert tables[0] == tables[1]
        assert slow.blocks.free_blocks == fast.blocks.free_blocks
        assert slow.scheduler._admission.promised == fast.scheduler._admission.promised
    assert not slow.scheduler.jobs
