"""Greedy tokens do not depend on how the engine is run: paged or not, shared, preempted, cut up, moved.

The reference runs every sequence whole for each token, with nothing cached, and latents expanded. The ways
of running share their compiled steps, so they stand in one test per kind of model.
"""

from dataclasses import replace

import jax
import pytest

from kvroof.engine.handoff import hand_off
from kvroof.schedule.policies import Policy

from .small_engines import SETTINGS, ask, outputs, prompts_with_prefix, runner, small, whole_outputs

KINDS = {
    "MHA": "llama-2-7b",
    "GQA": "llama-3.1-8b",
    "MQA beside the MLP": "falcon-7b",
    "sliding, sinks, experts": "gpt-oss-20b",
    "chunked": "llama-3.1-8b with chunks",
    "latent": "deepseek-v2-lite",
    "layers that share a cache": "gemma-4-e4b",
    "delta rule": "qwen3-next-80b-a3b",
    "Mamba-2 beside attention": "falcon-h1-3b-base",
}
TIGHT = replace(SETTINGS, block_size=8, num_blocks=10, fewest_queries=40, fewest_blocks=5)
"""Fewer blocks than the requests take in the end, so some are preempted; none is longer than 40 tokens."""
OUTPUT = 10
TAILS = (5, 2, 13, 9)
PROMPTS = prompts_with_prefix(TAILS)
CONTINUOUS = Policy(name="continuous", max_num_seqs=4, reserve="output")
STATIC = Policy(name="static", max_num_seqs=4, reserve="output")
CHUNKED = Policy(name="chunked", max_num_seqs=4, max_num_batched_tokens=11, reserve="output")
RECOMPUTED = Policy(name="continuous", max_num_seqs=4, reserve="none")
SWAPPED = Policy(name="continuous", max_num_seqs=4, reserve="none", preemption="swap")
ONE_BY_ONE = Policy(name="chunked", max_num_seqs=1, max_num_batched_tokens=1)
CHUNKED_AND_RECOMPUTED = Policy(name="chunked", max_num_seqs=4, max_num_batched_tokens=16, reserve="none")


@pytest.fixture(scope="module", autouse=True)
def quick_compiles():
    """64-bit floats, and less time spent compiling."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_enable_x64", before)
    jax.config.update("jax_disable_most_optimizations", False)


def _served(name, policy, dtype="float64", **options):
    engine = runner(small(name), policy, replace(TIGHT, dtype=dtype), **options)
    engine.run(ask(PROMPTS, OUTPUT))
    assert engine.blocks.used_blocks == 0, "a block leaked"
    return engine


@pytest.mark.parametrize("name", KINDS.values(), ids=KINDS)
def test_tokens_do_not_depend_on_how_the_engine_is_run(name):
    tokens, margins = whole_outputs(small(name), PROMPTS, OUTPUT)

    paged = _served(name, CONTINUOUS)
    assert outputs(paged) == tokens, "continuous batching over pages"
    assert all(done.held_bytes == done.unshared_bytes for done in paged.books.rounds), "bytes held"

    assert outputs(_served(name, STATIC)) == tokens, "static batching"

    chunked = _served(name, CHUNKED)
    assert any(1 < ran.query_len < 11 for done in chunked.books.rounds for ran in done.ran)
    assert outputs(chunked) == tokens, "chunked prefill"

    shared = _served(name, CHUNKED, share_prefixes=True)
    assert sum(request.cached_tokens > 0 for request in shared.report().requests) == 3
    assert outputs(shared) == tokens, "a shared prefix"

    for policy, options in (
        (RECOMPUTED, {}),
        (SWAPPED, {}),
        (CHUNKED_AND_RECOMPUTED, {"share_prefixes": True}),
    ):
        preempted = _served(name, policy, **options)
        assert preempted.scheduler.preemptions > 0
        assert outputs(preempted) == tokens, f"preemption: {policy}"

    assert outputs(_handed_off(name)) == tokens, "prefill and decode in two engines"
    assert outputs(_forked(name)) == [tokens[0], tokens[0]], "a copy of a running request"

    single = _served(name, ONE_BY_ONE, dtype="float32", share_prefixes=True)
    _assert_equal_where_clear(outputs(single), tokens, margins)


def _handed_off(name):
    first = runner(small(name), CONTINUOUS, TIGHT, pack_finished=True)
    first.run(ask(PROMPTS, 1))
    second = runner(small(name), CONTINUOUS, TIGHT, order=reversed(range(10)))
    for number in range(len(PROMPTS)):
        hand_off(first, second, number, OUTPUT)
    second.run()
    return second


def _forked(name):
    engine = runner(small(name), CONTINUOUS, TIGHT)
    engine.add(ask(PROMPTS, OUTPUT)[0])
    for _ in range(3):
        engine.round()
    assert engine.fork(0, 1, OUTPUT)
    assert engine.round().copied_blocks == 1
    engine.run()
    return engine


def _assert_equal_where_clear(found, tokens, margins):
    """Assert that float32 picks the same tokens, as far as each sequence's margins are beyond rounding."""
    compared = 0
    for got, wanted, lead in zip(found, tokens, margins, strict=True):
        clear = next((i for i, margin in enumerate(lead) if margin <= 1e-4), OUTPUT)
        assert got[:clear] == wanted[:clear]
        compared += clear
    assert compared >= OUTPUT * len(TAILS) // 2, "too few margins are wide"
