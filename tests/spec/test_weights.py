"""Parameters, bytes and traffic come from one list of shapes, so they cannot disagree."""

import functools

import pytest

from kvroof.catalog.models import load_model as load
from kvroof.catalog.models import model_names
from kvroof.ground.dtypes import DTYPES
from kvroof.spec.ffn import DenseFFN, MoE
from kvroof.spec.params import params_active, params_embedding, params_total, stored_weights, weight_bytes
from kvroof.spec.weights import Format, Weight, stored_as, vector

load_model = functools.cache(load)


@pytest.mark.parametrize("gated", [True, False])
def test_a_gated_mlp_has_three_matrices_and_a_plain_one_two(gated):
    ffn = DenseFFN(hidden_size=64, intermediate_size=256, gated=gated)
    assert sum(w.elements for w in ffn.weights) == (3 if gated else 2) * 64 * 256


def test_biases_of_an_mlp_are_as_wide_as_its_outputs():
    ffn = DenseFFN(hidden_size=64, intermediate_size=256, bias=True)
    assert [w.elements for w in ffn.weights if w.role == "vector"] == [512, 64]


def test_a_token_runs_its_experts_the_shared_one_and_the_router():
    moe = MoE(
        hidden_size=64,
        num_experts=10,
        num_experts_per_tok=3,
        moe_intermediate_size=32,
        shared_intermediate_size=48,
    )
    expert, shared, router = 3 * 64 * 32, 3 * 64 * 48, 64 * 10
    assert sum(w.elements for w in moe.weights) == 10 * expert + shared + router
    assert moe.active_elements == 3 * expert + shared + router


@pytest.mark.parametrize("name", model_names())
def test_bytes_are_two_per_parameter_in_bf16(name):
    model = load_model(name)
    formats = stored_as(DTYPES["bf16"], DTYPES["bf16"])
    towers = sum(t.params for t in model.towers) * DTYPES[model.dtype].block_bytes
    decoder = params_total(model) - sum(t.params for t in model.towers)
    assert weight_bytes(model, formats) == 2 * decoder + towers


@pytest.mark.parametrize("name", model_names())
def test_a_token_runs_through_no_more_than_there_is(name):
    model = load_model(name)
    assert 0 < params_embedding(model) < params_active(model) <= params_total(model)


def test_a_tied_head_is_stored_once():
    model = load_model("gemma-3-27b")
    assert model.tied
    assert "lm_head" not in {weight.name for weight, *_ in stored_weights(model)}
    assert "lm_head" in {weight.name for weight, *_ in stored_weights(load_model("llama-3.1-8b"))}


def test_block_scales_are_counted_with_a_part_filled_block_whole():
    fp8 = Format(dtype=DTYPES["fp8"], scale_block=(128, 128), scale_bits=32)
    assert fp8.stored_bytes(Weight(name="w", shape=(256, 384), role="ffn")) == 256 * 384 + 2 * 3 * 4
    assert fp8.stored_bytes(Weight(name="w", shape=(129, 128), role="ffn")) == 129 * 128 + 2 * 4
    assert fp8.stored_bytes(vector("bias", 384)) == 384
    experts = Weight(name="w", shape=(128, 128), count=7, role="expert")
    assert fp8.stored_bytes(experts) == 7 * (128 * 128 + 4)


def test_a_narrow_format_leaves_embeddings_head_router_and_norms():
    formats = stored_as(DTYPES["int4"], DTYPES["bf16"])
    narrow = {"attention", "ffn", "expert", "shared_expert"}
    for role in (*narrow, "router", "embedding", "lm_head", "vector"):
        weight = Weight(name="w", shape=(64, 64), role=role)
        assert formats.of(weight).stored_bytes(weight) == (2048 if role in narrow else 8192)


def test_a_vocabulary_is_padded_up_to_the_ranks():
    embedding = Weight(name="embed_tokens", shape=(50_257, 768), split=50_257, role="embedding")
    assert embedding.elements_per_rank(4) * 4 >= embedding.elements
    assert embedding.elements_per_rank(4) == -(-50_257 * 768 // 4)


def test_ranks_take_columns_of_the_first_matrix_and_rows_of_the_second():
    up, down = DenseFFN(hidden_size=64, intermediate_size=256, gated=False).projections
    assert up.widths_per_rank(4) == (64, 64)
    assert down.widths_per_rank(4) == (64, 64)
    assert up.widths_per_rank(1) == (64, 256)
