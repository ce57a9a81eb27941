"""Stored bytes of quantised checkpoints: the published total where there is one, else the arithmetic."""

from __future__ import annotations

import time
from typing import Any

import pytest

from kvroof.catalog.huggingface import read_architecture
from kvroof.catalog.models import read_entry
from kvroof.catalog.modules import Modules
from kvroof.ground.errors import BadInput, KvroofError, Unsupported
from kvroof.spec.architecture import Architecture
from kvroof.spec.params import params_total, weight_bytes

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 1000,
    "torch_dtype": "bfloat16",
}
PER_LAYER = 256 * (256 + 128 + 128 + 256) + 3 * 256 * 512
MATRICES = 4 * PER_LAYER
REST = 2 * 1000 * 256 + (2 * 4 + 1) * 256


def stored(quantization: dict[str, Any] | None, side: dict[str, Any] | None = None) -> Architecture:
    """Return the small Llama with a quantization config."""
    data = LLAMA | ({"quantization_config": quantization} if quantization else {})
    return read_architecture(data, "config.json", "small", side=side).architecture


def test_plain_checkpoint_takes_two_bytes_per_parameter() -> None:
    assert weight_bytes(stored(None)) == 2 * (MATRICES + REST) == 2 * params_total(stored(None))


def test_gpt_oss_20b_takes_the_bytes_its_index_says() -> None:
    """`model.safetensors.index.json` of openai/gpt-oss-20b: total_size 13761264768 (mxfp4 experts)."""
    entry = read_entry("gpt-oss-20b")
    assert weight_bytes(read_architecture(entry.config, "x", "x").architecture) == 13_761_264_768


def test_fp8_blocks_store_one_fp32_scale_each() -> None:
    model = stored({"quant_method": "fp8", "weight_block_size": [128, 128]})
    assert weight_bytes(model) == MATRICES + MATRICES // 128**2 * 4 + 2 * REST


def test_fp8_block_scales_add_a_fortieth_of_a_percent() -> None:
    """128 x 128 blocks of one byte each with one fp32 scale: 4 / 16384 = 0.024 %."""
    scales = (
        weight_bytes(stored({"quant_method": "fp8", "weight_block_size": [128, 128]})) - MATRICES - 2 * REST
    )
    assert scales / MATRICES == pytest.approx(0.00024, rel=0.02)


@pytest.mark.parametrize("method", ["awq", "gptq"])
def test_four_bit_groups_store_scale_and_zero_point(method: str) -> None:
    """128 inputs share an fp16 scale and a 4-bit zero: 4 + 20/128 = 4.15625 bits; the head stays bf16."""
    model = stored({"quant_method": method, "bits": 4, "group_size": 128})
    assert weight_bytes(model) == MATRICES * 4.15625 / 8 + 2 * REST


def test_nvfp4_takes_four_and_a_half_bits() -> None:
    side = {
        "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    }
    model = stored(None, side)
    assert weight_bytes(model) == MATRICES * 4.5 / 8 + 2 * REST
    assert model.kv_dtype == "fp8"


def test_excluded_layers_keep_their_dtype() -> None:
    side = {"quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head", "model.layers.0*"]}}
    model = stored(None, side)
    assert weight_bytes(model) == 3 * PER_LAYER * 4.5 / 8 + 2 * PER_LAYER + 2 * REST
    assert model.num_layers == 4


def test_excluded_attention_keeps_its_dtype() -> None:
    quantization = {"quant_method": "fp8", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    attention = 4 * 256 * 768
    tensors = 4 * 2  # gate and up side by side, and down: one per-tensor scale each
    assert (
        weight_bytes(stored(quantization)) == (MATRICES - attention) + 4 * tensors + 2 * attention + 2 * REST
    )


def test_compressed_tensors_groups_apply_to_their_targets_less_what_is_ignored() -> None:
    scheme = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
    quantization = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": scheme}},
        "ignore": ["lm_head", "re:.*self_attn.*"],
        "kv_cache_scheme": {"num_bits": 8, "type": "float"},
    }
    model = stored(quantization)
    attention = 4 * 256 * 768
    assert weight_bytes(model) == (MATRICES - attention) * 4.5 / 8 + 2 * attention + 2 * REST
    assert model.kv_dtype == "fp8"


def test_fp8_weights_do_not_make_an_fp8_cache() -> None:
    assert stored({"quant_method": "fp8"}).kv_dtype is None


