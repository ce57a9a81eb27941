"""The simulator: nothing is lost, queues are what queueing theory says, and the seed lessons hold."""

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvroof.ground.errors import BadInput
from kvroof.schedule.policies import Policy
from kvroof.schedule.scheduler import Scheduler
from kvroof.serving.demand.requests import Request, poisson
from kvroof.serving.simulation.event_loop import EventLoop
from kvroof.serving.simulation.instances import Link, Pool
from kvroof.serving.simulation.metrics import percentiles
from kvroof.serving.simulation.schedule_trace import chrome_trace
from kvroof.serving.simulation.simulator import simulate
from tests.serving.steps import affine, at_once, constant, random_run


def one_pool(step_s=None, **changes):
    choices = {"step_s": step_s or affine(), "num_blocks": 10_000, "block_size": 16} | changes
    return Pool(**choices)


def rounds_of(run):
    return [({m.request for m in span.members}, span.rounds) for span in run.spans]


def prefill_done(name):
    """Simulate the lesson: A, B, C need 2, 4, 2 decode rounds; two slots; a prompt costs one round more."""
    requests = [Request(arrival_s=0, input_tokens=3, output_tokens=rounds + 1) for rounds in (2, 4, 2)]
    pool = one_pool(constant(1.0), policy=Policy(name=name, max_num_seqs=2))
    return simulate(requests, pool, trace=True)


def test_row_14_static_batching_runs_c_after_the_whole_batch():
    """One round for the prompts of each batch beside the lesson's: C's two rounds end at 5 + 1 + 2."""
    assert [s.finish_s for s in prefill_done("static").served] == [3.0, 5.0, 8.0]


def test_row_15_continuous_batching_lets_c_in_when_a_leaves():
    """C's prompt takes a round of its own, in which B waits."""
    assert [s.finish_s for s in prefill_done("continuous").served] == [3.0, 6.0, 6.0]


def test_row_15_rounds_are_not_milliseconds():
    """A step that takes twice as long for two sequences: the same six against four rounds gain nothing."""
    requests = [Request(arrival_s=0, input_tokens=1, output_tokens=rounds) for rounds in (2, 4, 2)]
    work = {}
    for name in ("static", "continuous"):
        pool = one_pool(lambda batch: float(batch.tokens), policy=Policy(name=name, max_num_seqs=2))
        run = simulate(requests, pool)
        work[name] = (run.rounds, run.summary().makespan_s)
    assert work == {"static": (6, 8.0), "continuous": (4, 8.0)}


def test_row_19_three_pressures_are_reported_apart():
    """Long inputs wait for prefill, long outputs for rounds, many at once for a place."""

    def figures(isl, osl, count):
        run = simulate(at_once(count, isl, osl), one_pool(policy=Policy(max_num_seqs=4)))
        s = run.summary()
        return s.queue_s.mean, s.ttft_s.mean, s.tpot_s.mean, s.e2e_s.mean, s.tokens_per_s

    base, long_input, long_output, many = (
        figures(*case) for case in ((100, 20, 4), (4000, 20, 4), (100, 400, 4), (100, 20, 40))
    )
    assert long_input[1] > 10 * base[1]
    assert long_output[1] == base[1]
    assert long_output[3] > 10 * base[3]
    assert base[0] == 0.0 < many[0]
    assert many[4] > long_input[4]


def split(pool, decode=None, transfer=0.0, **link):
    return {"pool": pool, "decode": decode or pool, "link": Link(transfer_s=constant(transfer), **link)}


def test_row_20_whether_a_split_pays_depends_and_is_never_assumed():
    """Two machines each way: long outputs at a brisk rate want the split, long prompts do not."""

    def verdict(isl, osl, rate):
        requests = poisson(rate, 300, input_tokens=isl, output_tokens=osl)
        policy = Policy(name="continuous", max_num_batched_tokens=4096)
        step = affine(start=0.020, token=2e-4, cached=0)
        apart = simulate(requests, **split(one_pool(step, policy=policy), transfer=0.005))
        together = simulate(requests, one_pool(step, policy=policy, instances=2))
        slo = {"ttft_s": 1.0, "tpot_s": 0.035}
        return apart.summary(**slo).goodput_rps, together.summary(**slo).goodput_rps

    apart, together = verdict(512, 128, 5.0)
    assert apart > together
    apart, together = verdict(4000, 8, 1.5)
    assert apart < together


