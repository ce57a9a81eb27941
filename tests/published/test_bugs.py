"""Wrong sizes that people reported in public, and the right ones: one test per kind of mistake.

The wrong figures are negative controls: kvroof must not agree with them. Of 23 reports two are about what
kvroof does not model and must refuse rather than guess: pages padded by a TPU kernel (tpu-inference#757) and
a model whose shape is not in the report (llmfit#203, Qwen3.5-9B; the mistake itself is tested).
"""

import dataclasses

import pytest

import kvroof
from kvroof.calibration.evidence.shapes import latent, uniform, windowed
from kvroof.catalog.huggingface import read_architecture
from kvroof.ground.errors import BadInput, Unsupported
from kvroof.ground.units import GIB, MIB
from kvroof.memory.allocators import parse_allocator
from kvroof.memory.engines.llama_cpp import LlamaCpp
from kvroof.memory.engines.pool import PageGroup, Pool
from kvroof.memory.engines.vllm import VLLM
from kvroof.memory.kv import fixed_bytes
from kvroof.memory.layers import caches
from kvroof.spec.parallel import Layout
from kvroof.spec.precision import FP8_PACKED, HF_STATE, parse_kv_format
from kvroof.spec.reach import Full


def read(config):
    return read_architecture(config, "report", "report").architecture


def per_token(model, kv_dtype="bf16"):
    """Return the bytes that a short sequence grows by."""
    return kvroof.kv(model, tokens=1, kv_format=parse_kv_format(kv_dtype, model)).bytes_per_token


def payload(model, tokens, kv_dtype="bf16", seqs=1):
    kv_format = parse_kv_format(kv_dtype, model)
    return kvroof.kv(model, tokens=tokens, seqs=seqs, kv_format=kv_format).payload_bytes


def figures(model, size, limit, kv_dtype="bf16", tp=1):
    engine = VLLM(max_model_len=limit)
    formats = engine.formats(model, parse_kv_format(kv_dtype, model), HF_STATE)
    return engine.figures(model, size, *formats, tp)


def pool(model, kv_dtype="bf16", tp=1, **flags):
    engine = VLLM(**flags)
    formats = engine.formats(model, parse_kv_format(kv_dtype, model), HF_STATE)
    return engine.pool(model, *formats, tp)


@pytest.fixture(scope="module")
def gemma_4():
    return kvroof.load_model("gemma-4-31b")


@pytest.fixture(scope="module")
def qwen_27b():
    return kvroof.load_model("qwen3.5-27b")


def test_a_new_way_of_reporting_is_not_ten_times_the_memory(gemma_4):
    """vllm#43308: about 55k tokens in v0.20, about 525k in v0.21, the same 50 GiB."""
    made = figures(gemma_4, 50 * GIB, 131_072)
    assert made.kv_cache_tokens_old == pytest.approx(55_000, rel=0.01)
    assert made.kv_cache_tokens == pytest.approx(525_000, rel=0.015)
    assert made.num_blocks == figures(gemma_4, 50 * GIB, 8_192).num_blocks


def test_memory_over_reported_tokens_is_no_rate(gemma_4):
    """vllm#51041: 4.05 to 92.62 KiB per token on one machine: a request has a fixed part and a slope."""
    rates = [50 * GIB / figures(gemma_4, 50 * GIB, limit).kv_cache_tokens for limit in (2_048, 262_144)]
    assert rates[0] > 6 * rates[1]
    group = pool(gemma_4)
    first, second, third = (group.request_blocks(n) for n in (65_536, 131_072, 262_144))
    slope = (second - first) / 65_536
    assert third - second == pytest.approx(slope * 131_072)
    assert first - slope * 65_536 == pytest.approx(5 * 193, abs=1)


def test_a_smaller_max_model_len_shrinks_the_reported_tokens(gemma_4):
    """dsv4-spark#57: 398k tokens with 50k contexts, 2.45M with 500k, in the same pool."""
    counts = [figures(gemma_4, 25 * GIB, limit).kv_cache_tokens for limit in (5_000, 50_000, 262_144)]
    assert counts == sorted(counts)
    assert counts[2] > 3 * counts[0]


def test_latent_attention_is_not_counted_as_heads():
    """vllm#32614: GLM-4.7-Flash took about four times its memory; a layer stores 576 elements per token."""
    model = read(latent(layers=47, heads=20, kv_lora_rank=512, qk_rope_head_dim=64))
    assert per_token(model) == 47 * 576 * 2
    as_heads = 47 * 20 * (192 + 128) * 2
    assert as_heads / per_token(model) > 4