def test_mixed_precision_follows_the_listed_layers() -> None:
    listed = {"model.layers.0.mlp": {"quant_algo": "NVFP4"}, "model.layers.1.mlp": {"quant_algo": "NVFP4"}}
    model = stored(None, {"quantization": {"quant_algo": "MIXED_PRECISION", "quantized_layers": listed}})
    quantised = 2 * 3 * 256 * 512
    assert weight_bytes(model) == quantised * 4.5 / 8 + 2 * (MATRICES - quantised) + 2 * REST


def test_unknown_methods_are_refused_with_a_way_out() -> None:
    with pytest.raises(Unsupported, match=r"'magic'.*--ignore-key quantization_config"):
        stored({"quant_method": "magic"})


@pytest.mark.parametrize("pattern", ["re:(a+)+$", "re:.*.*.*.*.*.*.*.*x", "re:[^a]{1,99}", "*" * 20 + "a"])
def test_hostile_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(BadInput):
        Modules.of([pattern]).match("model.layers.0.mlp")


def test_pytorch_names_of_a_layer_are_matched_by_prefix_glob_and_regex() -> None:
    module = "model.layers.3.self_attn.q_proj"
    for pattern in (
        "self_attn",
        "model.layers.3",
        "model.layers.3.*",
        "re:.*self_attn.*",
        "*.q_proj",
        "Linear",
    ):
        assert Modules.of([pattern]).match(module), pattern
    for pattern in ("model.layers.30", "layers.3.mlp", "re:.*mlp.*", "q_pro"):
        assert not Modules.of([pattern]).match(module), pattern


@pytest.mark.parametrize("bits", [3, -4, 0, "four", 10**30, None])
def test_bits_that_are_not_known_are_refused_or_default(bits: object) -> None:
    try:
        stored({"quant_method": "gptq", "bits": bits})
    except KvroofError:
        return
    assert bits is None


ATTENTION = 4 * 256 * (256 + 128 + 128 + 256)
INT4 = {"quant_method": "gptq", "bits": 4, "group_size": 128}
NF4 = {"quant_method": "bitsandbytes", "load_in_4bit": True}


@pytest.mark.parametrize(
    "said",
    [
        NF4 | {"llm_int8_skip_modules": ["lm_head", "self_attn"]},
        {"load_in_4bit": True, "llm_int8_skip_modules": ["lm_head", "q_proj", "k_proj", "v_proj", "o_proj"]},
        INT4 | {"dynamic": {r"-:.*self_attn.*": {}}},
        INT4 | {"dynamic": {r"-:^model\.layers\.(?:0|1|2|3)\.self_attn\.": {}, r"+:.*": {"bits": 4}}},
        INT4 | {"modules_in_block_to_quantize": [["mlp.gate_proj", "mlp.up_proj"], ["mlp.down_proj"]]},
        INT4 | {"modules_to_not_convert": ["self_attn"]},
        {"quant_method": "awq", "w_bit": 4, "q_group_size": 128, "modules_to_not_convert": ["self_attn"]},
        {"quant_method": "fp8", "ignored_layers": ["self_attn"]},
    ],
)
def test_whatever_the_key_that_leaves_attention_alone_it_stays_in_bf16(said: dict[str, Any]) -> None:
    left_out = (
        "llm_int8_skip_modules",
        "dynamic",
        "modules_in_block_to_quantize",
        "modules_to_not_convert",
        "ignored_layers",
    )
    model, whole = stored(said), stored({k: v for k, v in said.items() if k not in left_out})
    narrow = (weight_bytes(whole) - 2 * REST) / MATRICES
    assert weight_bytes(model) == pytest.approx(
        (MATRICES - ATTENTION) * narrow + 2 * (ATTENTION + REST), rel=1e-4
    )
    assert weight_bytes(model) - weight_bytes(whole) > 0.9 * ATTENTION


def test_of_the_patterns_of_gptqmodel_the_first_that_matches_decides() -> None:
    dynamic = {r"+:.*\.0\..*mlp.*": {"bits": 8, "group_size": 64}, r"-:.*mlp.*": {}}
    mlp = 3 * 256 * 512
    expected = (MATRICES - 4 * mlp) * 4.15625 / 8 + mlp * (8 + 24 / 64) / 8 + 2 * (3 * mlp + REST)
    assert weight_bytes(stored(INT4 | {"dynamic": dynamic})) == expected


