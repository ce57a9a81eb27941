"""What an attention stores and multiplies with: shapes, splits and score widths."""

import pytest

from kvroof.catalog.models import load_model
from kvroof.spec.attention import GroupedAttention, LatentAttention
from kvroof.spec.precision import parse_kv_format
from kvroof.spec.reach import Full


def grouped(**changes):
    fields = {
        "hidden_size": 4096,
        "num_heads": 32,
        "num_kv_heads": 8,
        "head_dim": 128,
        "v_head_dim": 128,
        "reach": Full(),
    }
    return GroupedAttention(**{**fields, **changes})


def latent(**changes):
    fields = {
        "hidden_size": 7168,
        "num_heads": 128,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "reach": Full(),
    }
    return LatentAttention(**{**fields, **changes})


def shapes(mixer):
    return {w.name: w.shape for w in mixer.projections}


def test_grouped_heads_have_the_shapes_of_llama_8b():
    assert shapes(grouped()) == {
        "q_proj": (4096, 4096),
        "k_proj": (4096, 1024),
        "v_proj": (4096, 1024),
        "o_proj": (4096, 4096),
    }


def test_keys_and_values_may_differ_in_width():
    mixer = grouped(head_dim=192, v_head_dim=128)
    assert shapes(mixer)["q_proj"] == (4096, 32 * 192)
    assert shapes(mixer)["k_proj"] == (4096, 8 * 192)
    assert shapes(mixer)["v_proj"] == (4096, 8 * 128)
    assert shapes(mixer)["o_proj"] == (32 * 128, 4096)
    assert mixer.cache.kv_width == 8 * (192 + 128)
    assert mixer.score_dims("absorbed") == mixer.score_dims("expanded") == (192, 128)


def test_a_layer_that_reads_an_earlier_cache_stores_and_projects_no_keys():
    mixer = grouped(stores_kv=False)
    assert mixer.caches == ()
    assert list(shapes(mixer)) == ["q_proj", "o_proj"]


def test_latent_attention_has_the_shapes_of_deepseek_v3():
    assert shapes(latent()) == {
        "q_a_proj": (7168, 1536),
        "q_b_proj": (1536, 128 * 192),
        "kv_a_proj": (7168, 576),
        "o_proj": (128 * 128, 7168),
    }
    assert latent().up_projection.shape == (512, 128 * 256)


def test_a_latent_is_stored_once_for_all_heads_and_without_values():
    cache = latent().cache
    assert (cache.k_width, cache.v_width, cache.kv_width, cache.split) == (576, 0, 576, 1)


def test_no_query_rank_means_one_query_matrix():
    mixer = latent(q_lora_rank=None)
    assert shapes(mixer)["q_proj"] == (7168, 128 * 192)
    assert [w.name for w in mixer.norms] == ["kv_a_layernorm"]


def test_absorbed_and_expanded_flops_per_pair_are_those_of_deepseek_v3():
    """2 n (d_nope + d_rope + d_v) = 81,920 and 2 n (2 r_kv + d_rope) = 278,528."""
    mixer = latent()
    assert 2 * mixer.num_heads * sum(mixer.score_dims("expanded")) == 81_920
    assert 2 * mixer.num_heads * sum(mixer.score_dims("absorbed")) == 278_528


@pytest.mark.parametrize("tp", [1, 2, 4, 8, 16])
def test_kv_heads_shard_until_there_are_none_left_and_then_are_copied(tp):
    kv_format = parse_kv_format("bf16", load_model("llama-3.1-8b"))
    assert kv_format.token_bytes(grouped().cache, tp) == 2 * 2 * 128 * max(8 // tp, 1)
    assert kv_format.token_bytes(latent().cache, tp) == 2 * 576


def test_keys_and_values_may_be_cached_in_two_formats():
    kv_format = parse_kv_format("q8_0/iq4_nl", load_model("llama-3.1-8b"))
    assert kv_format.name == "q8_0/iq4_nl"
    assert kv_format.token_bytes(grouped().cache) == 1024 // 32 * (34 + 18)