def test_row_20_a_split_transfers_state_and_the_client_sees_it_after_the_first_token():
    request = at_once(1, 100, 3)
    run = simulate(request, **split(one_pool(constant(1.0)), transfer=0.25))
    (served,) = run.served
    assert (served.first_token_s, served.finish_s) == (1.0, 3.25)
    assert sorted(run.gaps_s) == [1.0, 1.25]


def test_row_22_cache_hits_are_reported_and_never_mixed_with_cold_runs():
    requests = [
        Request(arrival_s=float(i), input_tokens=1200, output_tokens=2, block_hashes=(1, 2, 3))
        for i in (0, 9)
    ]
    cold = simulate(requests, one_pool(block_size=512))
    warm = simulate(requests, one_pool(block_size=512, prefix_cache=True))
    assert cold.summary().prefix_hit_rate == 0.0
    assert [s.cached_tokens for s in warm.served] == [0, 1024]
    assert warm.summary().prefix_hit_rate == 1024 / 2400
    assert warm.served[0].ttft_s == cold.served[0].ttft_s > warm.served[1].ttft_s


def test_waits_of_a_single_server_follow_lindleys_recursion():
    """W(n+1) = max(0, W(n) + S - gap), request by request; D. V. Lindley, 1952."""
    requests = poisson(14.0, 3000, input_tokens=64, output_tokens=1, seed=3)
    run = simulate(requests, one_pool(constant(0.05), policy=Policy(name="static", max_num_seqs=1)))
    wait = 0.0
    for before, after, served in zip(requests, requests[1:], run.served[1:], strict=False):
        wait = max(0.0, wait + 0.05 - (after.arrival_s - before.arrival_s))
        assert served.queue_s == pytest.approx(wait, abs=1e-9)


@pytest.mark.parametrize("utilization", [0.3, 0.7])
def test_mean_wait_is_that_of_an_m_d_1_queue(utilization):
    """rho S / (2 (1 - rho)), over 20,000 requests of two seeds; the seeds' own spread is some per cent."""
    service, means = 0.1, []
    for seed in range(2):
        requests = poisson(utilization / service, 10_000, input_tokens=1, output_tokens=1, seed=seed)
        run = simulate(requests, one_pool(constant(service), policy=Policy(name="static", max_num_seqs=1)))
        means.append(run.summary().queue_s.mean)
    exact = utilization * service / (2 * (1 - utilization))
    assert sum(means) / 2 == pytest.approx(exact, rel=0.05)


def test_a_closed_loop_of_one_is_one_request_after_another():
    requests = at_once(5, 100, 11)
    run = simulate(requests, one_pool(affine(start=0.01, token=0, cached=0)), concurrency=1)
    assert run.summary().makespan_s == pytest.approx(5 * 11 * 0.01)
    assert run.summary().queue_s.p99 == 0.0
    assert [s.arrival_s for s in run.served[1:]] == [s.finish_s for s in run.served[:-1]]


def test_a_closed_loop_of_equal_requests_runs_in_whole_waves():
    """N at a time: prefill of N, then osl - 1 steps of N, and all are replaced at once."""
    step = affine(start=0.01, token=1e-4, cached=0)
    pool = one_pool(step, policy=Policy(name="continuous", max_num_batched_tokens=10**6))
    run = simulate(at_once(40, 100, 11), pool, concurrency=8)
    wave = (0.01 + 8 * 100 * 1e-4) + 10 * (0.01 + 8 * 1e-4)
    assert run.summary().makespan_s == pytest.approx(5 * wave)
    assert run.summary().tpot_s.p99 == pytest.approx(0.01 + 8e-4)


def test_arrivals_of_one_moment_share_a_step():
    run = simulate(at_once(3, 10, 1), one_pool(), trace=True)
    assert rounds_of(run) == [({0, 1, 2}, 1)]


