"""A pipeline's fullest stage decides; its stages hold the whole model once."""

from __future__ import annotations

import pytest

import kvroof
from kvroof.ground.errors import BadInput
from kvroof.memory.allocators import parse_allocator
from kvroof.memory.kv import kv
from kvroof.memory.ledger import fit
from kvroof.spec.offload import offload
from kvroof.spec.parallel import Layout
from kvroof.spec.params import params_total, weight_bytes
from kvroof.spec.stages import stage_models, stage_sizes

LLAMA = kvroof.load_model("llama-3.1-8b")


@pytest.mark.parametrize(
    ("layers", "stages", "sizes"),
    [(32, 1, (32,)), (32, 2, (16, 16)), (61, 2, (31, 30)), (32, 3, (11, 11, 10)), (78, 4, (19, 20, 20, 19))],
)
def test_left_over_layers_go_before_the_last_stage(layers, stages, sizes):
    """vLLM's `get_pp_indices`: the remainder goes to the stages before the last, from the back."""
    assert stage_sizes(layers, stages) == sizes


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gpt-oss-20b", "deepseek-v3"])
@pytest.mark.parametrize("stages", [1, 2, 3, 7])
def test_stages_sum_to_the_whole_when_the_head_is_not_tied(name, stages):
    model = kvroof.load_model(name)
    parts = stage_models(model, stages)
    assert sum(params_total(part) for part in parts) == params_total(model)
    assert sum(weight_bytes(part) for part in parts) == weight_bytes(model)
    assert sum(kv(part).payload_bytes for part in parts) == kv(model).payload_bytes


def test_a_tied_head_is_a_second_copy_on_the_last_stage():
    model = kvroof.load_model("gemma-3-27b")
    assert sum(params_total(part) for part in stage_models(model, 2)) == params_total(model) + 5376 * 262_208


def test_a_rank_caches_its_own_layers_only():
    """11 of 32 layers, 4,096 B each per token."""
    assert kv(LLAMA, tokens=8192, layout=Layout(pp=3)).bytes_per_rank == 11 * 4096 * 8192
    assert kv(LLAMA, tokens=8192, layout=Layout(pp=3)).payload_bytes == 2**30


@pytest.mark.parametrize("stages", [2, 4])
def test_the_limits_are_the_least_of_all_stages(stages):
    capacity = 12 * 10**9
    whole = fit(LLAMA, capacity, tokens=4096, layout=Layout(pp=stages))
    parts = [fit(part, capacity, tokens=4096) for part in stage_models(LLAMA, stages)]
    assert whole.devices == stages
    assert whole.max_seqs == min(part.max_seqs for part in parts)
    assert whole.max_tokens == min(part.max_tokens for part in parts)
    assert whole.headroom_bytes == min(part.headroom_bytes for part in parts)


def test_each_way_out_mends_every_stage():
    asked = {"tokens": 32768, "seqs": 16, "layout": Layout(pp=2)}
    ledger = fit(LLAMA, 16 * 10**9, **asked)
    assert not ledger.fits
    ways = {way.change: way.to for way in ledger.ways_out}
    assert fit(LLAMA, 16 * 10**9, **{**asked, "seqs": ways["seqs"]}).fits
    assert not fit(LLAMA, 16 * 10**9, **{**asked, "seqs": ways["seqs"] + 1}).fits
    assert fit(LLAMA, 16 * 10**9, **{**asked, "tokens": ways["tokens"]}).fits
    assert fit(LLAMA, ways["capacity_bytes"], **asked).fits


@pytest.mark.parametrize("stages", [0, -1, 33])
def test_stages_that_cannot_be_are_refused(stages):
    with pytest.raises(BadInput, match="--pp"):
        fit(LLAMA, 10**11, layout=Layout(pp=stages))


@pytest.mark.parametrize(
    ("name", "ranks"), [("bloom", 2), ("bloom", 4), ("codellama-13b", 4), ("helium-2b", 2)]
)
def test_ways_out_offer_only_heads_that_the_ranks_divide(name, ranks):
    ledger = fit(kvroof.load_model(name), 2**31, tokens=4096, seqs=2, layout=Layout(tp=ranks))
    heads = [way.to for way in ledger.ways_out if way.change == "num_kv_heads"]
    assert not ledger.fits
    assert all(max(h, ranks) % min(h, ranks) == 0 for h in heads)


def test_stages_share_one_host():
    moved = offload(LLAMA, layers=32)
    ledger = fit(moved, 80 * 10**9, layout=Layout(pp=2))
    assert ledger.host_bytes == fit(moved, 80 * 10**9).host_bytes
    assert any("bounds neither" in line for line in ledger.assumptions)


def test_a_cache_that_is_all_on_the_host_leaves_an_engine_nothing_to_allocate():
    moved = offload(LLAMA, kv=True)
    allocator = parse_allocator("vllm")
    assert fit(moved, 80 * 10**9, allocator=allocator).kv_bytes == 0
