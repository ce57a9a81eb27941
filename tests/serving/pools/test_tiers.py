"""KV beyond HBM: what a tier holds, and when loading beats computing."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvroof.ground.errors import BadInput
from kvroof.memory.kv import kv
from kvroof.memory.ledger import fit
from kvroof.roofline.plan import Plan
from kvroof.serving.pools.tiers import hbm_tier, host_tier, load_or_recompute, recompute_s, tier
from kvroof.serving.step_times import PlanTimes

PLAN = Plan.of("llama-3.1-8b", "h100-sxm")
few = settings(max_examples=15, deadline=None)


def test_a_tier_holds_what_its_room_over_the_bytes_of_a_token_says():
    """Llama-3.1-8B keeps 131,072 B per token (128 KiB): 1 TiB holds 8,388,608 tokens."""
    (found,) = load_or_recompute(PLAN, [tier("ssd", 2**40, 7e9)], 8192)
    assert found.tokens == 2**40 // 131_072
    assert found.prompts == 2**40 // (8192 * 131_072)


def test_room_is_of_one_copy_while_loading_fills_every_rank():
    """MLA's latent is held by every rank: DeepSeek-V3 at 8 ranks reads eight times what it stores."""
    plan, size = (
        Plan.of("deepseek-v3", "h200-sxm", tp=8),
        kv(Plan.of("deepseek-v3", "h200-sxm").model, tokens=4096),
    )
    (found,) = load_or_recompute(plan, [tier("ssd", 2**43, 1e12)], 4096, layerwise=False)
    assert found.prompts == 2**43 // size.payload_bytes
    assert found.load_s == pytest.approx(8 * size.payload_bytes / 1e12)


@few
@given(st.floats(1e8, 1e12), st.floats(0, 0.01), st.integers(16, 30_000))
def test_loading_takes_its_start_and_its_bytes(rate, start, prefix):
    (found,) = load_or_recompute(PLAN, [tier("x", 2**40, rate, start)], prefix, layerwise=False)
    assert found.load_s == pytest.approx(start + prefix * 131_072 / rate)
    assert found.recompute_s == recompute_s(PlanTimes(PLAN), prefix, 1)


@few
@given(st.integers(64, 30_000))
def test_at_the_break_even_rate_loading_and_computing_take_the_same(prefix):
    (found,) = load_or_recompute(PLAN, [tier("x", 2**40, 1e9)], prefix, suffix=64, layerwise=False)
    at = tier("y", 2**40, found.break_even_bytes_per_s)
    (same,) = load_or_recompute(PLAN, [at], prefix, suffix=64, layerwise=False)
    assert same.load_s == pytest.approx(same.recompute_s)


@few
@given(st.floats(3e9, 3e10), st.floats(0.001, 0.05))
def test_from_the_break_even_length_on_loading_is_faster(rate, start):
    one = tier("x", 2**40, rate, start)
    (found,) = load_or_recompute(PLAN, [one], 20_000, suffix=64, layerwise=False)
    times = PlanTimes(PLAN)

    def wins(tokens):
        return start + tokens * 131_072 / rate < recompute_s(times, tokens, 64)

    if found.break_even_tokens is None:
        assert not wins(20_000)
    else:
        assert wins(found.break_even_tokens)
        assert not wins(found.break_even_tokens - 1)


def test_a_faster_tier_breaks_even_at_a_shorter_length():
    tiers = [tier("slow", 2**40, 8e9, 0.05), tier("fast", 2**40, 5e10, 0.05)]
    slow, fast = load_or_recompute(PLAN, tiers, 60_000, suffix=64, layerwise=False)
    assert fast.break_even_tokens < slow.break_even_tokens


def test_layers_that_load_beside_the_suffix_are_seen_less():
    one = [tier("x", 2**40, 2e10)]
    (whole,) = load_or_recompute(PLAN, one, 8192, suffix=2048, layerwise=False)
    (layered,) = load_or_recompute(PLAN, one, 8192, suffix=2048)
    assert layered.load_s < whole.load_s
    assert layered.load_s >= whole.load_s / 32 * (1 - 1e-9)


def test_hbm_holds_what_the_ledger_admits_and_loads_nothing():
    (found,) = load_or_recompute(PLAN, [hbm_tier(PLAN, 4096)], 4096)
    assert found.prompts == fit(PLAN.model, PLAN.hardware.capacity_bytes, tokens=4096).max_seqs
    assert found.load_s == 0
    assert found.break_even_bytes_per_s is None


def test_host_memory_is_read_over_the_links_of_all_devices():
    link = PLAN.hardware.host.bytes_per_s
    assert host_tier(PLAN.hardware, 4, 2**40).bytes_per_s == 4 * link
    with pytest.raises(BadInput):
        host_tier(Plan.of("llama-3.1-8b", "m2-ultra").hardware, 1, 2**40)


@pytest.mark.parametrize("wrong", [(-1, 1e9, 0), (1, 0, 0), (1, math.inf, 0), (1, 1e9, -1), (1, math.nan, 0)])
def test_a_tier_that_cannot_be_is_refused(wrong):
    with pytest.raises(BadInput):
        tier("x", *wrong)


def test_lengths_that_cannot_be_are_refused():
    for prefix, suffix in ((0, 1), (1, 0)):
        with pytest.raises(BadInput):
            load_or_recompute(PLAN, [tier("x", 1, 1e9)], prefix, suffix=suffix)
