"""Experts over many ranks: who holds what, who computes what, and what is sent for it."""

import math
import random

import pytest

from kvroof.catalog.models import load_model
from kvroof.cost.formulas import busiest_share, distinct_experts, reached_ranks
from kvroof.cost.forward import forward
from kvroof.roofline.plan import Plan
from kvroof.spec.workload import decode

DEEPSEEK = load_model("deepseek-v3")


def ops(batch=256, tokens=1024, **layout):
    plan = Plan.of(DEEPSEEK, "h200-sxm", **layout)
    return {op.name: op for op in forward(plan.model, decode(batch, tokens), plan.run("absorbed"))}


@pytest.mark.parametrize(("ranks", "pairs"), [(4, 4000), (8, 2048), (32, 8192), (64, 65536)])
def test_the_busiest_rank_is_as_busy_as_drawing_lots_makes_it(ranks, pairs):
    rng = random.Random(ranks)
    draws = 200 if pairs < 10_000 else 40
    busiest = []
    for _ in range(draws):
        loads = [0] * ranks
        for rank in rng.choices(range(ranks), k=pairs):
            loads[rank] += 1
        busiest.append(max(loads) / pairs)
    excess = sum(busiest) / draws - 1 / ranks
    assert busiest_share(pairs, ranks) - 1 / ranks == pytest.approx(excess, rel=0.25)


def test_one_rank_computes_everything_and_a_stated_imbalance_is_taken_as_it_is():
    assert busiest_share(1000, 1) == 1
    assert busiest_share(1000, 8, 1.5) == 1.5 / 8
    assert busiest_share(1000, 8, 1.0) == 1 / 8


def test_a_token_reaches_the_ranks_that_its_experts_lie_on():
    rng = random.Random(0)
    drawn = [len({rng.randrange(8) for _ in range(8)}) for _ in range(4000)]
    assert reached_ranks(8, 8) == pytest.approx(sum(drawn) / 4000, rel=0.02)


def test_ranks_of_whole_experts_read_their_share_of_the_distinct_ones():
    alone, dealt = ops(tp=8)["experts"], ops(tp=8, ep=8)["experts"]
    assert dealt.weight_bytes == pytest.approx(alone.weight_bytes, rel=1e-3)
    assert dealt.flops > alone.flops  # the busiest rank, not the mean
    assert ops(tp=8, ep=8)["experts"].flops == pytest.approx(
        alone.flops * 8 * busiest_share(256 * 8, 8), rel=1e-3
    )


def test_groups_of_ranks_bring_all_their_tokens_to_the_experts():
    one = ops(batch=256, tp=1, dp=8, ep=8)["experts"]
    touched = distinct_experts(256, 8, 8 * 256)
    assert one.weight_bytes / ops(tp=1, dp=8, ep=8, batch=2**22)["experts"].weight_bytes == pytest.approx(
        touched / 256, rel=1e-6
    )


def test_within_one_group_nothing_is_exchanged_but_the_sum():
    names = set(ops(tp=8, ep=8))
    assert "ffn_all_reduce" in names
    assert not any("dispatch" in name for name in names)


def test_among_groups_tokens_are_dealt_out_in_fp8_and_come_back_in_bf16():
    found = ops(batch=128, tp=1, dp=32, ep=32)
    out, back = found["dispatch_all_to_all"], found["combine_all_to_all"]
    assert out.message_bytes == pytest.approx(128 * 7168 * reached_ranks(32, 8))
    assert back.message_bytes == 2 * out.message_bytes
    assert (out.ranks, out.stride) == (32, 1)


def test_experts_that_all_ranks_split_gather_every_group_s_tokens():
    found = ops(batch=128, tp=2, dp=4)
    assert found["dispatch_all_gather"].message_bytes == 4 * 128 * 7168 * 2
    assert (found["dispatch_all_gather"].ranks, found["dispatch_all_gather"].stride) == (4, 2)
    assert math.isclose(
        found["combine_reduce_scatter"].message_bytes, found["dispatch_all_gather"].message_bytes
    )
