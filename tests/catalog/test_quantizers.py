"""Stored bytes of AutoRound's, Quark's, HQQ's, torchao's and BitNet's checkpoints: the arithmetic of each.

The configs are as these tools write them: AutoRound's `packing_format`, amd/Llama-3.1-8B-Instruct-FP8-KV,
transformers' `HqqConfig` and `TorchAoConfig`, microsoft/bitnet-b1.58-2B-4T.
"""

from __future__ import annotations

from typing import Any

import pytest

from kvroof.catalog.huggingface import read_architecture
from kvroof.ground.errors import KvroofError
from kvroof.spec.architecture import Architecture
from kvroof.spec.params import weight_bytes

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
ATTENTION, MLP = 256 * (256 + 128 + 128 + 256), 3 * 256 * 512
MATRICES = 4 * (ATTENTION + MLP)
REST = 2 * (2 * 1000 * 256 + (2 * 4 + 1) * 256)
TENSORS, ROWS = 4 * 6, 4 * (256 + 128 + 128 + 256 + 1024 + 256)
"""Matrices of four layers, gate and up as one, and their outputs."""


def stored(quantization: dict[str, Any]) -> Architecture:
    """Return the small Llama with a quantization config."""
    data = LLAMA | {"quantization_config": quantization}
    return read_architecture(data, "config.json", "small").architecture


AUTO_ROUND = {
    "quant_method": "auto-round",
    "packing_format": "auto_round:auto_gptq",
    "data_type": "int",
    "bits": 4,
    "group_size": 128,
    "sym": True,
    "autoround_version": "0.5.1",
    "iters": 200,
}


@pytest.mark.parametrize("packing", ["auto_round:auto_gptq", "auto_round:auto_awq", "auto_round"])
def test_autoround_packs_a_scale_and_a_zero_point_per_group(packing: str) -> None:
    assert weight_bytes(stored(AUTO_ROUND | {"packing_format": packing})) == MATRICES * 4.15625 / 8 + REST


def test_autorounds_extra_config_has_bits_of_its_own_for_a_module() -> None:
    extra = {
        "model.layers.0.self_attn.q_proj": {"bits": 8},
        r".*\.mlp\.down_proj": {"bits": 16, "data_type": "float"},
    }
    down, query = 4 * 512 * 256, 256 * 256
    assert weight_bytes(stored(AUTO_ROUND | {"extra_config": extra})) == (
        (MATRICES - down - query) * 4.15625 / 8 + query * (8 + 24 / 128) / 8 + 2 * down + REST
    )


