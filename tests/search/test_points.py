import numpy as np
import pytest

from kvroof.search.points import served
from kvroof.search.question import Question
from kvroof.serving.demand.lengths import fixed, from_percentiles
from kvroof.serving.pools.goodput import limits
from kvroof.serving.steady.closed_loop import closed_loop
from kvroof.serving.step_times import PlanTimes
from kvroof.spec.workload import decode

EXACT = {"rel": 1e-12}


@pytest.fixture(scope="module")
def plan(choose):
    """Return a function that makes one plan."""
    return lambda model="llama-3.1-8b", machine="h100-sxm", **axes: choose(model, machine, **axes)[0]


@pytest.mark.parametrize("seqs", [1, 7, 130])
def test_whole_prompts_are_the_closed_loop_of_the_plan(plan, ask, seqs):
    deployment, question = plan(tp=1, pp=1), ask(2000, 300)
    found = served(deployment, question, [seqs])
    loop = closed_loop(PlanTimes(deployment), isl=2000, osl=300, concurrency=seqs, mixes=True)
    assert (found.ttft_s[0], found.tpot_s[0]) == pytest.approx((loop.ttft_s, loop.tpot_s), **EXACT)
    assert found.rate_per_s[0] == pytest.approx(loop.requests_per_s, **EXACT)


@pytest.mark.parametrize(
    ("model", "axes"),
    [
        ("llama-3.1-8b", {"tp": 2, "pp": 4}),
        ("qwen3-30b-a3b", {"tp": 1, "pp": 1, "dp": 4, "ep": 4}),
        ("deepseek-v2-lite", {"tp": 1, "pp": 2}),
    ],
)
def test_points_together_are_those_one_by_one(plan, ask, model, axes):
    deployment, question = plan(model, most_devices=8, **axes), ask(1500, 200)
    sizes, chunks = np.array([1, 2, 3, 9, 64]), np.array([128, 512, 1500, 384, 2048])
    for chunk in (None, chunks):
        together = served(deployment, question, sizes, chunk)
        for i, size in enumerate(sizes):
            alone = served(deployment, question, [size], None if chunk is None else chunk[i : i + 1])
            for name in ("ttft_s", "tpot_s", "e2e_s", "rate_per_s", "load"):
                assert getattr(together, name)[i] == pytest.approx(getattr(alone, name)[0], **EXACT)


def test_whole_sequences_are_run_whole_on_the_fullest_rank(plan, ask):
    deployment = plan("llama-3.1-8b", tp=1, pp=4)
    step = deployment.seconds(decode(5, 4500))
    assert served(deployment, ask(4000, 1000), [5]).decode_s[0] == pytest.approx(step, **EXACT)


def test_relaxed_points_are_near_whole_ones(plan, ask):
    deployment, question = plan(tp=1, pp=1), ask(4096, 500)
    sizes, chunks = np.array([4, 32, 100]), np.array([512, 1024, 2048])
    whole, real = (
        served(deployment, question, sizes.astype(kind), chunks.astype(kind)) for kind in (int, float)
    )
    assert real.tpot_s == pytest.approx(whole.tpot_s, rel=0.02)
    assert real.ttft_s == pytest.approx(whole.ttft_s, rel=0.02)


def test_chunks_keep_up_with_the_steps_where_they_carry_what_arrives(plan, ask):
    found = served(plan(tp=1, pp=1), ask(4000, 1000), [64, 64], [128, 512])
    assert found.load == pytest.approx([64 * 4000 / 1000 / 128, 64 * 4000 / 1000 / 512])


def test_longer_prompts_at_the_percentile_come_later_than_the_mean(plan):
    deployment = plan(tp=1, pp=1)

    def ttft(isl, share):
        question = Question(isl=isl, osl=fixed(200), limits=limits(None, None, share))
        return served(deployment, question, [16]).ttft_s[0]

    spread = from_percentiles(1000, 4000)
    assert ttft(spread, 0.5) < ttft(spread, 0.9) < ttft(spread, 0.99)
    assert ttft(fixed(1000), 0.5) == ttft(fixed(1000), 0.99)


def test_cached_tokens_are_not_run_again(plan, ask):
    deployment = plan(tp=1, pp=1)
    cold, warm = (served(deployment, ask(4000, 500, cached=cached), [8]) for cached in (0, 3000))
    assert warm.ttft_s[0] < 0.5 * cold.ttft_s[0]
    assert warm.tpot_s[0] < cold.tpot_s[0]