def test_chunks_of_a_prompt_slow_the_decodes_beside_it():
    requests = [
        Request(arrival_s=0, input_tokens=10, output_tokens=200),
        Request(arrival_s=0.5, input_tokens=4000, output_tokens=2),
    ]
    policy = Policy(max_num_seqs=8, max_num_batched_tokens=500)
    run = simulate(requests, one_pool(affine(cached=0), policy=policy), trace=True)
    assert sum(m.query_len for s in run.spans for m in s.members if m.request == 1) == 4001
    assert {s.kind for s in run.spans} == {"prefill", "decode", "mixed"}
    assert max(run.gaps_s) == pytest.approx(0.010 + 500e-4)


def test_a_link_is_a_queue():
    pool = one_pool(constant(1.0))
    run = simulate(at_once(3, 10, 2), **split(pool, transfer=0.5), trace=True)
    assert [(s.start_s, s.end_s) for s in run.spans if s.kind == "transfer"] == [(1, 1.5), (1.5, 2), (2, 2.5)]
    wide = simulate(at_once(3, 10, 2), **split(pool, transfer=0.5, channels=3))
    assert [s.finish_s for s in wide.served] == [2.5, 2.5, 2.5]


@pytest.mark.parametrize(("transfer", "exposed"), [(0.4, 0.1), (2.0, 1.25)])
def test_a_transfer_by_layers_exposes_what_the_prompt_does_not_cover(transfer, exposed):
    """max(t / L, t - S (L - 1) / L) with a prefill of S = 1 s and L = 4."""
    run = simulate(at_once(1, 10, 2), **split(one_pool(constant(1.0)), transfer=transfer, layers=4))
    assert exposed == max(transfer / 4, transfer - 0.75)
    assert run.served[0].finish_s == pytest.approx(1.0 + exposed + 1.0)


def test_kv_stays_in_the_prefill_pool_until_the_decode_pool_has_blocks():
    """Each pool has room for one request of 64 tokens: the second is run when the first has been sent."""
    front = one_pool(constant(1.0), num_blocks=4, policy=Policy(max_num_seqs=1))
    back = one_pool(constant(1.0), num_blocks=5)
    run = simulate(at_once(3, 64, 4), **split(front, back))
    first, second, third = run.served
    assert (first.first_token_s, first.finish_s) == (1, 4)
    assert (second.first_token_s, second.finish_s) == (2, 7)
    assert (third.first_token_s, third.finish_s) == (5, 10)


@pytest.mark.parametrize("router", ["round_robin", "least_requests", "least_work"])
def test_every_router_spreads_equal_requests_over_both_pools(router):
    pool = one_pool(constant(1.0), instances=2, router=router)
    run = simulate(at_once(8, 10, 20), **split(pool))
    assert Counter(s.instance for s in run.served) == {0: 4, 1: 4}
    assert Counter(s.decode_instance for s in run.served) == {0: 4, 1: 4}


def test_requests_go_where_their_prefix_is_cached():
    hashes = [tuple(range(100 * chat, 100 * chat + 4)) for chat in (0, 1, 0, 1, 1, 0, 1, 0)]
    requests = [
        Request(arrival_s=float(i), input_tokens=2048, output_tokens=2, block_hashes=own)
        for i, own in enumerate(hashes)
    ]

    def hit_rate(router):
        pool = one_pool(block_size=512, num_blocks=10, instances=2, prefix_cache=True, router=router)
        return simulate(requests, pool).summary().prefix_hit_rate

    assert hit_rate("least_work") == 6 * 1536 / (8 * 2048)
    assert hit_rate("round_robin") < hit_rate("least_work")


def test_small_blocks_share_what_large_hashes_name():
    requests = [
        Request(arrival_s=float(i), input_tokens=1000, output_tokens=1, block_hashes=(7, 8 + i))
        for i in (0, 9)
    ]
    run = simulate(requests, one_pool(block_size=128, prefix_cache=True))
    assert [s.cached_tokens for s in run.served] == [0, 512]


