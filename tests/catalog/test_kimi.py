"""Kimi-K3: the keys of the published config.json that decide cost, and what its card and shards say."""

from __future__ import annotations

from typing import Any

import pytest

from kvroof.catalog.huggingface import read_architecture
from kvroof.ground.errors import BadInput
from kvroof.memory.kv import growth_bytes
from kvroof.spec.architecture import Architecture
from kvroof.spec.params import params_active, params_embedding, params_total, weight_bytes

FULL = [*range(4, 93, 4), 93]
K3: dict[str, Any] = {
    "attn_res_block_size": 12,
    "dtype": "bfloat16",
    "first_k_dense_replace": 1,
    "hidden_size": 7168,
    "intermediate_size": 33_792,
    "kv_lora_rank": 512,
    "latent_moe_use_norm": True,
    "linear_attn_config": {
        "full_attn_layers": FULL,
        "gate_lower_bound": -5.0,
        "head_dim": 128,
        "kda_layers": [layer for layer in range(1, 94) if layer not in FULL],
        "num_heads": 96,
        "short_conv_kernel_size": 4,
        "use_full_rank_gate": True,
    },
    "max_position_embeddings": 1_048_576,
    "mla_use_nope": True,
    "mla_use_output_gate": True,
    "model_type": "kimi_linear",
    "moe_intermediate_size": 3072,
    "moe_layer_freq": 1,
    "num_attention_heads": 96,
    "num_experts": 896,
    "num_experts_per_token": 16,
    "num_hidden_layers": 93,
    "num_key_value_heads": 96,
    "num_shared_experts": 2,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "routed_expert_hidden_size": 3584,
    "tie_word_embeddings": False,
    "v_head_dim": 128,
    "vocab_size": 163_840,
    "quantization_config": {
        "quant_method": "compressed-tensors",
        "format": "mxfp4-pack-quantized",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {"num_bits": 4, "type": "float", "group_size": 32, "strategy": "group"},
            }
        },
        "ignore": [
            "re:.*self_attn.*",
            "re:.*shared_experts.*",
            r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
            "re:.*lm_head.*",
            "re:.*vision_tower.*",
            "re:.*mm_projector.*",
        ],
    },
}
VISION: dict[str, Any] = {
    "attn_bias": False,
    "init_pos_emb_height": 64,
    "init_pos_emb_width": 64,
    "linear_bias": False,
    "merge_kernel_size": [2, 2],
    "mlp_type": "mlp2",
    "mm_hidden_size": 1024,
    "mm_projector_type": "patchmergerv2",
    "norm_type": "rmsnorm",
    "patch_embed_proj_bias": False,
    "patch_size": 14,
    "qkv_hidden_size": 1536,
    "vt_hidden_size": 1024,
    "vt_intermediate_size": 4096,
    "vt_num_attention_heads": 12,
    "vt_num_hidden_layers": 27,
}


def read(vision: dict[str, Any] | None = None, **changes: Any) -> Architecture:
    """Return Kimi-K3."""
    data = {"model_type": "kimi_k3", "text_config": K3 | changes, "vision_config": vision or VISION}
    return read_architecture(data, "config.json", "kimi-k3").architecture


def test_it_has_the_parameters_that_its_card_says() -> None:
    """The card and the report: 2.8T parameters, 104B active; MoonViT-V2 has 401M without its projector."""
    model = read()
    assert params_total(model) / 1e12 == pytest.approx(2.8, abs=0.05)
    assert (params_active(model) - params_embedding(model)) / 1e9 == pytest.approx(104, abs=0.5)
    (tower,) = model.towers
    assert (tower.params - 4096 * (4096 + 7168)) / 1e6 == pytest.approx(401, abs=0.5)


def test_an_expert_is_as_large_as_its_tensors_in_the_checkpoint() -> None:
    """The shards hold 896 experts of 33,030,144 parameters in 17,547,264 bytes each, 93 % of all bytes."""
    model = read()
    ffn = next(g.layer for g in model.layers if g.layer.formats and len(g.layer.ffns[0].weights) > 3)
    experts = [w for w in ffn.weights if w.role == "expert"]
    assert sum(w.elements for w in experts) == 896 * 33_030_144
    assert ffn.formats is not None
    stored = sum(ffn.formats.of(w).stored_bytes(w) for w in experts)
    assert stored == 896 * 17_547_264
    assert 92 * stored / weight_bytes(model) == pytest.approx(0.93, abs=0.005)


def test_only_its_24_latent_layers_grow() -> None:
    """512 + 64 elements of two bytes per token and layer."""
    assert growth_bytes(read(), 1000) == 24 * 576 * 2


def test_what_kimi_k3_adds_is_off_where_the_file_does_not_say_it() -> None:
    plain = params_total(read(attn_res_block_size=None))
    assert params_total(read()) - plain == 93 * 4 * 7168 + 2 * 7168
    ungated = params_total(read(mla_use_output_gate=False))
    assert params_total(read()) - ungated == 24 * 7168 * 96 * 128
    assert params_total(read()) - params_total(read(latent_moe_use_norm=False)) == 92 * 3584


@pytest.mark.parametrize(
    ("key", "value"), [("mm_projector_type", "patchmerger"), ("norm_type", "layernorm"), ("attn_bias", True)]
)
def test_another_tower_is_refused(key: str, value: object) -> None:
    with pytest.raises(BadInput, match=key):
        read(VISION | {key: value})
