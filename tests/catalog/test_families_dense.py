"""Dense decoders: published parameter totals and cache bytes, one law for each way to get them wrong.

Configs are restated from the models' `config.json` files on the hub, without the keys that decide nothing.
Totals were counted anew on meta tensors with transformers 5.24 from these same configs, except where it has
no class that reads them (MiniCPM, Yi, Qwen v1, GLM-4-9B, Phi-3-small, OpenELM, Nemotron-NAS): those are the
hub's totals as they are known, not fetched again. A cache is counted by hand.
"""

import pytest

from kvroof.catalog.families import FAMILIES
from kvroof.catalog.huggingface import read_architecture
from kvroof.ground.errors import BadInput, KvroofError, Unsupported
from kvroof.memory.kv import kv
from kvroof.spec.params import params_total


def config(model_type, hidden, layers, heads, vocab, **rest):
    return {
        "model_type": model_type,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "vocab_size": vocab,
        **rest,
    }


def read(data):
    return read_architecture(data, "config.json", "model").architecture


def cache_bytes(data, tokens):
    return kv(read(data), tokens=tokens).payload_bytes


def bf16(*layers):
    """Return bytes of (layers, kv heads, head width, kept tokens) groups, K and V of two bytes each."""
    return sum(count * heads * width * 2 * tokens * 2 for count, heads, width, tokens in layers)


