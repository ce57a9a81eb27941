"""A deployment in the simulator: its memory is the ledger's, its times are the plan's."""

from dataclasses import replace

import pytest

from kvroof.calibration.load import load_calibration
from kvroof.ground.errors import BadInput, Unsupported
from kvroof.memory.ledger import fit
from kvroof.roofline.plan import Plan
from kvroof.schedule.policies import Policy
from kvroof.serving.demand.requests import poisson
from kvroof.serving.simulation.replay import Deployed, pool_of, replay
from kvroof.serving.steady.closed_loop import closed_loop
from kvroof.serving.step_times import PlanTimes
from kvroof.spec.parallel import Layout
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


CROWD = requests(60, rate=30.0, isl=1500, osl=600)


def crowded(plan=PLAN, preemption="swap", **rest):
    """Return a deployment whose cache is too small for all of `CROWD`."""
    return Deployed(plan=plan, reserve_bytes=58 * 10**9, policy=Policy(preemption=preemption), **rest)


def with_host_link(bytes_per_s):
    link = replace(PLAN.hardware.host, bytes_per_s=bytes_per_s)
    return replace(PLAN, hardware=replace(PLAN.hardware, host=link))


def test_the_host_holds_the_blocks_that_its_engine_logs():
    # 8 KV heads of 128, K and V of 32 layers in bf16: 2 MiB a block; vLLM v0 logs "# CPU blocks: 2048"
    assert pool_of(crowded(), CROWD).host_blocks == 2048
    assert pool_of(crowded(replace(PLAN, layout=Layout(tp=2))), CROWD).host_blocks == 4096
    assert pool_of(crowded(block_size=512), CROWD).host_blocks == 64
    assert pool_of(crowded(preemption="recompute"), CROWD).host_blocks == 0


def test_what_is_swapped_is_not_run_again_and_waits_for_the_link():
    recomputed = replay(CROWD, crowded(preemption="recompute")).summary()
    slow, fast = (replay(CROWD, crowded(with_host_link(rate))).summary() for rate in (1e9, 1e15))
    assert min(recomputed.preemptions, slow.preemptions, fast.preemptions) > 0
    assert fast.makespan_s < recomputed.makespan_s < slow.makespan_s


def test_a_host_without_room_for_a_sequence_leaves_it_to_be_computed_again():
    tight = replay(CROWD, crowded(swap_space_bytes=2**21))
    assert tight.summary() == replay(CROWD, crowded(preemption="recompute")).summary()


def test_swapping_needs_a_host_link_and_room():
    with pytest.raises(BadInput, match="hold no block"):
        pool_of(crowded(swap_space_bytes=0), CROWD)
    with pytest.raises(Unsupported, match="host memory"):
        pool_of(crowded(replace(PLAN, hardware=replace(PLAN.hardware, host=None))), CROWD)
