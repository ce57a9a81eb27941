"""Families whose layers are attention and one dense MLP."""

from __future__ import annotations

from kvroof.catalog.config import Config
from kvroof.catalog.families.blocks import (
    every_nth_full,
    four_times_hidden,
    heads,
    late_window,
    listed,
    mlp,
    window,
)
from kvroof.catalog.families.family import Family
from kvroof.spec.attention import GroupedAttention
from kvroof.spec.reach import Full
from kvroof.spec.weights import Weight, vector

LLAMA = Family(mixers=heads(qkv_bias="attention_bias", o_bias="attention_bias"), ffns=mlp(bias="mlp_bias"))
MISTRAL = Family(mixers=heads(reach=window))
QWEN2 = Family(mixers=heads(qkv_bias=True, reach=listed(late_window)))
QWEN3 = Family(
    mixers=heads(
        head_dim=128,
        qk_norm="head",
        qkv_bias="attention_bias",
        o_bias="attention_bias",
        reach=listed(late_window),
    )
)
GEMMA3 = Family(
    mixers=heads(
        head_dim=256,
        qk_norm="head",
        reach=listed(every_nth_full(6, 4096, "sliding_window_pattern"), 4096),
    ),
    norms=4,
    tied=True,
    vocab_size=262_208,
)


def _falcon_heads(config: Config, layer: int) -> tuple[GroupedAttention, ...]:
    """Return Falcon's heads: the new decoder groups them, the old one has one KV head or all."""
    hidden, n = config.integer("hidden_size"), config.integer("num_attention_heads")
    new, multi_query = config.boolean("new_decoder_architecture", False), config.boolean("multi_query", True)
    m = config.integer("num_kv_heads", n) if new else (1 if multi_query else n)
    if hidden % n:
        config.fail("hidden_size", f"{hidden} is not a multiple of {n} heads")
    width = hidden // n
    extras: tuple[Weight, ...] = ()
    if config.boolean("bias", False):
        extras = (vector("query_key_value.bias", (n + 2 * m) * width), vector("dense.bias", hidden))
    return (
        GroupedAttention(
            hidden_size=hidden,
            num_heads=n,
            num_kv_heads=m,
            head_dim=width,
            v_head_dim=width,
            reach=Full(),
            extras=extras,
        ),
    )


def _falcon_norms(config: Config, layer: int) -> int:
    """Return two norms for the new decoder (unless told one) and for sequential blocks, else one."""
    if config.boolean("new_decoder_architecture", False):
        return config.integer("num_ln_in_parallel_attn", 2, maximum=2)
    return 1 if config.boolean("parallel_attn", True) else 2


FALCON = Family(
    mixers=_falcon_heads,
    ffns=mlp(gated=False, bias="bias", width=four_times_hidden),
    norms=_falcon_norms,
    norm_bias=True,
    tied=True,
    parallel=True,
    meaningless=frozenset({"parallel_attn"}),
)

FAMILIES = {
    "llama": LLAMA,
    "mistral": MISTRAL,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "gemma3": GEMMA3,
    "gemma3_text": GEMMA3,
    "falcon": FALCON,
}