GPT2 = config("gpt2", 768, 12, 12, 50257, max_position_embeddings=1024)
GEMMA_7B = config("gemma", 3072, 28, 16, 256000, num_key_value_heads=16, intermediate_size=24576)
GEMMA_2_2B = config(
    "gemma2", 2304, 26, 8, 256000, num_key_value_heads=4, intermediate_size=9216, sliding_window=4096
)
GEMMA_3_1B = config(
    "gemma3_text",
    1152,
    26,
    4,
    262144,
    num_key_value_heads=1,
    head_dim=256,
    intermediate_size=6912,
    sliding_window=512,
)
GEMMA_3_4B = {
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "sliding_window": 1024,
    },
    "vision_config": {
        "model_type": "siglip_vision_model",
        "hidden_size": 1152,
        "image_size": 896,
        "intermediate_size": 4304,
        "num_attention_heads": 16,
        "num_hidden_layers": 27,
        "patch_size": 14,
        "vision_use_head": False,
    },
}
FALCON_7B = config("falcon", 4544, 32, 71, 65024, multi_query=True, parallel_attn=True, bias=False)
FALCON_40B = config(
    "falcon", 8192, 60, 128, 65024, num_kv_heads=8, new_decoder_architecture=True, multi_query=True
)
SANTACODER = {
    "model_type": "gpt_bigcode",
    "n_embd": 2048,
    "n_layer": 24,
    "n_head": 16,
    "n_inner": 8192,
    "n_positions": 2048,
    "vocab_size": 49280,
}
OPT_350M = config(
    "opt",
    1024,
    24,
    16,
    50272,
    ffn_dim=4096,
    word_embed_proj_dim=512,
    max_position_embeddings=2048,
    do_layer_norm_before=False,
)
OPT_125M = config(
    "opt", 768, 12, 12, 50272, ffn_dim=3072, word_embed_proj_dim=768, max_position_embeddings=2048
)
BLOOM_560M = {
    "model_type": "bloom",
    "n_embed": 1024,
    "n_layer": 24,
    "num_attention_heads": 16,
    "vocab_size": 250880,
}
PYTHIA_160M = config("gpt_neox", 768, 12, 12, 50304, intermediate_size=3072)
GPTJ_6B = {
    "model_type": "gptj",
    "n_embd": 4096,
    "n_layer": 28,
    "n_head": 16,
    "vocab_size": 50400,
    "n_positions": 2048,
}
CODEGEN_350M = {
    "model_type": "codegen",
    "n_embd": 1024,
    "n_layer": 20,
    "n_head": 16,
    "vocab_size": 51200,
    "n_positions": 2048,
}
STARCODER2_3B = config(
    "starcoder2", 3072, 30, 24, 49152, num_key_value_heads=2, intermediate_size=12288, sliding_window=4096
)
PHI_2 = config("phi", 2560, 32, 32, 51200, intermediate_size=10240)
STABLELM_2_1_6B = config(
    "stablelm", 2048, 24, 32, 100352, intermediate_size=5632, num_key_value_heads=32, use_qkv_bias=True
)
MINICPM_2B = config("minicpm", 2304, 40, 36, 122753, intermediate_size=5760, num_key_value_heads=36)
COMMAND_R7B = config(
    "cohere2",
    4096,
    32,
    32,
    256000,
    intermediate_size=14336,
    num_key_value_heads=8,
    head_dim=128,
    sliding_window=4096,
    sliding_window_pattern=4,
    layer_switch=4,
    order_of_interleaved_layers="local_attn_first",
)
OLMO_2_1B = config("olmo2", 2048, 16, 16, 100352, intermediate_size=8192, num_key_value_heads=16)
SMOLLM3_3B = config("smollm3", 2048, 36, 16, 128256, intermediate_size=11008, num_key_value_heads=4)
SEED_OSS_36B = config(
    "seed_oss", 5120, 64, 80, 155136, intermediate_size=27648, num_key_value_heads=8, head_dim=128
)
APERTUS_8B = config(
    "apertus",
    4096,
    32,
    32,
    131072,
    intermediate_size=21504,
    num_key_value_heads=8,
    hidden_act="xielu",
    qk_norm=True,
    post_norm=False,
)
EXAONE_4_32B = config(
    "exaone4",
    5120,
    64,
    40,
    102400,
    intermediate_size=27392,
    num_key_value_heads=8,
    head_dim=128,
    sliding_window=4096,
    sliding_window_pattern="LLLG",
)
YI_6B = config("Yi", 4096, 32, 32, 64000, intermediate_size=11008, num_key_value_heads=4)
XGLM_564M = {
    "model_type": "xglm",
    "d_model": 1024,
    "num_layers": 24,
    "attention_heads": 16,
    "ffn_dim": 4096,
    "vocab_size": 256008,
}
BIOGPT = config("biogpt", 1024, 24, 16, 42384, intermediate_size=4096, max_position_embeddings=1024)
GPT_1 = {
    "model_type": "openai-gpt",
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "vocab_size": 40478,
    "n_positions": 512,
}
GPT_NEO_125M = {
    "model_type": "gpt_neo",
    "hidden_size": 768,
    "num_layers": 12,
    "num_heads": 12,
    "vocab_size": 50257,
    "max_position_embeddings": 2048,
    "attention_types": [[["global", "local"], 6]],
    "window_size": 256,
}
OPENELM_270M = {
    "model_type": "openelm",
    "model_dim": 1280,
    "num_transformer_layers": 16,
    "head_dim": 64,
    "vocab_size": 32000,
    "num_query_heads": [12] * 5 + [16] * 7 + [20] * 4,
    "num_kv_heads": [3] * 5 + [4] * 7 + [5] * 4,
    "ffn_multipliers": [
        *(0.5, 0.73, 0.97, 1.2, 1.43, 1.67, 1.9, 2.13),
        *(2.37, 2.6, 2.83, 3.07, 3.3, 3.53, 3.77, 4.0),
    ],
    "ffn_dim_divisor": 256,
    "ffn_with_glu": True,
    "normalize_qk_projections": True,
    "share_input_output_layers": True,
}
QWEN_1_8B = config(
    "qwen", 2048, 24, 16, 151936, intermediate_size=11008, kv_channels=128, no_bias=True, seq_length=8192
)
GLM_4_9B = {
    "model_type": "chatglm",
    "hidden_size": 4096,
    "num_layers": 40,
    "num_attention_heads": 32,
    "padded_vocab_size": 151552,
    "ffn_hidden_size": 13696,
    "kv_channels": 128,
    "multi_query_attention": True,
    "multi_query_group_num": 2,
    "add_qkv_bias": True,
    "add_bias_linear": False,
    "post_layer_norm": True,
    "rmsnorm": True,
}
PHI_3_SMALL = config(
    "phi3small",
    4096,
    32,
    32,
    100352,
    num_key_value_heads=8,
    ff_intermediate_size=14336,
    gegelu_pad_to_256=True,
    blocksparse_block_size=64,
    dense_attention_every_n_layers=2,
)


def block(group, factor):
    attention = {"no_op": group is None, "n_heads_in_group": group, "replace_with_linear": False}
    return {
        "attention": attention,
        "ffn": {"no_op": False, "ffn_mult": factor, "replace_with_linear": False},
    }