def test_latents_stored_as_padded_heads_are_larger_than_the_naive_count():
    """vllm#10927, DeepSeek-V2-Lite: 442,368 B per token padded, 276,480 naive, 31,104 as latents."""
    model = kvroof.load_model("deepseek-v2-lite")
    assert per_token(model) == 31_104
    expanded = LlamaCpp(mla="expanded").stored(model, parse_kv_format("bf16", model))
    assert sum(size * layers for _, size, layers in expanded) == 276_480
    mixer = dataclasses.replace(model.layers[0].layer.mixers[0], qk_nope_head_dim=192, v_head_dim=256)
    padded = dataclasses.replace(
        model,
        layers=tuple(
            dataclasses.replace(g, layer=dataclasses.replace(g.layer, mixers=(mixer,))) for g in model.layers
        ),
    )
    padded_sizes = LlamaCpp(mla="expanded").stored(padded, parse_kv_format("bf16", padded))
    assert sum(size * layers for _, size, layers in padded_sizes) == 442_368


def test_the_second_buffer_of_a_windowed_model_is_added_not_overwritten():
    """ollama#17037, gemma3:4b at 128K: 2,734 MiB of KV (2,560 + 174); one of the two had been lost."""
    model = read(windowed(layers=34, full=5, window=1024, kv_heads=4, head_dim=256))
    held = kvroof.kv(model, tokens=131_072, allocator=parse_allocator("llama.cpp")).allocated_bytes
    assert held == 2734 * MIB


def test_recurrent_layers_are_not_counted_as_attention(qwen_27b):
    """lmstudio#1862, Qwen3.6-27B at 262,144: 16,384 MiB of KV and 598.50 MiB of states, not 75 GB in all."""
    assert payload(qwen_27b, 262_144) - fixed_bytes(qwen_27b) == 16_384 * MIB
    _, state = LlamaCpp().formats(qwen_27b, parse_kv_format("f16", qwen_27b), HF_STATE)
    assert 4 * fixed_bytes(qwen_27b, state) == 598.5 * MIB


def test_a_block_of_a_hybrid_holds_its_attention_layers_only(qwen_27b):
    """omlx#2725: 4 MiB per block of 64 tokens (16 of 64 layers), not 16 MiB."""
    assert per_token(qwen_27b) * 64 == 4 * MIB


def test_a_hybrid_fits_where_counting_every_layer_says_it_does_not():
    """llmfit#203: a hybrid "does not fit". Qwen3.5-9B's shape is not in the report: Qwen3.5-27B's is used."""
    model = kvroof.load_model("qwen3.5-27b")
    as_attention = 64 * 4 * (256 + 256) * 2
    room = int(payload(model, 131_072) * 1.1)
    assert kvroof.fit(model, room, tokens=131_072, weights_bytes=0, utilization=1).fits
    assert as_attention * 131_072 > room


def test_a_page_for_k_and_v_is_derived_from_k_and_v():
    """ascend#7393, Qwen3.5-35B on 8 ranks: 536,576 B pages for 274,432 B used, as the block came from K."""
    model = kvroof.load_model("qwen3-next-80b-a3b")
    made = pool(dataclasses.replace(model, state_dtype="fp32"), tp=8, spec_tokens=3)
    assert made.state_bytes == 262_144 + 12_288 == 274_432
    page = made.block_bytes // made.groups[0].layers
    assert page - made.padded_bytes == 274_432
    assert page < 1.02 * 274_432 < 536_576


def test_the_shortest_prompt_takes_a_block_of_every_group():
    """vllm#54458: 12 tokens take 32.9 % of a pool of 70 blocks, as each of 23 groups takes one."""
    group = PageGroup(kind="full", layers=1, block_size=7808, reach=Full())
    made = Pool(groups=(group,) * 23, block_bytes=1)
    assert made.request_blocks(12) / 70 == pytest.approx(0.329, abs=5e-4)


