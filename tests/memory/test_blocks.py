"""The block allocator: the seed lessons' numbers, and a model of the bytes that it must never spoil."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvroof.ground.errors import BadInput
from kvroof.memory.blocks import HOLE, BlockMisuse, Blocks


def pool(num_blocks=16, block_size=4, **choices):
    return Blocks(num_blocks, block_size, **choices)


def started(blocks, seq, tokens):
    blocks.start(seq)
    assert blocks.append(seq, tokens) == ()


def empty_slots(blocks, seq):
    return blocks.held_blocks(seq) * blocks.block_size - blocks.tokens(seq)


def test_row_7_six_tokens_take_two_blocks_and_the_ninth_a_third():
    blocks = pool()
    started(blocks, 0, 6)
    assert (blocks.held_blocks(0), empty_slots(blocks, 0)) == (2, 2)
    for _ in range(2):
        blocks.append(0, 1)
        assert blocks.held_blocks(0) == 2
    blocks.append(0, 1)
    assert (blocks.held_blocks(0), empty_slots(blocks, 0)) == (3, 3)


def test_row_8_logical_blocks_keep_their_order_wherever_they_lie():
    blocks = pool(order=[7, 1, 5, *(b for b in range(16) if b not in (7, 1, 5))])
    started(blocks, 0, 12)
    assert blocks.block_table(0) == (7, 1, 5)
    assert [blocks.block_table(0)[position // 4] for position in (0, 3, 4, 11)] == [7, 7, 1, 5]


@pytest.mark.parametrize(("tokens", "held", "empty"), [(18, 2, 14), (33, 3, 15)])
def test_rows_9_and_10_the_last_block_counts_whole(tokens, held, empty):
    blocks = pool(block_size=16)
    started(blocks, 0, tokens)
    assert (blocks.held_blocks(0), empty_slots(blocks, 0)) == (held, empty)


@pytest.mark.parametrize(("requests", "unshared", "shared"), [(2, 768, 512), (3, 1152, 640)])
def test_rows_11_and_12_a_shared_prefix_is_held_once(requests, unshared, shared):
    """4,096 shared and 2,048 own tokens each; at 2 MiB a block of 16: 1.5 and 1 GiB, 2.25 and 1.25 GiB."""
    apart, together = pool(2000, 16), pool(2000, 16)
    for request in range(requests):
        started(apart, request, 6144)
    started(together, 0, 4096)
    for request in range(1, requests):
        together.fork(0, request)
    for request in range(requests):
        assert together.append(request, 2048) == ()
    assert apart.used_blocks == unshared
    assert together.used_blocks == shared


def test_row_13_writing_into_a_shared_tail_copies_it_first():
    blocks = pool()
    started(blocks, 0, 6)
    blocks.fork(0, 1)
    shared = blocks.block_table(0)
    assert blocks.block_table(1) == shared
    assert blocks.needed(1, 1) == 1
    (copy,) = blocks.append(1, 1)
    assert copy.src == shared[1]
    assert blocks.block_table(1) == (shared[0], copy.dst)
    assert blocks.block_table(0) == shared
    assert blocks.append(0, 1) == (), "the parent is alone with its tail again"


def test_row_13_a_shared_block_goes_with_its_last_holder():
    blocks = pool()
    started(blocks, 0, 8)
    blocks.fork(0, 1)
    blocks.free(0)
    assert blocks.used_blocks == 2
    blocks.free(1)
    assert blocks.free_blocks == 16


def test_a_full_shared_block_is_never_copied():
    blocks = pool()
    started(blocks, 0, 8)
    blocks.fork(0, 1)
    assert blocks.append(1, 1) == ()
    assert blocks.block_table(1)[:2] == blocks.block_table(0)


def test_out_of_blocks_is_an_answer_and_changes_nothing():
    blocks = pool(num_blocks=2)
    started(blocks, 0, 7)
    before = (blocks.block_table(0), blocks.tokens(0), blocks.free_blocks)
    assert blocks.append(0, 2) is None
    assert (blocks.block_table(0), blocks.tokens(0), blocks.free_blocks) == before
    blocks.fork(0, 1)
    assert blocks.append(1, 1) is None, "the tail's copy needs a block"


def test_a_window_leaves_holes_where_blocks_were():
    blocks = pool()
    started(blocks, 0, 14)
    assert blocks.drop_before(0, 9) == 2
    assert blocks.block_table(0)[:2] == (HOLE, HOLE)
    assert blocks.held_blocks(0) == 2
    assert blocks.drop_before(0, 9) == 0
    blocks.append(0, 4)
    assert len(blocks.block_table(0)) == 5
    blocks.free(0)
    assert blocks.free_blocks == 16


def test_a_sequence_can_start_where_a_window_has_already_moved_on():
    blocks = pool()
    blocks.start(0, holes=2)
    assert blocks.tokens(0) == 8
    blocks.append(0, 3)
    assert blocks.block_table(0) == (HOLE, HOLE, 0)
    blocks.free(0)
    assert blocks.free_blocks == 16


def test_swapping_out_frees_the_device_and_coming_back_keeps_the_order():
    blocks = pool(num_blocks=4, host_blocks=3)
    started(blocks, 0, 10)
    there = blocks.swap_out(0)
    assert [copy.src for copy in there] == [0, 1, 2]
    assert (blocks.free_blocks, blocks.host_free_blocks) == (4, 0)
    assert blocks.is_swapped(0)
    started(blocks, 1, 4)
    back = blocks.swap_in(0)
    assert [copy.src for copy in back] == [copy.dst for copy in there]
    assert blocks.block_table(0) == tuple(copy.dst for copy in back)
    assert blocks.tokens(0) == 10
    assert blocks.host_free_blocks == 3


def test_a_swap_without_room_is_an_answer():
    blocks = pool(num_blocks=3, host_blocks=2)
    started(blocks, 0, 12)
    assert blocks.swap_out(0) is None
    blocks.shrink(0, 8)
    assert blocks.swap_out(0) is not None
    started(blocks, 1, 8)
    assert blocks.swap_in(0) is None
    blocks.free(0)
    assert blocks.host_free_blocks == 2


def test_tokens_taken_back_free_the_blocks_they_leave_empty():
    blocks = pool()
    started(blocks, 0, 11)
    blocks.shrink(0, 4)
    assert (blocks.tokens(0), blocks.held_blocks(0)) == (4, 1)
    assert blocks.used_blocks == 1


@pytest.mark.parametrize(
    "mistake",
    [
        lambda b: b.free(9),
        lambda b: (b.free(0), b.free(0)),
        lambda b: b.start(0),
        lambda b: b.start(5, [15]),
        lambda b: b.fork(9, 5),
        lambda b: b.fork(0, 1),
        lambda b: b.append(2, 1),
        lambda b: b.fill(2, 1),
        lambda b: b.swap_out(2),
        lambda b: b.swap_in(0),
        lambda b: b.shrink(0, 99),
        lambda b: b.drop_before(0, 99),
        lambda b: b.keep(0, 1),
        lambda b: (b.keep(0, 0), b.keep(0, 0)),
        lambda b: b.share(0, 1, 0),
        lambda b: b.share(0, 0, 15),
        lambda b: (b.tell_evictions(print), b.tell_evictions(print)),
    ],
)
def test_mistakes_raise(mistake):
    blocks = pool(host_blocks=4)
    for seq in range(3):
        started(blocks, seq, 6)
    blocks.swap_out(2)
    with pytest.raises(BlockMisuse):
        mistake(blocks)


@pytest.mark.parametrize(
    "made",
    [
        lambda: Blocks(0),
        lambda: Blocks(4, 0),
        lambda: Blocks(4, 16, host_blocks=-1),
        lambda: Blocks(3, 16, order=[0, 1, 1]),
    ],
)
def test_a_pool_that_cannot_be_is_refused(made):
    with pytest.raises(BadInput):
        made()


class World:
    """A pool with the bytes it manages: every sequence must read back exactly what was written for it."""

    def __init__(self):
        self.blocks = Blocks(24, 4, host_blocks=10)
        self.blocks.tell_evictions(self.kept_blocks_taken)
        self.device = [[None] * 4 for _ in range(24)]
        self.host = [[None] * 4 for _ in range(10)]
        self.written = {}
        self.dropped = {}
        self.kept = set()
        self.clock = 0

    def kept_blocks_taken(self, block):
        assert block in self.kept
        self.kept.remove(block)

    def do(self, choice, pick, size):
        seqs = list(self.written)
        known = seqs[pick % len(seqs)] if seqs else None
        if known is None or choice == 0:
            if len(seqs) < 8:
                self.blocks.start(self.clock)
                self.written[self.clock], self.dropped[self.clock] = [], 0
        elif self.blocks.is_swapped(known) and choice not in (5, 6):
            copies = self.blocks.swap_in(known)
            for src, dst in copies or ():
                self.device[dst] = list(self.host[src])
        elif choice in (1, 2, 3):
            self.append(known, size)
        elif choice == 4:
            if len(seqs) < 8:
                self.blocks.fork(known, self.clock)
                self.written[self.clock] = list(self.written[known])
                self.dropped[self.clock] = self.dropped[known]
        elif choice == 5:
            self.blocks.free(known)
            del self.written[known], self.dropped[known]
        elif choice == 6 and not self.blocks.is_swapped(known):
            for src, dst in self.blocks.swap_out(known) or ():
                self.host[dst] = list(self.device[src])
        elif choice == 7:
            before = size * len(self.written[known]) // 16
            self.blocks.drop_before(known, before)
            self.dropped[known] = max(self.dropped[known], before // 4)
        elif choice == 8:
            length = max(len(self.written[known]) - size, self.dropped[known] * 4)
            self.blocks.shrink(known, length)
            del self.written[known][length:]
        elif choice == 9:
            full = len(self.written[known]) // 4
            if full > self.dropped[known] and self.blocks.block_table(known)[full - 1] not in self.kept:
                self.kept.add(self.blocks.keep(known, full - 1))
        self.clock += 1

    def append(self, seq, size):
        wanted, free = self.blocks.needed(seq, size), self.blocks.free_blocks
        filled = size % 2 == 1 and self.blocks.fill(seq, size)
        copies = () if filled else self.blocks.append(seq, size)
        assert (copies is None) == (wanted > free)
        if copies is None:
            return
        for src, dst in copies:
            self.device[dst] = list(self.device[src])
        table = self.blocks.block_table(seq)
        for _ in range(size):
            position = len(self.written[seq])
            block = table[position // 4]
            assert self.blocks.references(block) == 1, "a shared block is written"
            self.device[block][position % 4] = (seq, self.clock, position)
            self.written[seq].append((seq, self.clock, position))

    def check(self):
        blocks, held = self.blocks, {}
        host_held = 0
        for seq, tokens in self.written.items():
            table, swapped = blocks.block_table(seq), blocks.is_swapped(seq)
            assert blocks.tokens(seq) == len(tokens)
            assert len(table) == -(-len(tokens) // 4)
            memory, first = (self.host if swapped else self.device), self.dropped[seq]
            assert all(block == HOLE for block in table[:first])
            read = [memory[table[p // 4]][p % 4] for p in range(first * 4, len(tokens))]
            assert read == tokens[first * 4 :]
            for block in table[first:]:
                assert block >= 0
                held[block] = held.get(block, 0) + (not swapped)
            host_held += len(table[first:]) * swapped
        for block in range(24):
            assert blocks.references(block) == held.get(block, 0) + (block in self.kept)
            assert blocks.is_idle(block) == (block in self.kept and not held.get(block, 0))
        assert blocks.used_blocks == sum(count > 0 for count in held.values())
        assert blocks.host_free_blocks == 10 - host_held

    def end(self):
        for seq in list(self.written):
            self.blocks.free(seq)
        assert self.blocks.free_blocks == 24
        assert self.blocks.host_free_blocks == 10
        assert self.blocks.idle_blocks == len(self.kept)
        assert self.blocks.sequences == ()


class AnyHistory(RuleBasedStateMachine):
    """Any history of operations keeps every byte, every count, and leaks nothing."""

    def __init__(self):
        super().__init__()
        self.world = World()

    @rule(choice=st.integers(0, 9), pick=st.integers(0, 7), size=st.integers(1, 9))
    def operate(self, choice, pick, size):
        self.world.do(choice, pick, size)

    @invariant()
    def every_byte_and_count_is_right(self):
        self.world.check()

    def teardown(self):
        self.world.end()


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(max_examples=40, stateful_step_count=50, deadline=None)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32))
def test_ten_thousand_random_operations_leak_nothing(seed):
    """Ten histories of 10,000 operations: every write is checked, and all the bytes after every fifth."""
    source, world = random.Random(seed), World()
    for turn in range(10_000):
        number = source.getrandbits(30)
        world.do(number % 10, number // 10 % 8, 1 + number // 80 % 9)
        if turn % 5 == 0:
            world.check()
    world.end()