NEMOTRON_SUPER_49B = config(
    "nemotron-nas",
    8192,
    80,
    64,
    128256,
    num_key_value_heads=None,
    intermediate_size=None,
    block_configs=[block(8, 5.25)] * 48
    + [block(8, 2.625)]
    + [block(None, 1.3125)] * 10
    + [block(None, 1.0)] * 8
    + [block(None, 0.5)] * 6
    + [block(None, 2.625)] * 5
    + [block(None, 3.28125), block(None, 5.25)],
)
GEMMA_4_TEXT = config(
    "gemma4_text",
    2304,
    6,
    8,
    262144,
    num_key_value_heads=4,
    intermediate_size=9216,
    head_dim=256,
    global_head_dim=512,
    hidden_size_per_layer_input=0,
)


@pytest.mark.parametrize(
    ("data", "total"),
    [
        pytest.param(GPT2, 124_439_808, id="gpt2"),
        pytest.param(GPT_1, 116_534_784, id="openai-gpt has no last norm"),
        pytest.param(OPT_125M, 125_239_296, id="opt has two position rows more"),
        pytest.param(OPT_350M, 331_196_416, id="opt-350m projects a table of half the width, norms last"),
        pytest.param(BLOOM_560M, 559_214_592, id="bloom norms its embedding"),
        # Pythia paper, arXiv 2304.01373, table 1.
        pytest.param(PYTHIA_160M, 162_322_944, id="gpt-neox has two norms though parallel"),
        pytest.param(GPTJ_6B, 6_050_882_784, id="gptj has a head bias and one norm"),
        pytest.param(CODEGEN_350M, 356_712_448, id="codegen"),
        pytest.param(GPT_NEO_125M, 125_198_592, id="gpt-neo has an output bias, no query bias"),
        pytest.param(XGLM_564M, 564_463_616, id="xglm computes its positions"),
        pytest.param(BIOGPT, 346_763_264, id="biogpt"),
        pytest.param(FALCON_7B, 6_921_720_704, id="falcon-7b"),
        pytest.param(FALCON_40B, 41_303_293_952, id="falcon-40b has two norms in parallel"),
        pytest.param(SANTACODER, 1_124_886_528, id="santacoder"),
        pytest.param(STARCODER2_3B, 3_030_371_328, id="starcoder2"),
        pytest.param(PHI_2, 2_779_683_840, id="phi-2"),
        pytest.param(STABLELM_2_1_6B, 1_644_515_328, id="stablelm-2"),
        pytest.param(MINICPM_2B, 2_724_880_896, id="minicpm is tied though silent"),
        pytest.param(COMMAND_R7B, 8_028_033_024, id="command-r7b has one norm and is tied though silent"),
        pytest.param(OLMO_2_1B, 1_484_916_736, id="olmo2 norms all heads at once"),
        pytest.param(SMOLLM3_3B, 3_075_098_624, id="smollm3 is tied though silent"),
        pytest.param(SEED_OSS_36B, 36_151_104_512, id="seed-oss biases queries, not the output"),
        pytest.param(APERTUS_8B, 8_053_338_176, id="apertus has two matrices and a learned activation"),
        pytest.param(EXAONE_4_32B, 32_003_216_384, id="exaone4"),
        pytest.param(YI_6B, 6_061_035_520, id="yi"),
        pytest.param(GEMMA_7B, 8_537_680_896, id="gemma-7b has 16 heads of 256 in 3072"),
        pytest.param(GEMMA_2_2B, 2_614_341_888, id="gemma-2 has four norms"),
        pytest.param(GEMMA_3_1B, 999_885_952, id="gemma-3-1b"),
        pytest.param(GEMMA_3_4B, 4_300_079_472, id="gemma-3-4b leaves out heads and vocabulary"),
        pytest.param(QWEN_1_8B, 1_836_828_672, id="qwen-1 halves its intermediate size"),
        # The hub's 9,399,951,392 holds 32 rotary frequencies.
        pytest.param(GLM_4_9B, 9_399_951_360, id="glm-4-9b"),
        pytest.param(PHI_3_SMALL, 7_392_272_384, id="phi-3-small"),
        pytest.param(OPENELM_270M, 271_527_168, id="openelm lists heads and widths by layer"),
        pytest.param(NEMOTRON_SUPER_49B, 49_867_145_216, id="nemotron-super skips attention in 31 layers"),
    ],
)
def test_count_is_the_published_one(data, total):
    assert params_total(read(data)) == total


