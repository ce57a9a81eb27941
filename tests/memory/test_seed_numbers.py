"""The worked numbers of the seed lessons through the API, a test per row.

Configuration S: 32 layers, 8 KV heads, head_dim 128, 2 bytes, full attention. KiB, MiB, GiB are binary.
Rows about engines, schedules and serving (8, 13-15, 19, 20) belong to those floors.
"""

import dataclasses
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvroof
from kvroof.memory.allocators import parse_allocator
from kvroof.spec.parallel import Layout
from kvroof.spec.precision import parse_kv_format

KIB, MIB, GIB = 2**10, 2**20, 2**30
PER_TOKEN = 131_072
TIGHT = {
    "capacity_bytes": 22 * GIB,
    "weights_bytes": round(Fraction("13.04") * GIB),
    "reserve_bytes": 3 * GIB,
    "utilization": 1,
}
"""Row 6: 22 GiB, of which 13.04 are weights and 3 are reserved."""


@pytest.fixture
def s(config_s):
    return kvroof.load_model(config_s)


@pytest.fixture
def mha(config_mha):
    return kvroof.load_model(config_mha)


def payload(model, tokens, seqs=1, **more):
    return kvroof.kv(model, tokens=tokens, seqs=seqs, **more).payload_bytes


def blocks(model, tokens, block_size):
    report = kvroof.kv(model, tokens=tokens, allocator=parse_allocator("paged", block_size))
    return report.num_blocks, report.empty_slots


def test_row_1_a_token_is_128_kib(s):
    assert kvroof.kv(s, tokens=8192).bytes_per_token == PER_TOKEN == 128 * KIB


@pytest.mark.parametrize(("tokens", "seqs", "gib"), [(8192, 1, 1), (32768, 1, 4), (8192, 8, 8)])
def test_row_2_payload_is_tokens_times_sequences_times_bytes_of_a_token(s, tokens, seqs, gib):
    assert payload(s, tokens, seqs) == gib * GIB


def test_row_3_keys_and_values_of_a_layer_add_up_over_the_layers(s, write_config):
    one_layer = kvroof.load_model(write_config("one", num_hidden_layers=1))
    assert payload(one_layer, 2048, 8) == 67_108_864
    assert payload(s, 2048, 8) == 32 * 67_108_864 == 2_147_483_648


def test_row_4_payload_is_linear_in_kv_heads_tokens_and_sequences(s, mha):
    assert payload(mha, 2048, 8) == 8 * GIB
    assert payload(s, 8192, 8) == 8 * GIB
    assert payload(s, 2048, 16) == 4 * GIB


def test_row_5_growth_of_a_batch_is_per_token_and_per_kv_head(s, mha):
    assert payload(s, 2560, 8) - payload(s, 2048, 8) == 512 * MIB
    assert payload(s, 2560, 8) == 2560 * MIB
    assert payload(mha, 2560, 8) - payload(mha, 2048, 8) == 2 * GIB
    assert payload(mha, 2560, 8) == 10 * GIB


def test_row_6_a_batch_that_fits_at_first_may_not_fit_when_it_has_grown(s):
    assert kvroof.fit(s, tokens=2048, seqs=8, **TIGHT).fits
    ledger = kvroof.fit(s, tokens=8192, seqs=8, **TIGHT)
    assert not ledger.fits
    assert ledger.kv_bytes == 8 * GIB
    assert round(ledger.total_bytes / GIB, 4) == 24.04
    assert round(ledger.headroom_bytes / GIB, 4) == -2.04
    assert ledger.total_bytes == ledger.weights_bytes + ledger.kv_bytes + ledger.reserve_bytes
    assert ledger.headroom_bytes == ledger.budget_bytes - ledger.total_bytes


def test_row_6_the_ways_out_say_how_much_of_each_would_do(s):
    """5.96 GiB are left for the cache: 5 sequences of 1 GiB, 6,096 tokens in blocks of 16 of 8 sequences."""
    ledger = kvroof.fit(s, tokens=8192, seqs=8, **TIGHT)
    ways = {way.change: (way.from_, way.to) for way in ledger.ways_out}
    assert ways["seqs"] == (8, 5)
    assert ways["tokens"] == (8192, 6096)
    assert ways["num_kv_heads"] == (8, 4)
    assert ways["kv_dtype"] == ("bf16", "fp8")
    assert ways["capacity_bytes"] == (22 * GIB, ledger.total_bytes)
    assert (ledger.max_seqs, ledger.max_tokens) == (5, 6096)


