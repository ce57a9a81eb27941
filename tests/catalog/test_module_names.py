"""What checkpoints call the parts of a layer, and that a pattern which names one part names no other.

Sources: the decoder layers of transformers (`modeling_*.py`), of the models' own repositories where that is
older (Mixtral, Kimi-Linear, DBRX, DeepSeek-V4), and the patterns of published `hf_quant_config.json`.
"""

from __future__ import annotations

from typing import Any

import pytest

from kvroof.catalog.families import FAMILIES
from kvroof.catalog.huggingface import read_architecture
from kvroof.catalog.models import load_model, read_entry
from kvroof.catalog.modules import Modules, layer_modules, stems_in
from kvroof.ground.errors import Unsupported
from kvroof.spec.architecture import Architecture
from kvroof.spec.params import params_total, weight_bytes

ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
MLP = {"gate_up_proj", "down_proj"}
EXPERTS = {f"experts.{name}" for name in MLP}
SHARED = {f"shared_expert.{name}" for name in MLP}
KDA = {"q_proj", "k_proj", "v_proj", "b_proj", "f_a_proj", "f_b_proj", "g_a_proj", "g_b_proj", "o_proj"}
LATENT = {"q_proj", "kv_a_proj", "kv_b_proj", "o_proj"}

PARTS = [
    ("mixtral-8x7b-v0.1", "block_sparse_moe.experts", EXPERTS),
    ("mixtral-8x7b-v0.1", "self_attn", ATTENTION),
    ("gpt-oss-20b", "mlp.experts", EXPERTS),
    ("phi-mini-moe", "block_sparse_moe.experts", EXPERTS),
    ("llama-4-scout-17b-16e-fp8-dynamic", "feed_forward.experts", EXPERTS),
    ("llama-4-scout-17b-16e-fp8-dynamic", "feed_forward.shared_expert", SHARED),
    ("dbrx", "ffn.experts", EXPERTS),
    ("dbrx", "norm_attn_norm.attn", ATTENTION),
    ("ai21-jamba-1.5-mini", "feed_forward.experts", EXPERTS),
    ("ai21-jamba-1.5-mini", "feed_forward", EXPERTS | MLP),
    ("ai21-jamba-1.5-mini", "mamba", {"in_proj", "x_proj", "dt_proj", "out_proj"}),
    ("ai21-jamba-1.5-mini", "self_attn", ATTENTION),
    ("granite-4.0-h-1b", "shared_mlp", MLP),
    ("granite-4.0-h-1b", "block_sparse_moe", set()),
    ("granite-4.0-h-1b", "mamba", {"in_proj", "out_proj"}),
    ("gemma-4-26b-a4b", "experts", EXPERTS),
    ("gemma-4-26b-a4b", "mlp", MLP),
    ("gemma-4-26b-a4b", "router", set()),
    ("deepseek-v3", "mlp", MLP | EXPERTS | SHARED),
    ("deepseek-v3", "mlp.shared_experts", SHARED),
    ("deepseek-v4-flash", "ffn.experts", EXPERTS),
    ("deepseek-v4-flash", "ffn.shared_experts", SHARED),
    ("kimi-linear-48b-a3b", "block_sparse_moe.experts", EXPERTS),
    ("kimi-linear-48b-a3b", "mlp", MLP),
    ("kimi-linear-48b-a3b", "self_attn", KDA | LATENT),
    ("qwen3-next-80b-a3b", "linear_attn", {"in_proj_qkvz", "in_proj_ba", "out_proj"}),
    ("qwen3-next-80b-a3b", "self_attn", ATTENTION),
    ("qwen3-next-80b-a3b", "mlp.shared_expert", SHARED),
    ("falcon-h1-3b-base", "mamba", {"in_proj", "out_proj"}),
    ("falcon-h1-3b-base", "self_attn", ATTENTION),
    ("falcon-h1-3b-base", "feed_forward", MLP),
]


def named(model: Architecture, pattern: str) -> set[str]:
    """Return our weights any of whose matrices the pattern names."""
    patterns = Modules.of([pattern])
    parts = FAMILIES[model.model_type].parts
    return {
        name
        for index, group in enumerate(model.order)
        for name, modules in layer_modules(
            model.layers[group].layer, index, stems_in([patterns]), parts, every_expert=False
        )
        if any(patterns.match(module) for module in modules)
    }


