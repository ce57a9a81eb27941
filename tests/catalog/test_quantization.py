"""Stored bytes of quantised checkpoints: the published total where there is one, else the arithmetic."""

from __future__ import annotations

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