@pytest.mark.parametrize(
    "pattern", [r"-:(.|.)(.|.)(.|.)(.|.)x", r"-:(?!.*mlp).*", r"-:[9-0]", r"-:(a|a)", r"-:(\1)"]
)
def test_a_pattern_that_is_not_simple_is_refused_with_a_way_out(pattern: str) -> None:
    with pytest.raises(BadInput, match="--weights-dtype"):
        stored(INT4 | {"dynamic": {pattern: {}}})


def test_no_pattern_that_is_accepted_runs_away() -> None:
    hostile = [
        "re:.*.*.*.*.*.*Z",
        "re:.*..*..*..*..*..*Z",
        r"re:(?:l|la|lay)(?:a|ye|e)(?:e|r).*Z",
        "*a*e*l*r*s*Z",
    ]
    modules = Modules.of(hostile)
    began = time.process_time()
    assert not any(modules.match("model.layers.1.self_attn." + "layer." * 10) for _ in range(50))
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    ("method", "key", "value"),
    [
        ({"quant_method": "fp8"}, "dequantize", True),
        ({"quant_method": "fp8"}, "kv_cache_scheme", {"num_bits": 8, "type": "float"}),
        (INT4, "extra_config", {"model.layers.0.mlp.up_proj": {"bits": 16}}),
        (INT4, "adapter", {"name": "lora", "rank": 64}),
        (NF4, "modules_to_save", ["self_attn"]),
        ({"quant_method": "mxfp4"}, "group_size", 16),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "svdquant_rank", 32),
    ],
)
def test_a_key_that_may_move_bytes_is_refused_by_name(
    method: dict[str, Any], key: str, value: object
) -> None:
    stored(method | {key: None})
    with pytest.raises(Unsupported, match=f"quantization_config.{key}.*--ignore-key {key}"):
        stored(method | {key: value})
    left_out = read_architecture(LLAMA | {"quantization_config": method | {key: value}}, "x", "x", [key])
    assert (
        left_out.architecture
        == read_architecture(LLAMA | {"quantization_config": method}, "x", "x").architecture
    )


def test_keys_that_say_how_values_were_found_are_not_refused() -> None:
    """As AutoGPTQ, AutoAWQ, bitsandbytes and compressed-tensors write them."""
    found = {
        "damp_percent": 0.01,
        "desc_act": True,
        "static_groups": False,
        "sym": True,
        "true_sequential": True,
    }
    assert stored(INT4 | found | {"meta": {"quantizer": ["gptqmodel:2.0"]}}) == stored(INT4)
    found = {
        "bnb_4bit_compute_dtype": "bfloat16",
        "bnb_4bit_quant_storage": "uint8",
        "llm_int8_threshold": 6.0,
    }
    assert stored(NF4 | found | {"bnb_4bit_quant_type": "nf4", "_load_in_4bit": True}) == stored(NF4)
    assert stored({"quant_method": "awq", "version": "gemm", "backend": "autoawq"}) == stored(
        {"quant_method": "awq"}
    )


def test_double_quantisation_takes_the_bits_of_the_qlora_paper() -> None:
    """Section 3 of arXiv 2305.14314: 0.5 bits a parameter become 8/64 + 32/(64 * 256) = 0.127 bits."""
    sparing = weight_bytes(stored(NF4 | {"bnb_4bit_use_double_quant": True}))
    assert sparing - 2 * REST == pytest.approx(MATRICES * (4 + 0.127) / 8, rel=2e-4)
    assert weight_bytes(stored(NF4)) - 2 * REST == MATRICES * 4.5 / 8


@pytest.mark.parametrize(
    "said",
    [
        NF4 | {"llm_int8_skip_modules": ["vision_tower"]},
        INT4 | {"lm_head": True},
        {
            "quant_method": "modelopt",
            "quantized_layers": {"lm_head": {"quant_algo": "NVFP4"}},
            "quant_algo": "MIXED",
        },
    ],
)
def test_a_head_that_is_quantised_is_counted_so_unless_it_is_tied(said: dict[str, Any]) -> None:
    model = stored(said)
    assert model.formats.of(model.lm_head).dtype.name in ("int4", "nvfp4")
    assert model.formats.of(model.embedding[0]).dtype.name == "bf16"


