"""Speculative decoding: how many tokens a step gives, and what they cost."""

import random

import pytest

from kvroof.ground.errors import BadInput
from kvroof.roofline.plan import Plan
from kvroof.serving.latency import estimate
from kvroof.serving.speculation import Speculation

TARGET = Plan.of("llama-3.1-70b", "h100-sxm", tp=4)
DRAFT = Plan.of("llama-3.2-1b", "h100-sxm", tp=4)


@pytest.mark.parametrize(("drafted", "acceptance"), [(1, 0.5), (3, 0.7), (5, 0.9), (4, 0.0), (4, 1.0)])
def test_a_step_gives_what_accepting_one_by_one_gives(drafted, acceptance):
    rng = random.Random(drafted)
    given = 0
    for _ in range(20_000):
        accepted = 0
        while accepted < drafted and rng.random() < acceptance:
            accepted += 1
        given += accepted + 1
    assert Speculation(tokens=drafted, acceptance=acceptance).tokens_per_step == pytest.approx(
        given / 20_000, rel=0.02
    )


def test_a_draft_that_never_holds_only_costs():
    plain = estimate(TARGET, batch=4)
    useless = estimate(TARGET, batch=4, spec_tokens=3, acceptance=0.0, draft=DRAFT)
    assert useless.tpot_s > plain.tpot_s
    assert useless.prefill_s > plain.prefill_s  # the drafter reads the prompt too


def test_a_good_draft_gains_at_small_batches_and_less_at_large_ones():
    gains = [
        estimate(TARGET, batch=b).tpot_s
        / estimate(TARGET, batch=b, spec_tokens=3, acceptance=0.8, draft=DRAFT).tpot_s
        for b in (1, 256)
    ]
    assert gains[0] > 2
    assert gains[1] < gains[0]


def test_the_operations_of_a_token_add_up_to_its_time():
    answer = estimate(TARGET, batch=4, spec_tokens=3, acceptance=0.8, draft=DRAFT)
    assert sum(op.seconds for op in answer.decode_ops) == pytest.approx(answer.tpot_s, rel=1e-9)
    assert any(op.name.startswith("draft.") for op in answer.decode_ops)


def test_a_draft_takes_memory_for_its_weights_and_its_cache():
    plain = estimate(TARGET, batch=4)
    drafted = estimate(TARGET, batch=4, spec_tokens=3, draft=DRAFT)
    assert drafted.memory.total_bytes - plain.memory.total_bytes > DRAFT.weights_bytes


def test_a_model_with_prediction_layers_drafts_with_them():
    deepseek = Plan.of("deepseek-v3", "h200-sxm", tp=8)
    drafted = estimate(deepseek, batch=4, spec_tokens=1, acceptance=0.85)
    names = {op.name for op in drafted.decode_ops}
    assert {"draft.eh_proj", "draft.experts", "draft.lm_head"} <= names


def test_drafting_gains_where_a_batch_touches_every_expert_anyway():
    deepseek = Plan.of("deepseek-v3", "h200-sxm", tp=8)
    gains = [
        estimate(deepseek, batch=batch).tpot_s
        / estimate(deepseek, batch=batch, spec_tokens=1, acceptance=0.85).tpot_s
        for batch in (2, 128)
    ]
    assert gains[0] < gains[1] < 1.85  # two tokens read twice the experts, two hundred all of them


def test_without_a_draft_tokens_are_looked_up_at_no_cost():
    looked_up = estimate(TARGET, batch=1, spec_tokens=3, acceptance=0.5)
    assert not any(op.name.startswith("draft.") for op in looked_up.decode_ops)


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"spec_tokens": -1}, "--spec-tokens"),
        ({"spec_tokens": 1000}, "--spec-tokens"),
        ({"spec_tokens": 3, "acceptance": 1.5}, "--acceptance"),
        ({"draft": DRAFT}, "--draft"),
    ],
)
def test_what_cannot_be_is_refused(changes, where):
    with pytest.raises(BadInput) as caught:
        estimate(TARGET, **changes)
    assert caught.value.where == where


def test_verifying_crosses_the_encoder_once_for_all_the_tokens_of_a_step():
    plan, asked = Plan.of("t5-11b", "h100-sxm"), {"isl": 64, "osl": 64, "batch": 4, "encoder_tokens": 4096}
    plain = estimate(plan, **asked)
    drafted = estimate(plan, **asked, spec_tokens=3, acceptance=1.0)
    assert {op.name for op in drafted.decode_ops} == {op.name for op in plain.decode_ops}
    [one], [four] = ([op for op in e.decode_ops if op.name == "attention.cross"] for e in (plain, drafted))
    assert one.hbm_bytes == pytest.approx(4 * four.hbm_bytes, rel=0.01)


def test_a_drafter_that_crosses_an_encoder_pays_for_it():
    plan = Plan.of("t5-11b", "h100-sxm")
    near, far = (
        estimate(plan, isl=64, osl=64, batch=4, encoder_tokens=n, spec_tokens=3, draft=plan)
        for n in (16, 4096)
    )
    for phase in ("prefill_ops", "decode_ops"):
        crossing = [[op for op in getattr(e, phase) if "attention.cross" in op.name] for e in (near, far)]
        assert all(a.hbm_bytes < b.hbm_bytes for a, b in zip(*crossing, strict=True))
    assert any(op.name == "draft.attention.cross" for op in far.decode_ops)