@pytest.mark.parametrize(("name", "part", "weights"), PARTS)
def test_a_pattern_that_names_a_part_names_that_part_alone(name: str, part: str, weights: set[str]) -> None:
    assert named(load_model(name), f"model.layers.*.{part}*") == weights


LONGCAT: dict[str, Any] = {
    "model_type": "longcat_flash",
    "hidden_size": 6144,
    "ffn_hidden_size": 12_288,
    "expert_ffn_hidden_size": 2048,
    "num_layers": 28,
    "num_attention_heads": 64,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 512,
    "moe_topk": 12,
    "zero_expert_num": 256,
    "zero_expert_type": "identity",
    "mla_scale_q_lora": True,
    "mla_scale_kv_lora": True,
    "vocab_size": 131_072,
    "max_position_embeddings": 131_072,
    "torch_dtype": "bfloat16",
}


def read(config: dict[str, Any], side: dict[str, Any] | None = None) -> Architecture:
    """Return the architecture of a config and its `hf_quant_config.json`."""
    return read_architecture(config, "config.json", "model", side=side).architecture


def test_both_mlps_of_longcat_lie_beside_its_experts() -> None:
    """`LongcatFlashDecoderLayer`: `mlps` and `self_attn` are lists of two, the experts are `mlp.experts`."""
    model = read(LONGCAT)
    assert named(model, "model.layers.*.mlp.*") == EXPERTS
    assert named(model, "model.layers.*.mlps.*") == MLP
    assert named(model, "model.layers.*.self_attn.1.q_a_proj") == {"q_a_proj"}


def test_two_attentions_of_a_layer_that_are_stored_unlike_are_refused() -> None:
    """Our weights of both go by one name, so one format would be taken for the other."""
    kept = {"quant_method": "fp8", "modules_to_not_convert": ["self_attn.0"]}
    with pytest.raises(Unsupported, match="different formats"):
        read(LONGCAT | {"quantization_config": kept})
    both = {"quant_method": "fp8", "modules_to_not_convert": ["self_attn"]}
    assert weight_bytes(read(LONGCAT | {"quantization_config": both})) < 1.04 * 560_664_958_976


def test_matrices_go_by_the_names_that_their_checkpoints_give_them() -> None:
    """Fused and older names; `index_q_proj` is from nvidia/MiniMax-M3-NVFP4's `hf_quant_config.json`."""
    assert named(load_model("gpt-neox-20b"), "*.mlp.dense_4h_to_h") == {"down_proj"}
    assert named(load_model("gpt2-medium"), "transformer.h.*.attn.c_attn") == {"q_proj", "k_proj", "v_proj"}
    assert named(load_model("mixtral-8x7b-v0.1"), "*.block_sparse_moe.experts.0.w2") == {"experts.down_proj"}
    assert named(load_model("dbrx"), "*.ffn.experts.gate_up_proj") == {"experts.gate_up_proj"}


def test_gemma_4s_experts_are_quantised_though_its_mlps_are_not() -> None:
    """nvidia/Gemma-4-26B-A4B-NVFP4 leaves `mlp*`, `router*` and `self_attn*` of every layer as they were.

    Its 30 layers of 128 experts of 3 x 2816 x 704 take 4.5 bits, and the rest two bytes: 18.8 GB.
    """
    stem = "model.language_model.layers"
    kept = [f"{stem}.{layer}.{part}*" for layer in range(30) for part in ("mlp", "router", "self_attn")]
    side = {"quantization": {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head", *kept]}}
    model = read(read_entry("gemma-4-26b-a4b").config, side)
    experts = 30 * 128 * 3 * 2816 * 704
    assert weight_bytes(model) == experts * 4.5 / 8 + 2 * (params_total(model) - experts)
    assert weight_bytes(model) / 1e9 == pytest.approx(18.8, abs=0.05)


def test_linear_attention_may_be_left_alone_where_attention_is_not() -> None:
    """Qwen3-Next: 36 layers of `linear_attn` beside 12 of `self_attn`."""
    config = read_entry("qwen3-next-80b-a3b").config
    quantised = read(config | {"quantization_config": {"quant_method": "fp8"}})
    kept = read(
        config | {"quantization_config": {"quant_method": "fp8", "modules_to_not_convert": ["linear_attn"]}}
    )
    matrices = 36 * sum(w.elements for w in kept.layers[0].layer.mixers[0].projections)
    tensors = 36 * len(kept.layers[0].layer.mixers[0].projections)
    assert weight_bytes(kept) - weight_bytes(quantised) == matrices - 4 * tensors
