"""The running engine keeps the books that the seed lessons work out by hand, and loses nothing."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from kvroof import BadInput
from kvroof.engine.handoff import hand_off
from kvroof.engine.requests import Request
from kvroof.engine.runner import Runner
from kvroof.memory.allocators import Allocator
from kvroof.memory.demand import ragged
from kvroof.memory.kv import cache_bytes
from kvroof.schedule.policies import Policy

from .small_engines import SETTINGS, ask, outputs, prompts_with_prefix, runner, small, with_dtype

MODEL = small("llama-3.1-8b")
FLOAT32 = with_dtype("float32")
CONTINUOUS = Policy(name="continuous", max_num_seqs=4)


@pytest.fixture(scope="module", autouse=True)
def quick_compiles():
    """Less time spent compiling."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def _engine(policy=CONTINUOUS, settings=FLOAT32, model=MODEL, **options):
    return runner(model, policy, settings, **options)


def _prompt(length, seed=0):
    return tuple(np.random.default_rng(seed).integers(0, MODEL.vocab_size, length).tolist())


def _blocks_and_empty(done):
    (table,) = done.tables
    return len(table.blocks), 4 * len(table.blocks) - table.kv_len


def test_blocks_of_four_hold_six_to_nine_tokens():
    # Seed row 7: T = 6: 2 blocks, 2 slots empty; tokens 7 and 8 fill them; token 9: 3 blocks, 3 slots empty.
    engine = _engine()
    engine.run(ask([_prompt(6)], 4))
    assert [done.tables[0].kv_len for done in engine.books.rounds] == [6, 7, 8, 9]
    assert [_blocks_and_empty(done) for done in engine.books.rounds] == [(2, 2), (2, 1), (2, 0), (3, 3)]


def test_a_block_table_is_read_in_logical_order():
    # Seed row 8: logical 0, 1, 2 lie in physical 7, 1, 5; order and tokens are those of any other placement.
    order = [7, 1, 5, *(block for block in range(19) if block not in (7, 1, 5))]
    scattered, plain = _engine(order=order), _engine(order=range(19))
    for engine in (scattered, plain):
        engine.run(ask([_prompt(9)], 4))
    assert [table.blocks for table in scattered.books.rounds[0].tables] == [(7, 1, 5)]
    assert [table.blocks for table in plain.books.rounds[0].tables] == [(0, 1, 2)]
    assert outputs(scattered) == outputs(plain)
    pages = [engine.executor.cache.pages[0] for engine in (scattered, plain)]
    for logical, (here, there) in enumerate(zip((7, 1), (0, 1), strict=True)):
        assert np.array_equal(pages[0].k[:, here], pages[1].k[:, there]), f"logical block {logical}"


def test_three_requests_that_share_a_prefix_hold_five_ninths():
    # Seed row 12: 3 x (4,096 shared + 2,048 own) tokens: 2.25 GiB -> 1.25 GiB. Here 3 x (16 + 8).
    engine = _engine(share_prefixes=True)
    engine.run(ask(prompts_with_prefix((7, 7, 7)), 2))
    last = engine.books.rounds[-1]
    assert [table.kv_len for table in last.tables] == [24, 24, 24]
    assert (last.unshared_bytes, last.held_bytes) == (
        18 * engine.books.block_bytes[0],
        10 * engine.books.block_bytes[0],
    )
    assert last.unshared_bytes * 125 == last.held_bytes * 225
    assert len(last.shared_blocks) == 4
    once = ragged([24, 24, 24], shared_prefix=16)
    stored = engine.executor.kv_format, engine.executor.state_format
    assert last.held_bytes == cache_bytes(MODEL, once, Allocator(name="paged", block_size=4), *stored)


def test_only_an_exact_prefix_is_reused():
    # Seed row 13: a changed token invalidates everything after it, nothing before it; positions count.
    prompt = _prompt(20)
    changed = (*prompt[:9], (prompt[9] + 1) % MODEL.vocab_size, *prompt[10:])
    engine = _engine(share_prefixes=True)
    for number, tokens in enumerate((prompt, prompt, changed, (*prompt[1:], 0))):
        engine.run([Request(request=number, tokens=tokens, output_tokens=1)])
    assert [request.cached_tokens for request in engine.report().requests] == [0, 16, 8, 0]
    alone = _engine()
    alone.run([Request(request=2, tokens=changed, output_tokens=1)])
    assert outputs(alone) == outputs(engine)[2:3]


def test_a_finished_request_frees_its_own_blocks_and_a_shared_one_goes_with_its_last_user():
    # Seed row 13, continued.
    engine = _engine(share_prefixes=True)
    engine.run([Request(request=9, tokens=(*_prompt(16), 1), output_tokens=1)])
    assert engine.blocks.used_blocks == 0
    short = Request(request=0, tokens=(*_prompt(16), 2), output_tokens=2)
    long = Request(request=1, tokens=(*_prompt(16), 3), output_tokens=8)
    engine.run([short, long])
    both, alone = engine.books.rounds[2], engine.books.rounds[3]
    assert len(both.shared_blocks) == 4
    assert both.finished == (0,)
    assert both.used_blocks == 4 + 2
    assert (alone.shared_blocks, alone.used_blocks) == ((), 4 + 1)
    assert engine.blocks.used_blocks == 0