def test_row_6_each_way_out_fits_and_a_step_beyond_it_does_not(s, write_config):
    asked = {"tokens": 8192, "seqs": 8} | TIGHT
    ways = {way.change: way.to for way in kvroof.fit(s, **asked).ways_out}

    def fits(model=s, **changes):
        return kvroof.fit(model, **(asked | changes)).fits

    assert fits(seqs=ways["seqs"])
    assert not fits(seqs=ways["seqs"] + 1)
    assert fits(tokens=ways["tokens"])
    assert not fits(tokens=ways["tokens"] + 1)
    assert fits(capacity_bytes=ways["capacity_bytes"])
    assert not fits(capacity_bytes=ways["capacity_bytes"] - 1)
    assert fits(kv_format=parse_kv_format(ways["kv_dtype"], s))
    assert not fits(kv_format=parse_kv_format("fp32", s))
    thinner = kvroof.load_model(write_config("thin", num_key_value_heads=ways["num_kv_heads"]))
    assert fits(thinner)
    assert not fits(kvroof.load_model(write_config("thick", num_key_value_heads=2 * ways["num_kv_heads"])))


@given(seqs=st.integers(1, 64), tokens=st.integers(1, 40_000), capacity=st.integers(17, 96))
def test_row_6_limits_are_exact_inverses_of_the_ledger(seqs, tokens, capacity):
    s = kvroof.load_model("llama-3.1-8b")
    budget = TIGHT | {"capacity_bytes": capacity * GIB}
    ledger = kvroof.fit(s, tokens=tokens, seqs=seqs, **budget)
    if ledger.max_seqs:
        assert kvroof.fit(s, tokens=tokens, seqs=ledger.max_seqs, **budget).fits
    assert not kvroof.fit(s, tokens=tokens, seqs=ledger.max_seqs + 1, **budget).fits
    if ledger.max_tokens:
        assert kvroof.fit(s, tokens=ledger.max_tokens, seqs=seqs, **budget).fits
    assert not kvroof.fit(s, tokens=ledger.max_tokens + 1, seqs=seqs, **budget).fits
    assert ledger.fits == (seqs <= ledger.max_seqs) == (tokens <= ledger.max_tokens)


@pytest.mark.parametrize(
    ("tokens", "taken", "empty"), [(6, 2, 2), (7, 2, 1), (8, 2, 0), (9, 3, 3)], ids=lambda n: str(n)
)
def test_row_7_a_block_of_4_is_taken_whole_and_filled_before_the_next(s, tokens, taken, empty):
    assert blocks(s, tokens, 4) == (taken, empty)


def paged_16(model, tokens):
    report = kvroof.kv(model, tokens=tokens, allocator=parse_allocator("paged", 16))
    return report.num_blocks, report.payload_bytes / MIB, report.allocated_bytes / MIB, report.empty_slots


def test_row_9_18_tokens_take_2_blocks_of_16(s):
    assert paged_16(s, 18) == (2, 2.25, 4, 14)


def test_row_10_33_tokens_take_3_blocks_and_paging_does_not_shrink_a_token(s):
    assert paged_16(s, 33) == (3, 4.125, 6, 15)
    assert payload(s, 33) == 33 * PER_TOKEN
    assert kvroof.kv(s, tokens=33).bytes_per_token == PER_TOKEN


def test_row_11_two_requests_store_their_shared_prefix_once(s):
    assert payload(s, 4096 + 2048, 2) == 12_288 * PER_TOKEN == 1536 * MIB
    assert payload(s, 4096 + 2048, 2, shared_prefix=4096) == 8192 * PER_TOKEN == GIB


def test_row_12_three_requests_store_their_shared_prefix_once(s):
    assert payload(s, 4096 + 2048, 3) == 2304 * MIB
    assert payload(s, 4096 + 2048, 3, shared_prefix=4096) == 1280 * MIB