def test_parts_of_one_matrix_in_two_formats_are_refused() -> None:
    """The gate and the up projection are one matrix here, and all experts are one shape."""
    with pytest.raises(Unsupported, match="different formats"):
        stored(NF4 | {"llm_int8_skip_modules": ["gate_proj"]})
    entry = read_entry("mixtral-8x7b-v0.1")
    for pattern in (r"-:.*experts\.3\..*", r"-:.*experts\.[0-3]\..*"):
        data = entry.config | {"quantization_config": INT4 | {"dynamic": {pattern: {}}}}
        with pytest.raises(Unsupported, match="different formats"):
            read_architecture(data, "x", "x")
    every = entry.config | {"quantization_config": INT4 | {"dynamic": {r"-:.*experts\.[0-7]\..*": {}}}}
    assert weight_bytes(read_architecture(every, "x", "x").architecture) > 40 * 2**30


@pytest.mark.parametrize(
    ("scheme", "dtype"),
    [
        ({"num_bits": 8, "type": "float"}, "fp8"),
        ({"num_bits": 8, "type": "int"}, "int8"),
        ({"num_bits": 4, "type": "float"}, "nvfp4"),
        ({"num_bits": 4, "type": "int"}, None),
        ({"num_bits": 16, "type": "float"}, None),
        ({"num_bits": 8, "type": "complex"}, None),
        ({"num_bits": 4, "type": "float", "group_size": 64}, None),
    ],
)
def test_one_rule_reads_the_cache_scheme_of_every_quantizer(
    scheme: dict[str, Any], dtype: str | None
) -> None:
    groups = {"g": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float"}}}
    for said in (
        {"quant_method": "compressed-tensors", "config_groups": groups, "kv_cache_scheme": scheme},
        {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": scheme},
    ):
        if dtype is not None:
            assert stored(said).kv_dtype == dtype
            continue
        with pytest.raises(BadInput, match="kv_cache_scheme"):
            stored(said)


def test_asymmetric_groups_store_a_zero_point() -> None:
    scheme = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": False}
    groups = {"g": {"targets": ["Linear"], "weights": scheme}}
    model = stored({"quant_method": "compressed-tensors", "config_groups": groups})
    assert weight_bytes(model) == MATRICES * 4.15625 / 8 + 2 * REST


def test_the_fp4_experts_of_deepseek_v4_take_the_published_size() -> None:
    """huggingface.co/deepseek-ai: the FP8 repackaging doubles the experts that V4 keeps in MXFP4."""
    entry = read_entry("deepseek-v4-flash")
    four, eight = entry.config, entry.config | {"expert_dtype": None}
    mixed, plain = (read_architecture(data, "x", "x").architecture for data in (four, eight))
    experts = 43 * 256 * 3 * 4096 * 2048
    saved = weight_bytes(plain) - weight_bytes(mixed)
    assert saved == pytest.approx(experts * (1 - 17 / 32), rel=0.001)
    with pytest.raises(BadInput, match="expert_dtype"):
        read_architecture(entry.config | {"expert_dtype": "int3"}, "x", "x")


@pytest.mark.parametrize("said", [{}, {"load_in_4bit": True, "load_in_8bit": True}])
def test_bitsandbytes_says_which_of_its_two_formats(said: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="load_in_8bit"):
        stored({"quant_method": "bitsandbytes"} | said)


PUBLISHED_FORMS = {
    "compressed-tensors with a dense sparsity_config": {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float"}}},
        "sparsity_config": {"format": "dense", "sparsity_structure": "unstructured", "targets": []},
        "transform_config": {},
    },
    "GPTQModel 4": {
        "quant_method": "gptq",
        "bits": 8,
        "group_size": -1,
        "pack_dtype": "int32",
        "hyb_act": False,
        "hessian": {"staging_dtype": "float32"},
        "fallback": {"strategy": "rtn"},
        "meta": {"quantizer": ["gptqmodel:4.0"]},
    },
    "ModelOpt inside the config": {
        "quant_method": "modelopt",
        "producer": {"name": "modelopt"},
        "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]},
    },
}
"""Keys that published checkpoints have beside those that decide: all store a byte per element, and scales."""


@pytest.mark.parametrize("name", PUBLISHED_FORMS)
def test_keys_of_published_checkpoints_are_read(name: str) -> None:
    found = weight_bytes(stored(PUBLISHED_FORMS[name])) - 2 * REST
    assert MATRICES < found < 1.02 * MATRICES


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sparsity_config", {"format": "sparse-24-bitmask"}),
        ("transform_config", {"config_groups": {"R1": {"type": "hadamard"}}}),
    ],
)
def test_weights_that_are_not_stored_whole_are_refused(key: str, value: dict[str, Any]) -> None:
    config = PUBLISHED_FORMS["compressed-tensors with a dense sparsity_config"] | {key: value}
    with pytest.raises(KvroofError, match="not understood"):
        stored(config)