def test_writing_into_a_shared_last_block_copies_it_first():
    # Seed row 13, continued.
    engine = _engine()
    engine.add(Request(request=0, tokens=_prompt(18), output_tokens=6))
    engine.round()
    tail = engine.blocks.block_table(0)[4]
    before = np.asarray(engine.executor.cache.pages[0].k[:, tail, :2])
    assert engine.fork(0, 1, 6)
    assert engine.blocks.block_table(1)[4] == tail
    done = engine.round()
    assert done.copied_blocks == 1
    assert len(done.shared_blocks) == 4
    places = [table.blocks[4] for table in done.tables]
    assert len(set(places)) == 2
    for place in places:
        assert np.array_equal(engine.executor.cache.pages[0].k[:, place, :2], before)
    engine.run()
    assert outputs(engine)[0] == outputs(engine)[1]
    assert engine.blocks.used_blocks == 0


def _three_prefilled(policy):
    """Serve A, B and C, prompts done, which need 2, 4 and 2 rounds."""
    first = _engine(replace(policy, max_num_seqs=4, name="continuous"), pack_finished=True)
    first.run(ask([_prompt(6, seed) for seed in range(3)], 1))
    second = _engine(policy)
    for number, rounds in enumerate((2, 4, 2)):
        hand_off(first, second, number, 1 + rounds)
    second.run()
    return second


def test_static_batching_takes_six_rounds_and_the_third_request_waits():
    # Seed row 14: two slots; C runs in rounds 5-6; a slot is idle in 3-4 while C waits, and in 5-6.
    engine = _three_prefilled(Policy(name="static", max_num_seqs=2))
    assert [tuple(ran.request for ran in done.ran) for done in engine.books.rounds] == [
        (0, 1), (0, 1), (1,), (1,), (2,), (2,)
    ]  # fmt: skip
    assert [(done.idle_slots, done.waiting) for done in engine.books.rounds] == [
        (0, (2,)), (0, (2,)), (1, (2,)), (1, (2,)), (1, ()), (1, ())
    ]  # fmt: skip


def test_continuous_batching_takes_four_rounds_of_the_same_work():
    # Seed row 15: C joins in round 3; the tokens run are the same, in 4 rounds in place of 6.
    static = _three_prefilled(Policy(name="static", max_num_seqs=2))
    engine = _three_prefilled(Policy(name="continuous", max_num_seqs=2))
    assert [tuple(sorted(ran.request for ran in done.ran)) for done in engine.books.rounds] == [
        (0, 1), (0, 1), (1, 2), (1, 2)
    ]  # fmt: skip

    def work(served):
        return sum(ran.query_len for done in served.books.rounds for ran in done.ran)

    assert work(engine) == work(static) == 8
    assert outputs(engine) == outputs(static)


def test_ragged_lengths_hold_their_own_blocks_not_the_longest_ones():
    # Seed row 16: payload is the sum of T; padding to the longest is another account.
    engine = _engine()
    engine.run(ask([_prompt(length, length) for length in (5, 18, 9)], 1))
    done = engine.books.rounds[0]
    size = engine.books.block_bytes[0]
    assert [len(table.blocks) for table in done.tables] == [2, 5, 3]
    assert done.held_bytes == done.unshared_bytes == (2 + 5 + 3) * size
    stored = engine.executor.kv_format, engine.executor.state_format
    lengths = ragged([5, 18, 9])
    assert cache_bytes(MODEL, lengths, Allocator(name="payload"), *stored) == 32 * size // 4
    assert cache_bytes(MODEL, lengths, Allocator(name="padded"), *stored) == 3 * 18 * size // 4


def test_the_arrays_take_what_the_spec_says():
    engine = _engine(model=small("gpt-oss-20b"))
    report = engine.report()
    assert report.allocated_bytes == report.ledger_bytes == engine.executor.cache.nbytes


def test_every_token_has_its_time():
    engine = _engine()
    engine.run(ask([_prompt(9), _prompt(12, 1)], 5))
    report = engine.report()
    for request in report.requests:
        assert len(request.itl_s) == len(request.output) - 1 == 4
        assert 0 < request.ttft_s < report.makespan_s
        assert request.ttft_s + sum(request.itl_s) == pytest.approx(request.token_s[-1])
        assert all(seconds > 0 for seconds in request.itl_s)
    ends = [done.start_s + done.seconds for done in report.rounds]
    assert all(end <= later.start_s for end, later in zip(ends, report.rounds[1:], strict=False))
    assert all(sum(s.seconds for s in done.steps) <= done.seconds for done in report.rounds)


def test_a_request_that_arrives_later_begins_later():
    engine = _engine()
    engine.run(
        [
            Request(request=0, tokens=_prompt(6), output_tokens=2),
            Request(request=1, tokens=_prompt(7), output_tokens=2, arrival_s=0.2),
        ]
    )
    first = next(done for done in engine.books.rounds if 1 in done.admitted)
    assert first.start_s >= 0.2
    assert engine.report().requests[1].ttft_s < first.start_s + first.seconds


def test_windows_are_reused_only_with_snapshots():
    with pytest.raises(BadInput, match="snapshots"):
        Runner(small("gpt-oss-20b"), CONTINUOUS, replace(SETTINGS, snapshots=0), share_prefixes=True)


def test_an_engine_says_which_request_never_fits():
    engine = _engine()
    with pytest.raises(BadInput, match="request 0"):
        engine.run(ask([_prompt(80)], 4))