def test_row_16_ragged_payload_is_the_sum_and_padding_or_reserving_is_another_account(s):
    lengths = [100, 2048, 33]
    paged = kvroof.kv(s, lengths=lengths)
    padded = kvroof.kv(s, lengths=lengths, allocator=parse_allocator("padded"))
    reserved = kvroof.kv(s, lengths=lengths, allocator=parse_allocator("reserved", max_model_len=4096))
    assert {r.payload_bytes for r in (paged, padded, reserved)} == {2181 * PER_TOKEN}
    assert paged.allocated_bytes == (7 + 128 + 3) * 16 * PER_TOKEN
    assert padded.allocated_bytes == 3 * 2048 * PER_TOKEN
    assert reserved.allocated_bytes == 3 * 4096 * PER_TOKEN


def test_row_17_kv_heads_shard_over_ranks_until_there_are_as_many(s):
    def per_rank(tp):
        return kvroof.kv(s, tokens=1024, layout=Layout(tp=tp)).bytes_per_rank

    assert [per_rank(tp) for tp in (1, 2, 4, 8)] == [1024 * PER_TOKEN // tp for tp in (1, 2, 4, 8)]
    assert per_rank(16) == per_rank(32) == per_rank(8) == 1024 * 16_384


def test_row_17_the_capacity_of_a_machine_does_not_simply_divide(s):
    """Sixteen ranks hold each of 8 KV heads twice: 16 devices cache as many tokens as 8 do."""

    def cached(tp):
        return kvroof.fit(s, 8 * GIB, weights_bytes=0, utilization=1, layout=Layout(tp=tp)).kv_capacity_tokens

    assert cached(8) == 8 * cached(1)
    assert cached(16) == cached(8)


def test_row_18_windows_and_latents_have_their_own_storage_model():
    sliding, latent = kvroof.load_model("mistral-7b-v0.1"), kvroof.load_model("deepseek-v3")
    assert payload(sliding, 8192) == payload(sliding, 4096) == 512 * MIB
    assert payload(latent, 8192) == 8192 * 61 * 576 * 2
    many_heads = 2 * 128 * 128 * 61 * 2
    assert payload(latent, 1) * 50 < many_heads


def test_row_21_paging_and_io_aware_attention_are_different_layers_and_combine():
    """Scores written to HBM change the traffic of prefill, never a byte of what is stored."""

    def answer(io_aware, allocator):
        plan = kvroof.Plan.of("llama-3.1-8b", "h100-sxm", io_aware=io_aware, allocator=allocator)
        return kvroof.estimate(plan, isl=4090, osl=2, batch=1)

    def traffic(estimate):
        return sum(op.hbm_bytes for op in estimate.prefill_ops)

    flash, plain = answer(True, "paged"), answer(False, "paged")
    assert flash.memory.kv_bytes == plain.memory.kv_bytes
    assert traffic(plain) - traffic(flash) >= 32 * 32 * 4090 * 4090 * 2
    assert sum(op.flops for op in plain.prefill_ops) == sum(op.flops for op in flash.prefill_ops)
    exact = answer(True, "payload")
    assert traffic(exact) == traffic(flash)
    assert exact.memory.kv_bytes == 4091 * PER_TOKEN < flash.memory.kv_bytes == 4096 * PER_TOKEN


def test_row_22_every_account_carries_its_assumptions(s):
    plan = kvroof.Plan.of(s, "h100-sxm")
    accounts = (kvroof.kv(s), kvroof.fit(s, 80 * GIB), kvroof.estimate(plan, isl=64, osl=2))
    assert all(account.assumptions for account in accounts)
    assert any("bound" in line for line in accounts[2].assumptions)


def test_row_22_payload_is_kept_apart_from_allocated_capacity(s):
    report = kvroof.kv(s, tokens=33)
    assert report.payload_bytes < report.allocated_bytes
    assert {"payload_bytes", "allocated_bytes"} <= {field.name for field in dataclasses.fields(report)}


def test_row_22_a_cache_hit_is_said_and_never_mixed_with_a_cold_run():
    plan = kvroof.Plan.of("llama-3.1-8b", "h100-sxm")
    cold = kvroof.estimate(plan, isl=2048, osl=2, batch=1)
    warm = kvroof.estimate(plan, isl=2048, osl=2, batch=1, cached_prefix=1024)
    assert warm.prefill_s < cold.prefill_s
    assert any("1024" in line and "cache" in line for line in warm.assumptions)
    assert not any("prefix" in line for line in cold.assumptions)
