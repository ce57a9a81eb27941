"""Blocks go from one engine to another: only contents travel, and only between engines alike."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from kvroof import BadInput
from kvroof.engine.handoff import hand_off
from kvroof.memory.allocators import Allocator
from kvroof.memory.demand import ragged
from kvroof.memory.kv import cache_bytes
from kvroof.schedule.policies import Policy

from .small_engines import ask, prompts_with_prefix, runner, small, with_dtype

FLOAT32 = with_dtype("float32")
POLICY = Policy(name="continuous", max_num_seqs=4)
PROMPTS = prompts_with_prefix((3, 6))


@pytest.fixture(scope="module", autouse=True)
def quick_compiles():
    """Less time spent compiling."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def _prefilled(name="llama-3.1-8b", output=1, settings=FLOAT32):
    engine = runner(small(name), POLICY, settings, pack_finished=True)
    engine.run(ask(PROMPTS, output))
    return engine


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gpt-oss-20b"])
def test_what_moves_is_what_the_ledger_allocates_for_the_request(name):
    source, target = _prefilled(name), runner(small(name), POLICY, FLOAT32)
    stored = source.executor.kv_format, source.executor.state_format
    moved = [hand_off(source, target, number, 4) for number in range(2)]
    for transfer, prompt in zip(moved, PROMPTS, strict=True):
        assert transfer.kv_len == len(prompt)
        lengths, paged = ragged([len(prompt)]), Allocator(name="paged", block_size=4)
        assert transfer.moved_bytes == cache_bytes(source.model, lengths, paged, *stored)


def test_the_other_engine_has_its_own_block_table_with_the_same_contents():
    source, target = _prefilled(), runner(small("llama-3.1-8b"), POLICY, FLOAT32, order=range(19))
    before = source.books.rounds[0].tables[0].blocks
    hand_off(source, target, 0, 4)
    target.round()
    after = target.blocks.block_table(0)
    assert after != before
    for here, there in zip(before[:4], after[:4], strict=True):
        for mine, theirs in zip(source.executor.cache.pages, target.executor.cache.pages, strict=True):
            assert np.array_equal(mine.k[:, here], theirs.k[:, there])
            assert np.array_equal(mine.v[:, here], theirs.v[:, there])
    assert source.blocks.used_blocks == 0


def test_a_first_token_sampled_elsewhere_has_no_time_here():
    source, target = _prefilled(), runner(small("llama-3.1-8b"), POLICY, FLOAT32)
    hand_off(source, target, 0, 4)
    target.run()
    (request,) = target.report().requests
    assert request.ttft_s is None
    assert len(request.output) == 4
    assert request.output[0] == source.report().requests[0].output[0]


def test_engines_with_other_blocks_are_refused():
    source = _prefilled()
    other = runner(small("llama-3.1-8b"), POLICY, replace(FLOAT32, block_size=8))
    with pytest.raises(BadInput, match="blocks differ"):
        hand_off(source, other, 0, 4)


def test_a_request_that_was_not_packed_or_ran_on_is_refused():
    target = runner(small("llama-3.1-8b"), POLICY, FLOAT32)
    with pytest.raises(BadInput, match="not packed"):
        hand_off(_prefilled(), target, 7, 4)
    with pytest.raises(BadInput, match="ask for one token"):
        hand_off(_prefilled(output=2), target, 0, 4)
