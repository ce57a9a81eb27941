"""Mixture-of-experts, latent and sparse decoders: published totals and cache bytes, one law for each trap.

Configs are restated from the models' `config.json` files on the hub, without the keys that decide nothing.
Totals were counted on meta tensors with transformers' own classes; Kimi-K2 is DeepSeek-V3's class under
another name. A cache is counted by hand. What is stated in billions is from model cards, to the digits
printed.
"""

import pytest

from kvroof.catalog.huggingface import read_architecture
from kvroof.ground.errors import BadInput, Unsupported
from kvroof.memory.kv import kv
from kvroof.spec.params import params_active, params_total


def config(model_type, hidden, layers, heads, vocab, **rest):
    return {
        "model_type": model_type,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "vocab_size": vocab,
        **{"tie_word_embeddings": False, **rest},
    }


def without(data, *keys):
    return {key: value for key, value in data.items() if key not in keys}


def read(data):
    return read_architecture(data, "config.json", "model").architecture


def params(data):
    return params_total(read(data))


def cache_bytes(data, tokens):
    return kv(read(data), tokens=tokens).payload_bytes


def latents(rank=512, rope=64, nope=128, value=128, query=1536):
    return {
        "kv_lora_rank": rank,
        "q_lora_rank": query,
        "qk_nope_head_dim": nope,
        "qk_rope_head_dim": rope,
        "v_head_dim": value,
    }


def routed(count, active, width, shared=1, first=1):
    return {
        "n_routed_experts": count,
        "num_experts_per_tok": active,
        "moe_intermediate_size": width,
        "n_shared_experts": shared,
        "first_k_dense_replace": first,
    }


