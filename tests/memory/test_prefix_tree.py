"""Exact-prefix reuse: what may be shared, what may not, and who goes when blocks run out."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvroof.memory.blocks import BlockMisuse, Blocks
from kvroof.memory.prefix_tree import PrefixTree, Scope, block_keys

SCOPE = Scope(model="weights-1")


class Cache:
    """A pool with its tree, and the way a schedule uses them."""

    def __init__(self, num_blocks=100, block_size=4):
        self.blocks = Blocks(num_blocks, block_size)
        self.tree = PrefixTree(self.blocks)
        self.next = 0

    def found(self, tokens, scope=SCOPE):
        return 4 * len(self.tree.match(scope, block_keys(tokens, 4)))

    def run(self, tokens, scope=SCOPE):
        """Run a prompt, put its full blocks into the tree, and return its sequence."""
        seq, keys = self.next, block_keys(tokens, 4)
        self.next += 1
        nodes = self.tree.match(scope, keys)
        self.tree.count(len(tokens), 4 * len(nodes))
        self.blocks.start(seq, [node.block for node in nodes])
        assert self.blocks.append(seq, len(tokens) - 4 * len(nodes)) is not None
        node = nodes[-1] if nodes else self.tree.root(scope)
        for index in range(len(nodes), len(keys)):
            node = self.tree.extend(node, keys[index], seq, index)
        return seq

    def serve(self, tokens, scope=SCOPE):
        self.blocks.free(self.run(tokens, scope))


def test_a_finished_prompt_is_found_again_block_by_block():
    cache = Cache()
    cache.serve(range(10))
    assert cache.found(range(10)) == 8
    assert cache.found(range(7)) == 4
    assert cache.found(range(3)) == 0
    assert (cache.blocks.idle_blocks, cache.blocks.free_blocks) == (2, 100)


def test_row_13_a_changed_token_invalidates_what_follows_and_nothing_before_it():
    cache = Cache()
    cache.serve(range(16))
    for changed in range(16):
        other = [99 if position == changed else position for position in range(16)]
        assert cache.found(other) == changed // 4 * 4


def test_row_13_another_model_or_adapter_or_position_shares_nothing():
    cache = Cache()
    cache.serve(range(16))
    assert cache.found(range(16), Scope(model="weights-2")) == 0
    assert cache.found(range(16), Scope(model="weights-1", adapter="lora")) == 0
    assert cache.found(range(4, 16)) == 0
    assert cache.found([0, 0, 0, 0, *range(16)]) == 0


def test_two_prompts_hold_their_common_blocks_once():
    cache = Cache()
    first, second = cache.run([*range(8), 1, 1, 1, 1]), cache.run([*range(8), 2, 2, 2, 2])
    assert cache.blocks.block_table(first)[:2] == cache.blocks.block_table(second)[:2]
    assert cache.blocks.used_blocks == 4
    assert cache.blocks.references(cache.blocks.block_table(first)[0]) == 3, "both, and the tree"


def test_equal_blocks_run_at_once_become_one():
    cache = Cache()
    for seq in (0, 1):
        cache.blocks.start(seq)
        cache.blocks.append(seq, 9)
    assert cache.blocks.used_blocks == 6
    for seq in (0, 1):
        node = cache.tree.root(SCOPE)
        for index, key in enumerate(block_keys(range(8), 4)):
            node = cache.tree.extend(node, key, seq, index)
    assert cache.blocks.used_blocks == 4
    assert cache.blocks.block_table(0)[:2] == cache.blocks.block_table(1)[:2]
    assert cache.blocks.block_table(0)[2] != cache.blocks.block_table(1)[2]


def test_hits_are_counted_apart_from_what_was_asked_for():
    cache = Cache()
    assert cache.tree.hit_rate == 0
    cache.serve(range(10))
    cache.serve(range(10))
    assert (cache.tree.requested_tokens, cache.tree.hit_tokens) == (20, 8)
    assert cache.tree.hit_rate == 0.4


def test_the_prompt_unused_longest_goes_first_and_its_last_block_before_its_first():
    cache = Cache(num_blocks=6)
    cache.serve([1] * 8)
    cache.serve([2] * 8)
    cache.serve([1] * 8)
    cache.serve([3] * 12)
    assert (cache.found([1] * 8), cache.found([2] * 8), cache.found([3] * 12)) == (8, 4, 12)
    assert cache.tree.evictions == 1
    cache.serve([4] * 4)
    assert (cache.found([1] * 8), cache.found([2] * 8)) == (8, 0)


def test_a_block_in_use_is_never_taken():
    cache = Cache(num_blocks=4)
    cache.run(range(8))
    cache.serve([9] * 8)
    cache.blocks.start(50)
    assert cache.blocks.append(50, 8) == ()
    assert cache.blocks.append(50, 1) is None
    assert cache.found(range(8)) == 8
    assert cache.found([9] * 8) == 0


def test_a_pool_has_one_tree():
    with pytest.raises(BlockMisuse):
        PrefixTree(Cache().blocks)


prompts = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=14), max_size=12)


@given(prompts)
def test_with_room_for_all_a_prompt_finds_exactly_its_longest_common_run(history):
    cache, served = Cache(num_blocks=1000), []
    for prompt in history:
        known = [
            max(n for n in range(0, len(prompt) + 1, 4) if prompt[:n] == other[:n] and n <= len(other))
            for other in served
        ]
        assert cache.found(prompt) == max(known, default=0)
        cache.serve(prompt)
        served.append(prompt)


@settings(max_examples=200)
@given(prompts, st.integers(4, 9), st.data())
def test_whatever_is_evicted_no_leaf_is_lost_and_nothing_leaks(history, num_blocks, data):
    cache, running = Cache(num_blocks=num_blocks), []
    for prompt in history:
        idle_before = cache.blocks.idle_blocks
        hits = [n.block for n in cache.tree.match(SCOPE, block_keys(prompt, 4))]
        needed = -(-len(prompt) // 4) - len(hits)
        if needed > cache.blocks.free_blocks - sum(cache.blocks.is_idle(b) for b in hits):
            if running:
                cache.blocks.free(running.pop(data.draw(st.integers(0, len(running) - 1))))
            continue
        running.append(cache.run(prompt))
        assert cache.found(prompt) == len(prompt) // 4 * 4
        assert cache.blocks.idle_blocks <= idle_before
    for seq in running:
        cache.blocks.free(seq)
    assert cache.blocks.free_blocks == num_blocks
    assert cache.blocks.idle_blocks == cache.tree.cached_blocks
