"""The table that the simulator asks is held against the deployment it was made of."""

import random
from statistics import median

import pytest

from kvroof.ground.errors import BadInput
from kvroof.roofline.plan import Plan
from kvroof.schedule.rounds import Member, Round
from kvroof.serving.simulation.step_batch import StepBatch
from kvroof.serving.simulation.step_table import StepTable
from kvroof.serving.step_times import AffineTimes, PlanTimes


def batch(decodes=(), prefills=()):
    members = [Member(number, 1, kv_len, True) for number, kv_len in enumerate(decodes)]
    members += [Member(1000 + number, q, q + before, False) for number, (q, before) in enumerate(prefills)]
    return StepBatch(Round(members=tuple(members), used_blocks=0))


def contexts(source):
    return [min(int(source.lognormvariate(8.5, 1)), 100_000) + 1 for _ in range(source.randint(1, 40))]


def chunk(source):
    return source.randint(2, 2048), source.choice([0, source.randint(1, 60_000)])


@pytest.fixture(scope="module", params=["llama-3.1-8b", "gemma-3-27b"])
def deployment(request):
    plan = Plan.of(request.param, "h100-sxm", tp=2)
    return plan, StepTable(PlanTimes(plan), most_tokens=131_072, most_query_tokens=8192)


def errors(deployment, batches):
    plan, table = deployment
    return sorted(abs(table(b) / plan.seconds(b.step()) - 1) for b in batches)


def test_decodes_are_within_1_per_cent(deployment):
    source = random.Random(1)
    assert max(errors(deployment, [batch(contexts(source)) for _ in range(25)])) < 0.01


def test_a_chunk_beside_decodes_is_within_2_per_cent(deployment):
    source = random.Random(2)
    found = errors(deployment, [batch(contexts(source), [chunk(source)]) for _ in range(25)])
    assert median(found) < 0.002
    assert max(found) < 0.02


def test_chunks_that_differ_are_within_5_per_cent(deployment):
    source = random.Random(3)
    batches = [batch(contexts(source), [chunk(source) for _ in range(3)]) for _ in range(25)]
    found = errors(deployment, batches)
    assert median(found) < 0.01
    assert max(found) < 0.05


def test_prompts_alone_are_a_prefill(deployment):
    assert max(errors(deployment, [batch((), [(n, 0)] * 2) for n in (16, 100, 1000, 4000)])) < 0.01


def test_affine_times_are_their_own_table():
    times = AffineTimes(prefill_start_s=0.02, token_s=1e-4, decode_start_s=0.01, seq_s=1e-4, cached_s=1e-7)
    table = StepTable(times, most_tokens=10_000, most_query_tokens=2048)
    assert table(batch([100, 300])) == pytest.approx(times.decode_s(2, 200))
    assert table(batch([100, 300], [(50, 70), (30, 0)])) == pytest.approx(times.mixed_s(40, 0, 2, 2, 200))
    assert table(batch((), [(50, 70)])) == pytest.approx(times.prefill_s(50, 70))


def test_the_lengths_of_decodes_are_kept_one_by_one():
    made = batch([3, 3, 9], [(5, 2)])
    assert (made.decodes, made.decode_kv, made.tokens) == (3, 15, 8)
    made.decode_kv += 3
    assert made.decode_lengths == [4, 4, 10]
    groups = [(g.count, g.query_len, g.kv_len, g.kind) for g in made.step().groups]
    assert groups == [(2, 1, 4, "decode"), (1, 1, 10, "decode"), (1, 5, 7, "prefill")]


def test_swapped_blocks_are_charged():
    times = AffineTimes(token_s=1e-4, decode_start_s=0.01)
    table = StepTable(times, most_tokens=100, most_query_tokens=10, swap_block_s=0.5)
    made = batch([4])
    made.swapped_blocks = 3
    assert table(made) == pytest.approx(1.51)


def test_a_table_of_nothing_is_refused():
    with pytest.raises(BadInput):
        StepTable(AffineTimes(token_s=1, decode_start_s=1), most_tokens=0, most_query_tokens=1)