DEEPSEEK_V3 = config(
    "deepseek_v3",
    7168,
    61,
    128,
    129280,
    intermediate_size=18432,
    num_key_value_heads=128,
    num_nextn_predict_layers=1,
    moe_layer_freq=1,
    **latents(),
    **routed(256, 8, 2048, first=3),
)
DEEPSEEK_V2_LITE = config(
    "deepseek_v2",
    2048,
    27,
    16,
    102400,
    intermediate_size=10944,
    num_key_value_heads=16,
    **latents(query=None),
    **routed(64, 6, 1408, shared=2),
)
INDEX = {"index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048}
DEEPSEEK_V32 = {**DEEPSEEK_V3, **INDEX, "model_type": "deepseek_v32"}
KIMI_K2 = {
    **DEEPSEEK_V3,
    **routed(384, 8, 2048),
    "model_type": "kimi_k2",
    "num_attention_heads": 64,
    "vocab_size": 163840,
}
GLM_5 = config(
    "glm_moe_dsa",
    6144,
    78,
    64,
    154880,
    intermediate_size=12288,
    num_key_value_heads=64,
    head_dim=64,
    index_n_heads=32,
    index_head_dim=128,
    index_topk=2048,
    **latents(nope=192, value=256, query=2048),
    **routed(256, 8, 2048, first=3),
)
GLM_5_2 = {**GLM_5, "head_dim": 192, "index_topk_freq": 4, "index_skip_topk_offset": 3}
MINICPM3 = config(
    "minicpm3",
    2560,
    62,
    40,
    73448,
    intermediate_size=6400,
    num_key_value_heads=40,
    **without(latents(rank=256, rope=32, nope=64, query=768), "v_head_dim"),
)
LONGCAT = {
    **without(
        config("longcat_flash", 6144, 28, 64, 131072, **latents()),
        "num_hidden_layers",
    ),
    "num_layers": 28,
    "ffn_hidden_size": 12288,
    "expert_ffn_hidden_size": 2048,
    "n_routed_experts": 512,
    "moe_topk": 12,
    "zero_expert_num": 256,
    "zero_expert_type": "identity",
}
DEEPSEEK_V4_FLASH = config(
    "deepseek_v4",
    4096,
    43,
    64,
    129280,
    num_key_value_heads=1,
    head_dim=512,
    q_lora_rank=1024,
    o_lora_rank=1024,
    o_groups=8,
    hc_mult=4,
    sliding_window=128,
    num_hash_layers=3,
    num_nextn_predict_layers=1,
    compress_ratios=[0, 0] + [4, 128] * 20 + [4, 0],
    **{**INDEX, "index_topk": 512},
    **without(routed(256, 6, 2048), "first_k_dense_replace"),
)
MIXTRAL = config(
    "mixtral",
    4096,
    32,
    32,
    32000,
    intermediate_size=14336,
    num_key_value_heads=8,
    num_local_experts=8,
    num_experts_per_tok=2,
    sliding_window=None,
)
QWEN_15_MOE = config(
    "qwen2_moe",
    2048,
    24,
    16,
    151936,
    intermediate_size=5632,
    num_key_value_heads=16,
    moe_intermediate_size=1408,
    shared_expert_intermediate_size=5632,
    num_experts=60,
    num_experts_per_tok=4,
    sliding_window=32768,
    use_sliding_window=False,
    max_window_layers=21,
)
QWEN3_30B = config(
    "qwen3_moe",
    2048,
    48,
    32,
    151936,
    head_dim=128,
    intermediate_size=6144,
    num_key_value_heads=4,
    moe_intermediate_size=768,
    num_experts=128,
    num_experts_per_tok=8,
    decoder_sparse_step=1,
    mlp_only_layers=[],
)
OLMOE = config(
    "olmoe",
    2048,
    16,
    16,
    50304,
    intermediate_size=1024,
    num_key_value_heads=16,
    num_experts=64,
    num_experts_per_tok=8,
)
PHI_MINI_MOE = config(
    "phimoe",
    4096,
    32,
    32,
    32064,
    intermediate_size=960,
    head_dim=128,
    num_key_value_heads=8,
    num_local_experts=16,
    num_experts_per_tok=2,
    attention_bias=True,
    lm_head_bias=True,
    sliding_window=2047,
)
DBRX = {
    "model_type": "dbrx",
    "d_model": 6144,
    "n_heads": 48,
    "n_layers": 40,
    "vocab_size": 100352,
    "tie_word_embeddings": False,
    "attn_config": {"clip_qkv": 8, "kv_n_heads": 8},
    "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
}
ERNIE = config(
    "ernie4_5_moe",
    2560,
    28,
    20,
    103424,
    intermediate_size=12288,
    num_key_value_heads=4,
    moe_intermediate_size=1536,
    moe_k=6,
    moe_num_experts=64,
    moe_num_shared_experts=2,
    moe_layer_start_index=1,
    moe_layer_end_index=27,
    moe_layer_interval=1,
)
MINIMAX_M2 = config(
    "minimax_m2",
    3072,
    62,
    48,
    200064,
    head_dim=128,
    intermediate_size=1536,
    num_key_value_heads=8,
    num_local_experts=256,
    num_experts_per_tok=8,
    use_qk_norm=True,
    qk_norm_type="per_layer",
    num_mtp_modules=3,
)
MINIMAX_M3 = config(
    "minimax_m3",
    6144,
    60,
    64,
    200064,
    head_dim=128,
    intermediate_size=3072,
    dense_intermediate_size=12288,
    shared_intermediate_size=3072,
    num_key_value_heads=4,
    num_local_experts=128,
    num_experts_per_tok=4,
    moe_layer_freq=[0] * 3 + [1] * 57,
    sparse_attention_config={
        "sparse_attention_freq": [0] * 3 + [1] * 57,
        "sparse_block_size": 128,
        "sparse_index_dim": 128,
        "sparse_num_index_heads": 4,
        "sparse_topk_blocks": 16,
    },
)
_MIMO_PATTERN = [0] + [1] * 4 + ([0] + [1] * 5) * 7 + [0]
MIMO_V2_FLASH = config(
    "mimo_v2_flash",
    4096,
    48,
    64,
    152576,
    intermediate_size=16384,
    num_key_value_heads=4,
    head_dim=192,
    v_head_dim=128,
    swa_num_key_value_heads=8,
    swa_num_attention_heads=64,
    swa_head_dim=192,
    swa_v_head_dim=128,
    sliding_window=128,
    sliding_window_size=128,
    attention_chunk_size=128,
    hybrid_layer_pattern=_MIMO_PATTERN,
    moe_layer_freq=[0] + [1] * 47,
    n_routed_experts=256,
    n_shared_experts=None,
    num_experts_per_tok=8,
    moe_intermediate_size=2048,
    add_swa_attention_sink_bias=True,
    add_full_attention_sink_bias=False,
)
LLAMA_4_SCOUT = config(
    "llama4_text",
    5120,
    48,
    40,
    202048,
    intermediate_size=8192,
    intermediate_size_mlp=16384,
    head_dim=128,
    num_key_value_heads=8,
    num_local_experts=16,
    num_experts_per_tok=1,
    interleave_moe_layer_step=1,
    attention_chunk_size=8192,
    use_qk_norm=True,
)
LING_MINI_2 = config(
    "bailing_moe_v2",
    2048,
    20,
    16,
    157184,
    intermediate_size=5120,
    head_dim=128,
    num_key_value_heads=4,
    num_experts=256,
    num_experts_per_tok=8,
    num_shared_experts=1,
    moe_intermediate_size=512,
    moe_shared_expert_intermediate_size=512,
    moe_router_enable_expert_bias=True,
    first_k_dense_replace=1,
    use_qk_norm=True,
    use_qkv_bias=False,
    use_bias=False,
)


@pytest.mark.parametrize(
    ("data", "total"),
    [
        (DEEPSEEK_V3, 671_026_404_352),
        (DEEPSEEK_V2_LITE, 15_706_484_224),
        (DEEPSEEK_V32, 671_877_929_216),
        (KIMI_K2, 1_026_408_209_408),
        (GLM_5, 743_911_199_232),
        (GLM_5_2, 743_377_000_704),
        (DEEPSEEK_V4_FLASH, 284_332_230_231),
        (MIXTRAL, 46_702_792_704),
        (QWEN_15_MOE, 14_315_784_192),
        (QWEN3_30B, 30_532_122_624),
        (OLMOE, 6_919_161_856),
        (PHI_MINI_MOE, 7_647_632_704),
        (DBRX, 131_596_523_520),
        (MINIMAX_M2, 228_689_748_992),
        (MIMO_V2_FLASH, 308_778_768_832),
        (LLAMA_4_SCOUT, 107_769_861_120),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_a_published_model_has_its_published_parameters(data, total):
    assert params(data) == total


@pytest.mark.parametrize(
    ("data", "billions"),
    # Technical reports and model cards, to the digits they print.
    [(LONGCAT, 560.7), (LING_MINI_2, 16.3), (MINIMAX_M3, 426.2)],
    ids=["longcat", "ling", "minimax-m3"],
)
def test_a_model_without_a_class_count_has_its_printed_size(data, billions):
    assert round(params(data) / 1e9, 1) == billions


@pytest.mark.parametrize(
    ("data", "bytes_per_token"),
    # ATTENTION_ZOO's anchors: 61 x 576 x 2, 27 x 576 x 2, 62 x 288 x 2.
    [(DEEPSEEK_V3, 70_272), (DEEPSEEK_V2_LITE, 31_104), (KIMI_K2, 70_272), (MINICPM3, 35_712)],
    ids=["v3", "v2-lite", "k2", "minicpm3"],
)
def test_a_latent_is_cached_once_for_all_heads(data, bytes_per_token):
    assert cache_bytes(data, 1000) == 1000 * bytes_per_token


def test_kv_heads_mean_nothing_to_a_latent():
    assert cache_bytes({**DEEPSEEK_V3, "num_key_value_heads": 1}, 1000) == cache_bytes(DEEPSEEK_V3, 1000)


def test_a_null_query_rank_stays_null():
    """A class default of 1536 would add 42.5 M parameters to DeepSeek-V2-Lite."""
    per_layer = 2048 * 1536 + 1536 + 1536 * 16 * 192 - 2048 * 16 * 192
    assert params({**DEEPSEEK_V2_LITE, "q_lora_rank": 1536}) - params(DEEPSEEK_V2_LITE) == 27 * per_layer
    with pytest.raises(BadInput, match="q_lora_rank"):
        read(without(DEEPSEEK_V2_LITE, "q_lora_rank"))


def test_a_config_that_says_no_latent_has_plain_heads():
    """DeepSeek-VL2-tiny: `use_mla` false, every latent width 0 or null."""
    zero = dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), 0)
    plain = {**DEEPSEEK_V2_LITE, **zero, "use_mla": False, "kv_lora_rank": None}
    assert cache_bytes(plain, 10) == 10 * 27 * 2 * 2048 * 2


def test_multi_token_blocks_are_not_counted():
    assert params({**DEEPSEEK_V3, "num_nextn_predict_layers": 3}) == params(DEEPSEEK_V3)


def test_values_of_minicpm3_are_as_wide_as_a_head():
    """Its files leave `v_head_dim` out; its class makes it hidden/heads. Tied, the total is 4.07 B."""
    assert params({**MINICPM3, "tie_word_embeddings": True}) == 4_073_875_968


def test_an_index_key_is_cached_beside_the_latent():
    assert cache_bytes(DEEPSEEK_V32, 1000) == 1000 * 85_888


def test_only_the_layers_with_an_index_cache_its_key():
    """GLM-5.2: three full layers, then every fourth: 21 of 78."""
    assert cache_bytes(GLM_5, 1000) == 1000 * 78 * (576 + 128) * 2
    assert cache_bytes(GLM_5_2, 1000) == 1000 * (78 * 576 + 21 * 128) * 2


def test_a_listed_and_a_drawn_index_pattern_say_the_same():
    drawn = "FFF" + "SSSF" * 18 + "SSS"
    listed = ["full" if letter == "F" else "shared" for letter in drawn]
    assert params({**GLM_5, "index_topk_pattern": drawn}) == params(GLM_5_2)
    assert params({**GLM_5, "indexer_types": listed}) == params(GLM_5_2)


def test_a_first_layer_cannot_share_an_index():
    with pytest.raises(BadInput, match="full"):
        read({**GLM_5, "indexer_types": ["shared"] * 78})


def test_longcats_scales_and_identity_experts_hold_nothing():
    """LongCat-Flash-Chat's config says all three; its class has 560,664,958,976 parameters."""
    said = {"mla_scale_q_lora": True, "mla_scale_kv_lora": True, "zero_expert_type": "identity"}
    assert params(LONGCAT | said) == params(LONGCAT) == 560_664_958_976


def test_lings_shared_expert_may_have_a_width_of_its_own():
    wider = LING_MINI_2 | {"moe_shared_expert_intermediate_size": 1024}
    assert params(wider) - params(LING_MINI_2) == 19 * 3 * 2048 * 512


def test_a_longcat_layer_has_two_caches():
    assert cache_bytes(LONGCAT, 1000) == 1000 * 64_512


def test_zero_experts_hold_no_weights_and_take_their_share_of_the_choices():
    """The router scores all 768; of a token's 12 choices 8 compute. The report: 27 B active on average."""
    more = {**LONGCAT, "zero_expert_num": 512}
    assert params(more) - params(LONGCAT) == 28 * 6144 * 256
    embedding = 131_072 * 6144
    assert round((params_active(read(LONGCAT)) - embedding) / 1e9) == 27


def test_v4_keeps_a_window_compressed_entries_and_what_waits_to_be_compressed():
    """Flash: 43 windows of 128 x 512; 21 layers (512 + 128)/4, 20 layers 512/128; 12.2 MB of fp32."""
    window, light, heavy = 43 * 128 * 512 * 2, 21 * 640 * 2, 20 * 512 * 2
    waiting = 21 * (65_536 + 16_384) + 20 * 524_288
    assert cache_bytes(DEEPSEEK_V4_FLASH, 131_072) == (
        window + 131_072 // 4 * light + 131_072 // 128 * heavy + waiting
    )
    assert cache_bytes(DEEPSEEK_V4_FLASH, 130) == window + 32 * light + heavy + waiting
    assert cache_bytes(DEEPSEEK_V4_FLASH, 1) == 43 * 512 * 2 + waiting


def test_v4_names_its_layers_or_their_ratios():
    names = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
    listed = without(DEEPSEEK_V4_FLASH, "compress_ratios")
    types = [names[ratio] for ratio in DEEPSEEK_V4_FLASH["compress_ratios"][:43]]
    assert params({**listed, "layer_types": types}) == params(DEEPSEEK_V4_FLASH)
    with pytest.raises(BadInput, match="compress_ratios"):
        read(listed)


def test_a_sparse_reader_stores_every_key_and_an_index_key_besides():
    """MiniMax-M3: 60 layers of 4 x 128 K and V, a 128-wide index key on 57 of them."""
    assert cache_bytes(MINIMAX_M3, 1000) == 1000 * (60 * 1024 + 57 * 128) * 2


def test_kv_heads_and_widths_differ_by_layer_kind():
    """MiMo-V2: 9 full layers of 4 heads, 39 windows of 8; keys are 192 wide, values 128."""
    assert cache_bytes(MIMO_V2_FLASH, 1000) == (1000 * 9 * 4 + 128 * 39 * 8) * (192 + 128) * 2


def test_sinks_are_parameters_and_not_tokens():
    none = {**MIMO_V2_FLASH, "add_swa_attention_sink_bias": False}
    assert params(MIMO_V2_FLASH) - params(none) == 39 * 64
    assert cache_bytes(none, 1000) == cache_bytes(MIMO_V2_FLASH, 1000)


def test_chunks_are_local_except_where_positions_are_not_rotary():
    """Llama-4: absent, or an empty list, every fourth layer is global; 1 is local, 0 is global."""
    row = 2 * 8 * 128 * 2
    absent = cache_bytes(LLAMA_4_SCOUT, 10_000)
    assert absent == (36 * 8192 + 12 * 10_000) * row
    assert cache_bytes({**LLAMA_4_SCOUT, "no_rope_layers": []}, 10_000) == absent
    assert cache_bytes({**LLAMA_4_SCOUT, "no_rope_layers": [1] * 48}, 10_000) == 48 * 8192 * row
    assert cache_bytes({**LLAMA_4_SCOUT, "attention_chunk_size": None}, 10_000) == 48 * 10_000 * row


def test_a_llama_4_layer_without_experts_has_the_wide_mlp():
    """Maverick's step of 2: half the layers drop 17 MLPs of 8192 and a router for one of 16384."""
    every = params(LLAMA_4_SCOUT)
    half = params({**LLAMA_4_SCOUT, "interleave_moe_layer_step": 2})
    assert every - half == 24 * (17 * 3 * 5120 * 8192 + 16 * 5120 - 3 * 5120 * 16384)


def test_a_live_window_bounds_the_cache():
    assert cache_bytes(PHI_MINI_MOE, 10_000) == 32 * 2047 * 2 * 8 * 128 * 2


def test_a_window_that_is_switched_off_is_dead():
    assert cache_bytes(QWEN_15_MOE, 40_000) == 40_000 * 24 * 2 * 2048 * 2
    with pytest.raises(BadInput, match="layer_types"):
        read({**QWEN_15_MOE, "use_sliding_window": True})


def test_a_shared_expert_has_its_own_width_and_a_gate():
    none = {**QWEN_15_MOE, "shared_expert_intermediate_size": 0}
    assert params(QWEN_15_MOE) - params(none) == 24 * 3 * 2048 * 5632


def test_dense_layers_are_where_the_step_and_the_list_say():
    """Qwen3: `mlp_only_layers`, and layers that the step passes over, have the dense MLP."""
    change = 128 * 3 * 2048 * 768 + 128 * 2048 - 3 * 2048 * 6144
    whole = params(QWEN3_30B)
    assert whole - params({**QWEN3_30B, "mlp_only_layers": [0, 7]}) == 2 * change
    assert whole - params({**QWEN3_30B, "decoder_sparse_step": 3}) == 32 * change


def test_a_score_correction_is_a_parameter_only_where_the_class_makes_it_one():
    """ERNIE 4.5's class holds it as a parameter; DeepSeek-V3's as a buffer. Tied, 21,825,437,888."""
    ernie = {**ERNIE, "tie_word_embeddings": True}
    assert params(ernie) == 21_825_437_888
    assert params({**ernie, "moe_num_experts": 65}) - params(ernie) == 27 * (3 * 2560 * 1536 + 2560 + 1)


def test_ernie_is_tied_when_its_file_is_silent():
    assert read(without(ERNIE, "tie_word_embeddings")).tied


def test_dbrx_keeps_its_heads_and_experts_in_objects():
    assert cache_bytes(DBRX, 1000) == 1000 * 40 * 2 * 8 * 128 * 2
    with pytest.raises(BadInput, match="ffn_config"):
        read(without(DBRX, "ffn_config"))


def test_two_spellings_of_one_number_must_agree():
    with pytest.raises(BadInput, match="different"):
        read({**QWEN3_30B, "num_local_experts": 64})


def test_a_mixture_of_attentions_runs_few_of_its_experts():
    """JetMoE-8B: 8.5 B in all (its model card); a token runs 2 of 8, and all share keys and values."""
    jetmoe = config(
        "jetmoe",
        2048,
        24,
        32,
        32000,
        intermediate_size=5632,
        kv_channels=128,
        num_key_value_heads=16,
        num_local_experts=8,
        num_experts_per_tok=2,
        tie_word_embeddings=True,
    )
    assert round(params(jetmoe) / 1e9, 1) == 8.5
    square, router, vectors = 2048 * 2048, 8 * 2048, 4 * 2048
    attention, experts = (2 + 2 * 2) * square + router, 2 * 3 * 2048 * 5632 + router
    assert params_active(read(jetmoe)) == 24 * (attention + experts + vectors) + 2048 + 32_000 * 2048
    assert cache_bytes(jetmoe, 1000) == 1000 * 24 * 2 * 16 * 128 * 2


@pytest.mark.parametrize(
    "key", ["n_routed_experts", "num_experts_per_tok", "kv_lora_rank", "num_attention_heads"]
)
def test_what_decides_the_size_has_no_default(key):
    with pytest.raises(BadInput, match=key):
        read(without(DEEPSEEK_V3, key))


def test_an_unknown_structural_key_is_refused():
    with pytest.raises(Unsupported, match="moe_extra_layers"):
        read({**DEEPSEEK_V3, "moe_extra_layers": 2})


def test_cross_layer_sharing_is_refused_where_the_class_has_none():
    hunyuan = config(
        "hunyuan_v1_moe",
        4096,
        32,
        32,
        128167,
        head_dim=128,
        intermediate_size=3072,
        num_key_value_heads=8,
        num_experts=64,
        moe_topk=[8] * 32,
        num_shared_expert=[1] * 32,
        moe_intermediate_size=[3072] * 32,
        use_qk_norm=True,
        use_cla=False,
        tie_word_embeddings=True,
    )
    # Hunyuan-A13B's card: 80 B parameters, 13 B active.
    assert round(params(hunyuan) / 1e9) == 80
    assert round(params_active(read(hunyuan)) / 1e9) == 13
    with pytest.raises(BadInput, match="use_cla"):
        read({**hunyuan, "use_cla": True})