@pytest.mark.parametrize(
    ("data", "tokens", "wanted"),
    [
        pytest.param(FALCON_7B, 8192, bf16((32, 1, 64, 8192)), id="old falcon has one KV head"),
        pytest.param(FALCON_40B, 8192, bf16((60, 8, 64, 8192)), id="new falcon ignores multi_query"),
        pytest.param(SANTACODER, 2048, bf16((24, 1, 128, 2048)), id="multi_query is one head"),
        pytest.param(GEMMA_7B, 8192, bf16((28, 16, 256, 8192)), id="a class's head width beats hidden/heads"),
        pytest.param(GEMMA_2_2B, 8192, bf16((13, 4, 256, 4096), (13, 4, 256, 8192)), id="even layers slide"),
        pytest.param(GEMMA_3_1B, 8192, bf16((22, 1, 256, 512), (4, 1, 256, 8192)), id="each sixth is full"),
        pytest.param(GEMMA_3_4B, 8192, bf16((29, 4, 256, 1024), (5, 4, 256, 8192)), id="34 layers, 5 full"),
        pytest.param(COMMAND_R7B, 8192, bf16((24, 8, 128, 4096), (8, 8, 128, 8192)), id="every 4th full"),
        pytest.param(EXAONE_4_32B, 8192, bf16((48, 8, 128, 4096), (16, 8, 128, 8192)), id="letters L and G"),
        pytest.param(STARCODER2_3B, 8192, bf16((30, 2, 128, 4096)), id="a window on every layer"),
        pytest.param(GLM_4_9B, 8192, bf16((40, 2, 128, 8192)), id="multi_query_group_num is KV heads"),
        pytest.param(PHI_3_SMALL, 8192, bf16((32, 8, 128, 8192)), id="sparse reading stores everything"),
        pytest.param(NEMOTRON_SUPER_49B, 8192, bf16((49, 8, 128, 8192)), id="a no_op layer holds nothing"),
        pytest.param(
            OPENELM_270M, 100, bf16((5, 3, 64, 100), (7, 4, 64, 100), (4, 5, 64, 100)), id="listed KV heads"
        ),
    ],
)
def test_cache_is_the_bytes_of_what_is_kept(data, tokens, wanted):
    assert cache_bytes(data, tokens) == wanted


MISTRAL = config("mistral", 4096, 32, 32, 32000, num_key_value_heads=8, intermediate_size=14336)


def test_mistral_without_a_window_key_has_its_class_window_and_with_null_none():
    """transformers' MistralConfig: 4,096 when the key is absent; v0.2 and later say null."""
    assert cache_bytes(MISTRAL, 8192) == bf16((32, 8, 128, 4096))
    assert cache_bytes({**MISTRAL, "sliding_window": None}, 8192) == bf16((32, 8, 128, 8192))


def test_window_of_null_survives_what_the_catalog_keeps():
    kept = read_architecture({**MISTRAL, "sliding_window": None}, "config.json", "model").config
    assert cache_bytes(kept, 8192) == bf16((32, 8, 128, 8192))


def test_layers_that_list_kinds_against_their_class_are_refused():
    with pytest.raises(BadInput, match="layer_types"):
        read({**MISTRAL, "layer_types": ["full_attention"] * 32})


def test_gemma4_full_layers_have_their_own_heads_and_share_one_projection():
    """Full layers of 2 heads of 512 whose keys are their values: no value matrix, yet both are cached."""
    shared = {**GEMMA_4_TEXT, "attention_k_eq_v": True, "num_global_key_value_heads": 2}
    assert cache_bytes(shared, 8192) == bf16((5, 4, 256, 512), (1, 2, 512, 8192))
    assert params_total(read(GEMMA_4_TEXT)) - params_total(read(shared)) == 2304 * 512 * (4 + 4 - 2)


def test_gemma4_last_layer_is_full_whatever_the_list_says():
    """transformers forces it, and vLLM reads its config."""
    listed = {**GEMMA_4_TEXT, "num_hidden_layers": 2, "layer_types": ["sliding_attention"] * 2}
    assert cache_bytes(listed, 8192) == bf16((1, 4, 256, 512), (1, 4, 512, 8192))


def test_layers_on_an_earlier_cache_hold_nothing_and_make_no_keys():
    """Gemma-3n E4B: 20 of 35 layers store, 16 of them slide; totals of the text stack from transformers."""
    e4b = config(
        "gemma3n_text",
        2048,
        35,
        8,
        262400,
        num_key_value_heads=2,
        intermediate_size=[16384] * 35,
        num_kv_shared_layers=15,
    )
    assert cache_bytes(e4b, 8192) == bf16((16, 2, 256, 512), (4, 2, 256, 8192))
    assert params_total(read(e4b)) == 6_835_235_568
    unshared = {**e4b, "num_kv_shared_layers": 0}
    per_layer = 2 * 2048 * 2 * 256 + 256
    assert params_total(read(unshared)) - params_total(read(e4b)) == 15 * per_layer


