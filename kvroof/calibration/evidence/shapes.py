"""Configs of the shape that a log or a report tells; what does not decide the cache is small."""

from __future__ import annotations

from typing import Any

VOCABULARY = {"vocab_size": 32000, "torch_dtype": "bfloat16", "tie_word_embeddings": False}


def config_of(shape: dict[str, Any]) -> dict[str, Any]:
    """Return the config of a shape: `gemma3`, `gemma4`, a latent, or alike layers with KV heads."""
    if "gemma3" in shape:
        return windowed(**shape["gemma3"])
    if "gemma4" in shape:
        return two_widths(**shape["gemma4"])
    return latent(**shape) if "kv_lora_rank" in shape else uniform(**shape)


def uniform(layers: int, kv_heads: int, head_dim: int) -> dict[str, Any]:
    """Return alike layers of a Llama."""
    heads = kv_heads * max(1, 32 // kv_heads)
    return {
        "model_type": "llama",
        "num_hidden_layers": layers,
        "hidden_size": heads * head_dim,
        "intermediate_size": 4 * heads * head_dim,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        **VOCABULARY,
    }


def latent(layers: int, heads: int, kv_lora_rank: int, qk_rope_head_dim: int) -> dict[str, Any]:
    """Return a config of latent attention; what does not decide the cache is DeepSeek-V3's, or small."""
    return {
        "model_type": "deepseek_v3",
        "num_hidden_layers": layers,
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "q_lora_rank": 1536,
        "kv_lora_rank": kv_lora_rank,
        "qk_rope_head_dim": qk_rope_head_dim,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        **VOCABULARY,
    }


def windowed(
    layers: int, full: int, window: int, kv_heads: int, head_dim: int, model_type: str = "gemma3_text"
) -> dict[str, Any]:
    """Return Gemma's layers, windowed and full."""
    return {
        "model_type": model_type,
        "num_hidden_layers": layers,
        "layer_types": ["sliding_attention"] * (layers - full) + ["full_attention"] * full,
        "sliding_window": window,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_attention_heads": 8,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        **VOCABULARY,
    }


def two_widths(
    layers: int,
    full: int,
    window: int,
    kv_heads: int,
    head_dim: int,
    global_head_dim: int,
    global_kv_heads: int | None = None,
) -> dict[str, Any]:
    """Return Gemma-4's layers: full ones with heads of another width, and of another number where said."""
    config = windowed(layers, full, window, kv_heads, head_dim, "gemma4_text")
    config |= {"global_head_dim": global_head_dim, "attention_k_eq_v": global_kv_heads is not None}
    if global_kv_heads is not None:
        config["num_global_key_value_heads"] = global_kv_heads
    return config