def test_what_never_fits_is_rejected_and_said():
    requests = [Request(arrival_s=0, input_tokens=n, output_tokens=5) for n in (10, 1000, 10)]
    run = simulate(requests, one_pool(num_blocks=2))
    assert run.rejected == (1,)
    assert (run.summary().requests, run.summary().completed) == (3, 2)
    assert simulate(requests, one_pool(num_blocks=2), concurrency=1).rejected == (1,)


def test_goodput_counts_requests_that_keep_both_times():
    requests = [Request(arrival_s=0, input_tokens=1, output_tokens=n) for n in (1, 3)]
    run = simulate(requests, one_pool(constant(1.0)))
    assert run.summary().goodput_rps == 2 / 3
    assert run.summary(tpot_s=0.5).goodput_rps == 1 / 3, "one token has no TPOT"
    assert run.summary(ttft_s=0.5).goodput_rps == 0.0


def test_goodput_of_an_open_loop_is_the_kept_share_of_the_rate_of_arrivals():
    requests = [Request(arrival_s=float(i), input_tokens=1, output_tokens=20) for i in range(11)]
    run = simulate(requests, one_pool(constant(0.5)))
    easy, hard = run.summary(ttft_s=10.0), run.summary(ttft_s=1e-3)
    assert (easy.kept, easy.goodput_over, easy.goodput_rps) == (11, "arrivals", run.arrival_rps)
    assert run.arrival_rps == 1.0
    assert (hard.kept, hard.goodput_rps) == (0, 0.0)
    assert run.summary().goodput_rps == 11 / run.summary().makespan_s < 1.0, "no TTFT shows a backlog"
    closed = simulate(requests, one_pool(constant(0.5)), concurrency=2)
    assert closed.arrival_rps is None
    assert closed.summary(ttft_s=10.0).goodput_over == "makespan"


def test_percentiles_are_values_that_occurred():
    values = percentiles([float(v) for v in range(1, 201)])
    assert (values.mean, values.p50, values.p90, values.p99) == (100.5, 100.0, 180.0, 198.0)
    assert percentiles([1.0, 9.0], [99, 1]) == percentiles([1.0] * 99 + [9.0])
    assert percentiles([]) is None


def test_a_trace_opens_in_a_viewer():
    run = simulate(at_once(3, 20, 4), **split(one_pool(constant(0.5)), transfer=0.1), trace=True)
    events = json.loads(json.dumps(chrome_trace(run.spans)))["traceEvents"]
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {"prefill", "link", "decode"}
    spans = [e for e in events if e["ph"] == "X"]
    assert len(spans) == len(run.spans)
    assert all(e["dur"] > 0 and e["ts"] >= 0 for e in spans)
    assert {"request": 0, "query_len": 20, "kv_len": 20} in spans[0]["args"]["members"]


@pytest.mark.parametrize(
    ("requests", "changes", "word"),
    [
        ([Request(arrival_s=-1, input_tokens=1, output_tokens=1)], {}, "not a time"),
        ([Request(arrival_s=0, input_tokens=0, output_tokens=1)], {}, "at least 1"),
        (
            [Request(arrival_s=0, input_tokens=99, output_tokens=1, block_hashes=(), hash_block_size=9)],
            {},
            "hash",
        ),
        ([], {"decode": one_pool()}, "go together"),
        ([], {"concurrency": 0}, "at a time"),
        ([], {"pool": one_pool(instances=0)}, "0 instances"),
        (at_once(1, 4, 2), {"pool": one_pool(constant(-1.0))}, "takes -1.0 s"),
        (at_once(1, 4, 2), split(one_pool(), transfer=float("nan")), "nan s for 4 tokens"),
        ([], split(one_pool(), channels=0), "0 channels"),
        (
            at_once(1, 99, 2, block_hashes=(1,)),
            {"pool": one_pool(block_size=48, prefix_cache=True)},
            "a number that divides it",
        ),
    ],
)
def test_what_cannot_be_simulated_is_refused(requests, changes, word):
    arguments = {"pool": one_pool()} | changes
    with pytest.raises(BadInput, match=word):
        simulate(requests, **arguments)