FP8 = {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": False, "ch_axis": None, "symmetric": True}
QUARK = {
    "quant_method": "quark",
    "global_quant_config": {"weight": FP8, "input_tensors": FP8, "output_tensors": None, "bias": None},
    "layer_quant_config": {},
    "layer_type_quant_config": {},
    "kv_cache_quant_config": {},
    "exclude": ["lm_head"],
    "export": {"kv_cache_group": [], "pack_method": "reorder", "weight_format": "real_quantized"},
    "quant_mode": "eager_mode",
    "version": "0.8",
}


def test_quark_stores_fp8_with_an_fp32_scale_per_tensor_or_row() -> None:
    assert weight_bytes(stored(QUARK)) == MATRICES + 4 * TENSORS + REST
    rows = QUARK | {"global_quant_config": {"weight": FP8 | {"qscheme": "per_channel", "ch_axis": 0}}}
    assert weight_bytes(stored(rows)) == MATRICES + 4 * ROWS + REST


def test_quark_stores_fp4_with_an_exponent_per_32() -> None:
    fp4 = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0", "ch_axis": -1}
    quark = QUARK | {"global_quant_config": {"weight": fp4}}
    assert weight_bytes(stored(quark)) == MATRICES * 4.25 / 8 + REST


def test_quarks_own_pattern_comes_before_the_rest_and_after_what_is_left_out() -> None:
    own = QUARK | {
        "layer_quant_config": {"*self_attn*": {"weight": None}},
        "exclude": ["lm_head", "model.layers.0*"],
    }
    assert weight_bytes(stored(own)) == 3 * MLP + 4 * 3 * 2 + 2 * (3 * ATTENTION + ATTENTION + MLP) + REST


def test_quarks_cache_has_the_dtype_of_its_key_and_value_projections() -> None:
    outputs = {name: {"output_tensors": FP8, "weight": FP8} for name in ("*k_proj", "*v_proj")}
    assert stored(QUARK).kv_dtype is None
    assert stored(QUARK | {"kv_cache_quant_config": outputs}).kv_dtype == "fp8"
    assert stored(QUARK | {"layer_quant_config": outputs}).kv_dtype == "fp8"


HQQ = {
    "quant_method": "hqq",
    "quant_config": {
        "weight_quant_params": {"nbits": 4, "group_size": 64, "axis": 1, "channel_wise": True},
        "scale_quant_params": None,
        "zero_quant_params": None,
        "offload_meta": False,
    },
    "skip_modules": ["lm_head"],
}


def test_hqq_stores_a_scale_and_a_zero_of_two_bytes_per_group() -> None:
    assert weight_bytes(stored(HQQ)) == MATRICES * 4.5 / 8 + REST


def torchao(name: str, **data: Any) -> dict[str, Any]:
    """Return torchao's config of one type for all layers."""
    return {
        "quant_method": "torchao",
        "quant_type": {"default": {"_type": name, "_version": 1, "_data": data}},
    }


def test_torchao_stores_groups_or_rows() -> None:
    assert weight_bytes(stored(torchao("Int4WeightOnlyConfig", group_size=128))) == MATRICES * 4.25 / 8 + REST
    assert weight_bytes(stored(torchao("Int8WeightOnlyConfig"))) == MATRICES + 2 * ROWS + REST
    assert weight_bytes(stored(torchao("Float8WeightOnlyConfig"))) == MATRICES + 4 * ROWS + REST


def test_bitnet_packs_four_weights_into_a_byte() -> None:
    bitnet = {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "offline"}
    assert weight_bytes(stored(bitnet)) == MATRICES // 4 + 2 * TENSORS + REST


def test_mxfp8_has_an_exponent_per_32() -> None:
    """ModelOpt's name for it; nvidia/MiniMax-M3-NVFP4 has it in attention and dense MLPs."""
    listed = {f"model.layers.{layer}.mlp": {"quant_algo": "MXFP8"} for layer in range(4)}
    side = {"quantization": {"quant_algo": "MIXED_PRECISION", "quantized_layers": listed}}
    model = read_architecture(LLAMA, "config.json", "small", side=side).architecture
    assert weight_bytes(model) == 4 * (MLP * 8.25 / 8 + 2 * ATTENTION) + REST


REFUSED = [
    pytest.param({"quant_method": "exl2", "bits": 4.25}, id="exl2"),
    pytest.param({"quant_method": "aqlm", "num_codebooks": 1, "nbits_per_codebook": 16}, id="aqlm"),
    pytest.param(AUTO_ROUND | {"data_type": "nv_fp"}, id="autoround-fp"),
    pytest.param(AUTO_ROUND | {"bits": 3}, id="autoround-3-bits"),
    pytest.param(AUTO_ROUND | {"packing_format": "gguf"}, id="autoround-gguf"),
    pytest.param(
        QUARK | {"global_quant_config": {"weight": [FP8, {"dtype": "int4"}]}}, id="quark-two-stages"
    ),
    pytest.param(QUARK | {"global_quant_config": {"weight": {"dtype": "int4"}}}, id="quark-int4"),
    pytest.param(QUARK | {"layer_type_quant_config": {"Embedding": {"weight": FP8}}}, id="quark-by-type"),
    pytest.param({"quant_method": "hqq", "quant_config": {"layers": {}}}, id="hqq-by-layer"),
    pytest.param(torchao("UIntXWeightOnlyConfig"), id="torchao-unknown"),
    pytest.param({"quant_method": "torchao", "quant_type": "int4_weight_only"}, id="torchao-text"),
    pytest.param(
        torchao("Int8WeightOnlyConfig") | {"include_input_output_embeddings": True}, id="torchao-all"
    ),
]


@pytest.mark.parametrize("quantization", REFUSED)
def test_bytes_that_are_not_defined_are_refused(quantization: dict[str, Any]) -> None:
    with pytest.raises(KvroofError, match="quantization_config"):
        stored(quantization)


@pytest.mark.parametrize("key", ["quantization", "compression_config"])
def test_storage_that_another_key_describes_is_not_taken_for_plain(key: str) -> None:
    """MLX says `quantization`, older compressed-tensors `compression_config`."""
    mlx = {"group_size": 64, "bits": 4}
    with pytest.raises(KvroofError, match=key):
        read_architecture(LLAMA | {key: mlx}, "config.json", "small")
