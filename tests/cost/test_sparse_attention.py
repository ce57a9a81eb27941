"""Sparse attention is priced by what it reads: an index over every key, then the few that it picks."""

import itertools

import pytest

from kvroof.catalog.huggingface import read_architecture
from kvroof.cost.formulas import step_pairs
from kvroof.cost.forward import forward
from kvroof.cost.products import Run
from kvroof.ground.dtypes import DTYPES
from kvroof.spec.precision import BF16_KV
from kvroof.spec.reach import Full, Selected, Sliding, Strided
from kvroof.spec.weights import unquantised
from kvroof.spec.workload import Sequences, Step, decode, prefill

DSA = {
    "model_type": "glm_moe_dsa",
    "hidden_size": 64,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "vocab_size": 128,
    "intermediate_size": 96,
    "q_lora_rank": 32,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 64,
    "v_head_dim": 16,
    "index_n_heads": 2,
    "index_head_dim": 128,
    "index_topk": 100,
    "indexer_types": ["full", "full", "shared", "shared", "shared", "full"],
    "tie_word_embeddings": False,
}
V4 = {
    "model_type": "deepseek_v4",
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 128,
    "head_dim": 32,
    "q_lora_rank": 16,
    "o_lora_rank": 8,
    "o_groups": 2,
    "hc_mult": 4,
    "sliding_window": 8,
    "compress_ratios": [0, 4, 128],
    "index_n_heads": 2,
    "index_head_dim": 16,
    "index_topk": 10,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 8,
    "tie_word_embeddings": False,
}
RUN = Run(formats=unquantised(DTYPES["bf16"]), kv_format=BF16_KV)


def ops(config, step, name, run=RUN):
    model = read_architecture(config, "config.json", "model").architecture
    return [op for op in forward(model, step, run) if op.name == name]


def total(config, step, name, field):
    return sum(op.count * getattr(op, field) for op in ops(config, step, name))


@pytest.mark.parametrize("ratio", [1, 4, 7])
@pytest.mark.parametrize("size", [1, 5, 30])
def test_picked_pairs_are_the_sum_over_queries(size, ratio):
    for n in (0, 1, 3, 17, 64, 200):
        pairs = sum(min(i // ratio, size) for i in range(1, n + 1))
        assert Selected(size=size, ratio=ratio).pairs(n) == pairs


def test_picking_everything_is_full_attention_and_picking_few_a_window():
    for n in (1, 50, 400):
        assert Selected(size=400).pairs(n) == Full().pairs(n)
        assert Selected(size=20).pairs(n) == Sliding(size=20).pairs(n)


def test_a_decode_step_reads_every_index_key_and_few_latents():
    """ATTENTION_ZOO: the index of all T, `min(T, topk)` latents; three of six layers have an index."""
    for tokens in (40, 1000):
        step = decode(3, tokens)
        assert total(DSA, step, "index.mla+dsa", "kv_bytes") == 3 * 3 * (tokens + 1) * 128 * 2
        picked = min(tokens, 100) + 1
        assert total(DSA, step, "attention.mla+dsa", "kv_bytes") == 3 * 6 * picked * 576 * 2


def test_the_index_scores_every_pair_and_attention_the_picked_ones():
    step = prefill(2, 1000)
    every, picked = 1000 * 1001 // 2, 100 * 101 // 2 + 900 * 100
    assert total(DSA, step, "index.mla+dsa", "flops") == 3 * 2 * 2 * 2 * 128 * every
    assert total(DSA, step, "attention.mla+dsa", "flops") == 6 * 2 * 2 * 4 * (576 + 512) * picked


def test_a_layer_that_shares_an_index_does_not_run_one():
    assert sum(op.count for op in ops(DSA, decode(1, 10), "index.mla+dsa")) == 3


def test_chunks_of_a_sparse_prefill_sum_to_the_whole():
    for reach in (Selected(size=9), Selected(size=9, ratio=4), Strided(ratio=4)):
        ends = list(itertools.accumulate((5, 1, 30, 64)))
        parts = [
            Step(groups=(Sequences(count=2, query_len=q, kv_len=end),))
            for q, end in zip((5, 1, 30, 64), ends, strict=True)
        ]
        assert sum(step_pairs(part, reach) for part in parts) == step_pairs(prefill(2, 100), reach)


def test_a_compressed_layer_reads_its_window_and_the_entries_behind_it():
    """V4: windows of 8 on three layers; 10 of 1000/4 entries, picked; all 1000/128 entries."""
    step = decode(1, 1000)
    assert total(V4, step, "attention.sliding", "kv_bytes") == 3 * (8 + 1) * 32 * 2
    assert total(V4, step, "attention.compressed+dsa", "kv_bytes") == (10 + 1) * 32 * 2
    assert total(V4, step, "index.compressed+dsa", "kv_bytes") == (250 + 1) * 16 * 2
    assert total(V4, step, "attention.compressed", "kv_bytes") == 7 * 32 * 2


def test_an_entry_is_written_when_its_block_is_full():
    reads = [total(V4, decode(1, n), "attention.compressed", "kv_bytes") // 64 for n in (127, 128, 129)]
    assert reads == [0, 2, 1]


def test_sparse_attention_costs_less_than_dense_once_it_picks():
    dense = {key: value for key, value in DSA.items() if not key.startswith("index")}
    dense["model_type"] = "deepseek_v3"
    few, many = decode(1, 90), decode(1, 100_000)
    assert total(DSA, few, "attention.mla+dsa", "flops") == total(dense, few, "attention.mla", "flops")
    assert total(DSA, many, "attention.mla+dsa", "flops") < total(dense, many, "attention.mla", "flops") / 900


def test_a_projection_of_what_attention_made_is_not_fused_with_those_of_its_input():
    """V4's grouped output projection: 2 groups of 64 x 8, its rows beside those of the others."""
    step, layers = decode(3, 1000), 3
    assert total(V4, step, "o_a_proj", "flops") == layers * 3 * 2 * (2 * 64 * 8)
    assert total(V4, step, "o_a_proj", "activation_bytes") == layers * 3 * (2 * 64 + 2 * 8) * 2
    into = 64 * (16 + 32)  # the queries' first step and the one key, of the hidden size 64
    assert total(V4, step, "qkv_proj", "flops") == layers * 3 * 2 * into
