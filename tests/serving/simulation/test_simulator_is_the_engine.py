"""The simulator runs the schedule that the real engine runs: the same rounds in the same order, to the block.

Every step takes a second here, so that requests that come at whole seconds come before the same round in
both. The engine is a small one, and computes; what it samples plays no part.
"""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvroof.engine.requests import Request as Prompt
from kvroof.memory.prefix_tree import block_keys
from kvroof.schedule.policies import Policy
from kvroof.serving.demand.requests import Request
from kvroof.serving.simulation.instances import Pool
from kvroof.serving.simulation.simulator import simulate
from tests.engine.small_engines import SCALE, SETTINGS, runner, small, with_dtype
from tests.serving.steps import constant

MODEL = small("llama-3.1-8b")
FLOAT32 = with_dtype("float32")
LONGEST = 28
"""Tokens of a request at most: seven of the nineteen blocks, so that three of them may have to give way."""


@pytest.fixture(scope="module", autouse=True)
def quick_compiles():
    """Less time spent compiling."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@st.composite
def prompts(draw, sharing):
    """Draw prompts in order of arrival; some begin with the same tokens."""
    common = np.random.default_rng(3).integers(0, SCALE.vocab_size, LONGEST).tolist()
    made, now = [], 0
    for number in range(draw(st.integers(2, 8))):
        now += draw(st.sampled_from([0, 0, 0, 1, 3, 12]))
        length = draw(st.integers(1, 20))
        same = min(draw(st.sampled_from([0, 4, 9, 16])), length) if sharing else 0
        own = np.random.default_rng(100 + number).integers(0, SCALE.vocab_size, length - same).tolist()
        outputs = draw(st.integers(1, LONGEST - length))
        asked = Prompt(
            request=number, tokens=(*common[:same], *own), output_tokens=outputs, arrival_s=float(now)
        )
        made.append(asked)
    return made


def as_engine(asked, policy, sharing):
    """Return an engine that has served the prompts, each in the queue before the round of its second."""
    engine = runner(MODEL, policy, FLOAT32, share_prefixes=sharing)
    coming, now = list(asked), 0.0
    while coming or engine.scheduler.jobs:
        while coming and coming[0].arrival_s <= now:
            engine.add(coming.pop(0))
        if not engine.scheduler.jobs:
            now = coming[0].arrival_s
        elif engine.round().ran:
            now += 1.0
    return engine


def as_simulation(asked, policy, sharing):
    """Return a simulation of the same prompts, known to it by their blocks' names."""
    names = {}
    requests = []
    for prompt in asked:
        keys = block_keys(prompt.tokens, FLOAT32.block_size)
        requests.append(
            Request(
                arrival_s=prompt.arrival_s,
                input_tokens=len(prompt.tokens),
                output_tokens=prompt.output_tokens,
                block_hashes=tuple(names.setdefault(key, len(names)) for key in keys),
                hash_block_size=FLOAT32.block_size,
            )
        )
    pool = Pool(
        step_s=constant(1.0),
        num_blocks=SETTINGS.num_blocks,
        block_size=SETTINGS.block_size,
        host_blocks=SETTINGS.host_blocks,
        policy=policy,
        prefix_cache=sharing,
    )
    return simulate(requests, pool, trace=True)


@settings(max_examples=6, deadline=None)
@given(st.data())
@pytest.mark.parametrize("sharing", [False, True], ids=["apart", "sharing"])
@pytest.mark.parametrize("name", ["static", "continuous", "chunked"])
def test_rounds_and_blocks_are_the_engines(name, sharing, data):
    policy = Policy(
        name=name,
        max_num_seqs=4,
        max_num_batched_tokens=data.draw(st.sampled_from([5, 11, 32])),
        reserve=data.draw(st.sampled_from(["none", "prompt", "output"])),
        preemption=data.draw(st.sampled_from(["recompute", "swap"])),
    )
    asked = data.draw(prompts(sharing))
    engine, run = as_engine(asked, policy, sharing), as_simulation(asked, policy, sharing)
    rounds = [done for done in engine.books.rounds if done.ran]
    assert run.rounds == len(rounds)
    left = iter(rounds)
    for span in run.spans:
        for later in range(span.rounds):
            done = next(left)
            engines = [(ran.request, ran.query_len, ran.kv_len) for ran in done.ran]
            assert engines == [(m.request, m.query_len, m.kv_len + later) for m in span.members]
        assert done.used_blocks == span.used_blocks
    records = engine.report().requests
    assert [r.preemptions for r in records] == [s.preemptions for s in run.served]
    assert [r.cached_tokens for r in records] == [s.cached_tokens for s in run.served]
    assert [len(r.output) for r in records] == [s.output_tokens for s in run.served]


def test_the_comparison_meets_preemption_and_shared_blocks():
    """Five requests that outgrow the cache, of one beginning: what the drawn ones are to be held against."""
    common = tuple(range(16))
    asked = [Prompt(request=n, tokens=(*common, n, n + 1), output_tokens=10) for n in range(5)]
    for sharing, preemption in ((False, "recompute"), (False, "swap"), (True, "recompute")):
        policy = Policy(name="continuous", max_num_seqs=4, reserve="none", preemption=preemption)
        engine, run = as_engine(asked, policy, sharing), as_simulation(asked, policy, sharing)
        assert (engine.scheduler.preemptions == run.preemptions > 0) != sharing
        assert [done.used_blocks for done in engine.books.rounds if done.ran][-1] == run.spans[-1].used_blocks
        assert (run.hit_tokens > 0) == sharing