def test_twice_the_tokens_come_from_the_cache_dtype_not_from_smaller_weights(qwen_27b):
    """vllm-recipes, Qwen3.8-27B on 2 ranks: 377,456 and 445,875 tokens are bf16, 920,517 is fp8."""
    bf16, fp8 = (pool(qwen_27b, kv_dtype, tp=2) for kv_dtype in ("bf16", "fp8"))
    assert [(p.block_size, p.request_blocks(262_144)) for p in (bf16, fp8)] == [(784, 341), (1568, 174)]

    def whole(tokens, made):
        """Return whether a whole number of blocks gives this count."""
        each = made.request_blocks(262_144)
        return any(n * 262_144 // each == tokens for n in range(tokens * each // 262_144, 10_000))

    assert [whole(377_456, bf16), whole(445_875, bf16), whole(920_517, fp8)] == [True] * 3
    assert [whole(377_456, fp8), whole(445_875, fp8), whole(920_517, bf16)] == [False] * 3
    by_weights = (32 - 10.64) / (32 - 12.02)
    assert by_weights < 1.1 < 920_517 / 445_875


def test_heads_are_divided_over_ranks():
    """transformers#48566, Qwen3-32B on 4 ranks: 3,258 blocks of 256, not 814."""
    model = kvroof.load_model("qwen3-32b")
    one, four = (pool(model, tp=tp, block_size=256).block_bytes for tp in (1, 4))
    size = 3258 * four
    assert size // four == 3258
    assert size // one == 814


def test_windows_at_a_short_context_cost_no_more_than_full_attention(gemma_4):
    """tt-xla#5860: rings of whole windows for 128 tokens took more than full layers (43,420 < 60,768)."""
    whole = sum(
        layers * 128 * parse_kv_format("bf16", gemma_4).token_bytes(cache)
        for cache, layers in caches(gemma_4)
    )
    assert payload(gemma_4, 128) == whole
    paged = kvroof.kv(gemma_4, tokens=128, seqs=32).allocated_bytes
    assert paged == 32 * whole
    assert kvroof.kv(gemma_4, tokens=128, allocator=parse_allocator("llama.cpp")).allocated_bytes == 2 * whole


def test_more_ranks_than_heads_hold_one_head_each():
    """tenstorrent/vllm#50, Llama-3-70B on 32 devices: one head each, not 8 // 32 = 0."""
    model = kvroof.load_model("llama-3-70b")
    report = kvroof.kv(model, tokens=1, allocator=parse_allocator("payload"), layout=Layout(tp=32))
    assert report.bytes_per_rank == 80 * 1 * (128 + 128) * 2


def test_pages_that_a_tpu_kernel_pads_are_refused_not_guessed():
    """tpu-inference#757: a page of 262,144 B was really 524,288 B, so 4,338 blocks and not 8,676."""
    assert 8676 * 262_144 == 4338 * 524_288
    with pytest.raises(BadInput, match="not an allocator"):
        parse_allocator("tpu-inference")


def test_a_packed_row_of_deepseek_v4_is_584_bytes():
    """vllm#47716: 512 elements are not 512 bytes: 584 with scales and a bf16 rotary part."""
    model = kvroof.load_model("deepseek-v4-flash")
    rows = {FP8_PACKED.token_bytes(dataclasses.replace(c, index_width=0)) for c, _ in caches(model)}
    assert rows == {584}


def test_a_shared_latent_is_not_two_times_head_dim():
    """sparkrun#247: 43 layers of one shared entry of 512: 88,064 B per token was K and V; rows are packed."""
    model = kvroof.load_model("deepseek-v4-flash")
    assert 43 * 2 * 512 * 2 == 88_064
    entries = [c for c, layers in caches(model) for _ in range(layers) if c.reach.window is not None]
    assert len(entries) == 43
    assert sum(FP8_PACKED.token_bytes(c) for c in entries) == 43 * 584
    deepseek_v3_2 = kvroof.load_model("deepseek-v3.2")
    assert {
        FP8_PACKED.token_bytes(dataclasses.replace(c, index_width=0)) for c, _ in caches(deepseek_v3_2)
    } == {656}


def test_a_packed_row_is_refused_where_no_kernel_has_it():
    with pytest.raises(Unsupported, match="fp8_ds_mla"):
        per_token(kvroof.load_model("llama-3.1-8b"), "fp8_ds_mla")


def test_a_cache_is_of_kv_heads_not_of_hidden_times_heads():
    """vllm-fit#2: `2 L heads hidden 4 / 8` is 8 times a 7B model's cache."""
    model = kvroof.load_model("llama-2-7b")
    assert 8 * per_token(model) == 2 * 32 * 32 * 4096 * 4 / 8


def test_grouped_heads_are_not_all_heads():
    """vllm#8089, Llama-3-70B with 3,000 tokens: 0.983 GB, not just under 8 GB."""
    model = kvroof.load_model("llama-3-70b")
    assert payload(model, 3000) == 983_040_000
    assert 8 * payload(model, 3000) == 8192 * 80 * 2 * 2 * 3000


def test_a_cache_in_f32_is_twice_one_in_f16():
    """llama-cpp-python#66, a 30B of 60 layers: 1,560 MiB for 512 tokens, and 780 only in f16."""
    model = read(uniform(layers=60, kv_heads=52, head_dim=128))
    assert payload(model, 512, "f32") == 1560 * MIB
    assert payload(model, 512, "f16") == 780 * MIB


def test_a_sequences_cache_is_not_the_memory_of_the_process():
    """KIVI#17, Llama-2-7B with 4,196 tokens: 2.049 GiB, not 5.6 GB."""
    assert payload(kvroof.load_model("llama-2-7b"), 4196) == 2_199_912_448
    assert pytest.approx(2.05, abs=0.002) == 2_199_912_448 / GIB


def test_a_published_figure_that_follows_from_nothing_is_not_met():
    """whichllm#124, Gemma-3-27B at 128K: 12.68 or 2.20 GB; f16 is 62 GiB whole, 10 GiB trimmed."""
    model = kvroof.load_model("gemma-3-27b")
    whole = LlamaCpp(swa_full=True).buffers(model, 131_072, 1, parse_kv_format("f16", model))
    assert sum(size for size, *_ in whole) == 62 * GIB
    trimmed = payload(model, 131_072)
    assert 10 * GIB < trimmed < 10.5 * GIB
    for published in (12.68e9, 2.20e9):
        assert abs(trimmed / published - 1) > 0.1
    mistral = payload(kvroof.load_model("mistral-7b-v0.1"), 131_072)
    assert mistral == 512 * MIB
    assert abs(mistral / 3.29e9 - 1) > 0.1
