"""A deployment in the simulator: its memory is the ledger's, its times are the plan's."""

import pytest

from kvroof.calibration.load import load_calibration
from kvroof.ground.errors import BadInput
from kvroof.memory.ledger import fit
from kvroof.roofline.plan import Plan
from kvroof.schedule.policies import Policy
from kvroof.serving.demand.requests import poisson
from kvroof.serving.simulation.replay import Deployed, pool_of, replay
from kvroof.serving.steady.closed_loop import closed_loop
from kvroof.serving.step_times import PlanTimes
from kvroof.spec.workload import decode, prefill

PLAN = Plan.of("llama-3.1-8b", "h100-sxm", efficiency=load_calibration("auto", "h100-sxm"))


def requests(count=40, rate=1.0, isl=512, osl=64):
    return poisson(rate, count, input_tokens=isl, output_tokens=osl)


def test_the_pool_has_the_blocks_that_the_ledger_leaves():
    ledger = fit(PLAN.model, PLAN.hardware.capacity_bytes, tokens=576, utilization=0.9)
    assert pool_of(Deployed(plan=PLAN), requests()).num_blocks == ledger.kv_capacity_tokens // 16


def test_larger_blocks_hold_the_same_memory():
    small, large = (pool_of(Deployed(plan=PLAN, block_size=size), requests()) for size in (None, 512))
    assert (small.block_size, large.block_size) == (16, 512)
    assert large.num_blocks == small.num_blocks * 16 // 512
    with pytest.raises(BadInput):
        pool_of(Deployed(plan=PLAN, block_size=-1), requests())


def test_a_lone_request_takes_its_prefill_and_its_decodes():
    (served,) = replay(requests(1), Deployed(plan=PLAN)).served
    assert served.ttft_s == pytest.approx(PLAN.seconds(prefill(1, 512)), rel=0.01)
    steps = sum(PLAN.seconds(decode(1, n)) for n in range(513, 576))
    assert served.finish_s - served.first_token_s == pytest.approx(steps, rel=0.01)


def test_a_closed_loop_serves_at_the_rate_of_its_closed_form():
    ran = replay(requests(200, osl=512), Deployed(plan=PLAN), concurrency=16)
    form = closed_loop(PlanTimes(PLAN), isl=512, osl=512, concurrency=16)
    # the form has what clients add to each request and whole prompts between steps, the simulator has not
    assert ran.summary().tokens_per_s == pytest.approx(form.tokens_per_s, rel=0.1)


def test_two_pools_serve_every_request_and_the_link_costs_what_it_carries():
    near = replay(requests(), Deployed(plan=PLAN), decode=Deployed(plan=PLAN)).summary()
    assert near.completed == 40
    assert near.ttft_s.mean >= replay(requests(), Deployed(plan=PLAN)).summary().ttft_s.p50 * 0.9


def test_more_instances_shorten_the_queue():
    busy = requests(200, rate=60.0, osl=16)
    one, four = (replay(busy, Deployed(plan=PLAN, instances=n)).summary() for n in (1, 4))
    assert four.queue_s.mean < one.queue_s.mean


@pytest.mark.parametrize(
    ("serving", "where"),
    [
        (Deployed(plan=Plan.of("llama-3.1-8b", "h100-sxm", dp=2)), "--dp"),
        (Deployed(plan=Plan.of("llama-3.1-405b", "h100-sxm")), "--tp"),
        (Deployed(plan=PLAN, policy=Policy(max_num_batched_tokens=8)), "--max-num-batched-tokens"),
    ],
)
def test_what_cannot_serve_is_refused(serving, where):
    with pytest.raises(BadInput) as caught:
        replay(requests(2), serving)
    assert caught.value.where == where