def test_arrivals_are_the_same_for_a_seed_and_scale_with_the_rate():
    slow, fast = (poisson(rate, 100, input_tokens=1, output_tokens=1, seed=7) for rate in (1.0, 4.0))
    assert slow == poisson(1.0, 100, input_tokens=1, output_tokens=1, seed=7)
    assert [r.arrival_s for r in fast] == pytest.approx([r.arrival_s / 4 for r in slow])
    assert slow != poisson(1.0, 100, input_tokens=1, output_tokens=1, seed=8)
    with pytest.raises(BadInput):
        poisson(0.0, 1, input_tokens=1, output_tokens=1)
    with pytest.raises(BadInput):
        poisson(1.0, 2, input_tokens=[1], output_tokens=1)


@settings(max_examples=1000, deadline=None)
@given(st.integers(0, 2**32))
def test_nothing_is_lost_in_any_configuration(seed):
    (requests, pool), choices = random_run(seed)
    loop = EventLoop(requests, pool, choices.get("decode"), choices.get("link"), choices["concurrency"], True)
    loop.run()
    served = loop.served()
    assert len(served) + len(loop.rejected) == len(requests)
    assert len({s.request for s in served}) == len(served)
    for scheduler in loop.schedulers():
        assert scheduler.blocks.free_blocks == scheduler.blocks.num_blocks
        assert scheduler.blocks.host_free_blocks == scheduler.blocks.host_blocks
        assert not scheduler.jobs
        assert not scheduler.held
    sampled, run_tokens = Counter(), Counter()
    for span in loop.spans:
        for member in span.members:
            sampled[member.request] += member.samples * span.rounds
            run_tokens[member.request] += member.query_len * span.rounds
    for s in served:
        assert s.arrival_s <= s.admitted_s < s.first_token_s <= s.finish_s
        assert (s.first_token_s == s.finish_s) == (s.output_tokens == 1)
        assert sampled[s.request] == s.output_tokens
        if not s.preemptions:
            assert run_tokens[s.request] == s.input_tokens - s.cached_tokens + s.output_tokens - 1
    assert sum(loop.counts) == sum(s.output_tokens - 1 for s in served)
    total = sum(gap * count for gap, count in zip(loop.gaps, loop.counts, strict=True))
    assert total == pytest.approx(sum(s.finish_s - s.first_token_s for s in served))
    last = {}
    for span in sorted(loop.spans, key=lambda s: s.start_s):
        key = (span.pool, span.instance)
        assert last.get(key, 0.0) <= span.start_s < span.end_s
        last[key] = span.end_s


def merged(spans):
    """Return spans with runs of equal steps joined, however they were split."""
    joined = {}
    for span in spans:
        own = joined.setdefault((span.pool, span.instance), [])
        members = tuple((m.request, m.query_len) for m in span.members)
        steady = all(length == 1 for _, length in members)
        before = own[-1] if own else None
        if steady and before and before[2] == members and before[1] == span.start_s:
            own[-1] = (before[0], span.end_s, members, before[3] + span.rounds, span.used_blocks)
        else:
            own.append((span.start_s, span.end_s, members, span.rounds, span.used_blocks))
    return joined


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32))
def test_many_steps_at_once_are_exactly_the_steps_one_by_one(seed):
    (requests, pool), choices = random_run(seed)
    fast = simulate(requests, pool, **choices, trace=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scheduler, "steady_rounds", lambda self, last: 0)
        slow = simulate(requests, pool, **choices, trace=True)
    assert fast.served == slow.served
    assert fast.rounds == slow.rounds
    assert merged(fast.spans) == merged(slow.spans)
    gaps = [Counter() for _ in range(2)]
    for count, run in zip(gaps, (fast, slow), strict=True):
        for gap, often in zip(run.gaps_s, run.gap_counts, strict=True):
            count[gap] += often
    assert gaps[0] == gaps[1]


def test_a_run_repeats_to_the_last_bit():
    for seed in range(20):
        (requests, pool), choices = random_run(seed)
        assert simulate(requests, pool, **choices) == simulate(requests, pool, **choices)