def test_group_size_is_not_a_number_of_heads():
    """`n_heads_in_group: 8` of 64 heads is 8 KV heads; 16 would be 4."""
    data = {**NEMOTRON_SUPER_49B, "block_configs": [block(16, 1.0)] * 80}
    assert cache_bytes(data, 1) == bf16((80, 4, 128, 1))


def test_a_part_replaced_by_a_matrix_counts_that_matrix_and_its_norm():
    linear = block(8, 1.0)
    linear["attention"] = {"no_op": False, "n_heads_in_group": None, "replace_with_linear": True}
    skipped = block(None, 1.0)
    with_matrix = {**NEMOTRON_SUPER_49B, "block_configs": [linear] * 80}
    without = {**NEMOTRON_SUPER_49B, "block_configs": [skipped] * 80}
    difference = params_total(read(with_matrix)) - params_total(read(without))
    assert difference == 80 * (8192 * 8192 + 8192)
    assert cache_bytes(with_matrix, 8192) == 0


def test_olmo_has_no_norm_parameters_at_all():
    """OLMo-1B: 1,176,764,416 (arXiv 2402.00838 trains norms without parameters)."""
    data = config(
        "olmo", 2048, 16, 16, 50304, intermediate_size=8192, tie_word_embeddings=True, num_key_value_heads=16
    )
    assert params_total(read(data)) == 50304 * 2048 + 16 * (4 * 2048**2 + 3 * 2048 * 8192) == 1_176_764_416


@pytest.mark.parametrize(
    ("data", "key"),
    [
        ({**GPT2, "add_cross_attention": True}, "add_cross_attention"),
        ({**GPT2, "num_key_value_heads": 4}, "num_key_value_heads"),
        ({**PYTHIA_160M, "head_dim": 128}, "head_dim"),
        ({**QWEN_1_8B, "visual": {"width": 1664}}, "visual"),
        ({**QWEN_1_8B, "no_bias": False}, "no_bias"),
        ({**GLM_4_9B, "add_bias_linear": True}, "add_bias_linear"),
        ({**GLM_4_9B, "rmsnorm": False}, "rmsnorm"),
        ({**GLM_4_9B, "pre_seq_len": 128}, "pre_seq_len"),
        ({**MINICPM_2B, "sparse_config": {"topk": 64}}, "sparse_config"),
        ({**APERTUS_8B, "post_norm": True}, "qk_norm"),
        ({**GEMMA_3_1B, "use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({**GEMMA_3_1B, "num_key_value_heads": None}, "num_key_value_heads"),
        ({**EXAONE_4_32B, "sliding_window_pattern": "LLXG"}, "sliding_window_pattern"),
        ({**OPENELM_270M, "share_input_output_layers": False}, "share_input_output_layers"),
        ({**NEMOTRON_SUPER_49B, "block_configs": [block(8, 1.0)] * 79}, "block_configs"),
        ({**NEMOTRON_SUPER_49B, "block_configs": [block(7, 1.0)] * 80}, "n_heads_in_group"),
        ({**NEMOTRON_SUPER_49B, "block_configs": [block(8, float("inf"))] * 80}, "ffn_mult"),
        ({**MISTRAL, "num_key_value_heads": ...}, "num_key_value_heads"),
        (config("mpt", 4096, 32, 32, 50432, attn_config={"alibi": True, "qk_ln": True}), "qk_ln"),
        (config("mpt", 4096, 32, 32, 50432, no_bias=False), "no_bias"),
        (config("helium", 2560, 2, 20, 48000, head_dim=64, intermediate_size=7040), "head_dim"),
    ],
)
def test_an_option_that_is_not_modelled_is_refused_by_name(data, key):
    data = {name: value for name, value in data.items() if value is not ...}
    with pytest.raises(KvroofError) as raised:
        read(data)
    assert raised.value.key is not None
    assert key in raised.value.key


def test_a_structural_key_of_another_family_is_refused():
    with pytest.raises(Unsupported, match="structure"):
        read({**YI_6B, "attention_sink_size": 4})


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3", "gpt2", "falcon", "phi3", "chatglm"])
def test_a_family_needs_its_sizes(name):
    """No class default fills a width, a layer count or a head count."""
    assert name in FAMILIES
    with pytest.raises(BadInput, match="missing"):
        read({"model_type": name})
