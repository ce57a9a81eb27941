"""Zamba: Mamba layers, some of which first run one transformer block whose weights they share.

The block reads the residual beside the embeddings, twice the width; each layer that runs it keeps a cache
of its own, and a matrix (Zamba2: adapters too) that no other layer has.
"""

from __future__ import annotations

from dataclasses import replace

from kvroof.catalog.config import Config
from kvroof.catalog.families.family import Family, layer_count
from kvroof.catalog.families.recurrences import mamba2, matrix
from kvroof.catalog.families.state_space import block, check_heads, inner_channels, jamba_mamba
from kvroof.spec.architecture import Mixer
from kvroof.spec.attention import GroupedAttention
from kvroof.spec.ffn import FFN, DenseFFN
from kvroof.spec.reach import Full
from kvroof.spec.recurrent import Recurrent
from kvroof.spec.weights import Weight, vector

FIRST = ("mamba", "mamba", "hybrid")
"""How Zamba's layers begin, before the period that the config gives."""


def _is_hybrid(config: Config, layer: int) -> bool:
    """Return whether a layer runs the shared block: by the list, else by Zamba's period and offset."""
    types = config.array("layers_block_type", str, layer_count(config))
    if types is not None:
        config.read_nothing(("attn_layer_period", "attn_layer_offset"))
        return block(config, "layers_block_type", types[layer], ("mamba", "hybrid")) == "hybrid"
    if config.text("model_type") == "zamba2":
        config.fail("layers_block_type", "missing, and it decides the size", "list the kind of each layer")
    if layer < len(FIRST):
        return FIRST[layer] == "hybrid"
    period, offset = config.integer("attn_layer_period"), config.integer("attn_layer_offset", minimum=0)
    return (layer - len(FIRST)) % period == offset


def _hybrids(config: Config) -> int:
    """Return how many layers run a shared block."""
    return sum(_is_hybrid(config, layer) for layer in range(layer_count(config)))


def _attention(config: Config) -> GroupedAttention:
    """Return the shared block's attention and its norms; it reads twice the residual's width."""
    hidden, n = config.integer("hidden_size"), config.integer("num_attention_heads")
    m, read = config.integer("num_key_value_heads", n), config.integer("attention_hidden_size", 2 * hidden)
    if n % m:
        config.fail("num_key_value_heads", f"{m} does not divide {n} attention heads")
    width = config.integer("attention_head_dim", 2 * hidden // n)
    return GroupedAttention(
        hidden_size=hidden,
        num_heads=n,
        num_kv_heads=m,
        head_dim=width,
        v_head_dim=width,
        input_size=read,
        reach=Full(),
        shared=True,
        extras=(vector("input_layernorm", read), vector("pre_ff_layernorm", hidden)),
    )


def _mlp(config: Config, bias: bool) -> DenseFFN:
    """Return the shared block's MLP."""
    hidden = config.integer("hidden_size")
    inner = config.integer("intermediate_size", 4 * hidden)
    return DenseFFN(hidden_size=hidden, intermediate_size=inner, bias=bias, shared=True)


def _has_bias(config: Config) -> bool:
    """Return whether Zamba2's own layers have biases; Zamba's have none."""
    return config.text("model_type") == "zamba2" and config.boolean("add_bias_linear", False)


def _mixers(config: Config, layer: int) -> tuple[Mixer, ...]:
    n, inner = config.integer("n_mamba_heads"), inner_channels(config)
    if inner % n:
        config.fail("n_mamba_heads", f"{n} does not divide the mixer's {inner} channels")
    mamba = _mamba2(config) if config.text("model_type") == "zamba2" else jamba_mamba(config, norms=False)
    return (_attention(config), mamba) if _is_hybrid(config, layer) else (mamba,)


def _mamba2(config: Config) -> Recurrent:
    """Return Mamba-2 in Zamba2's spelling; its convolution has a bias whatever the config says."""
    inner, n, bias = inner_channels(config), config.integer("n_mamba_heads"), _has_bias(config)
    width = config.integer("mamba_headdim", inner // n)
    check_heads(config, "n_mamba_heads", n, width, inner)
    return mamba2(
        hidden=config.integer("hidden_size"),
        heads=n,
        head_dim=width,
        groups=config.integer("mamba_ngroups", 1),
        state_size=config.integer("mamba_d_state"),
        kernel=config.integer("mamba_d_conv", 4),
        in_bias=bias,
        out_bias=bias,
    )


def _ffns(config: Config, layer: int) -> tuple[FFN, ...]:
    return (_mlp(config, _has_bias(config)),) if _is_hybrid(config, layer) else ()


def _blocks(config: Config) -> tuple[Weight, ...]:
    """Return the shared blocks' weights: one block, or Zamba2's `num_mem_blocks` in turn."""
    copies = config.integer("num_mem_blocks", 1) if config.text("model_type") == "zamba2" else 1
    stored = min(copies, _hybrids(config))
    weights = _attention(config).weights + _mlp(config, _has_bias(config)).weights
    return tuple(replace(weight, count=weight.count * stored) for weight in weights) if stored else ()


def _own(config: Config, layer: int) -> tuple[Weight, ...]:
    """Return what a hybrid layer has to itself: the block's way back, and Zamba2's adapters."""
    if not config.boolean("tie_word_embeddings", True):
        config.fail("tie_word_embeddings", "false makes transformers store the shared block once per layer")
    if not _is_hybrid(config, layer):
        return ()
    hidden = config.integer("hidden_size")
    back = matrix("linear", hidden, hidden)
    return (back, *_adapters(config, hidden)) if config.text("model_type") == "zamba2" else (back,)


def _adapters(config: Config, hidden: int) -> tuple[Weight, ...]:
    """Return low-rank adapters of the MLP's first matrix, and of queries, keys and values where asked."""
    rank, inner = config.integer("adapter_rank", 128), config.integer("intermediate_size", 4 * hidden)
    on = {"gate_up_proj": (hidden, 2 * inner)}
    if config.boolean("use_shared_attention_adapter", False):
        read = config.integer("attention_hidden_size", 2 * hidden)
        on |= {f"linear_{part}": (read, read) for part in "qkv"}
    return tuple(
        weight
        for name, (rows, columns) in on.items()
        for weight in (
            matrix(f"{name}_adapter.0", rows, rank),
            matrix(f"{name}_adapter.1", rank, columns),
        )
    )


_ZAMBA = Family(mixers=_mixers, ffns=_ffns, norms=1, layer_extras=_own, shared=_blocks, tied=True)

FAMILIES = {
    "zamba": _ZAMBA,
    # kv_channels and the list of hybrid layers restate what the heads and the blocks' kinds say.
    "zamba2": replace(_ZAMBA, meaningless=frozenset({"kv_channels", "hybrid_layer_ids", "head_dim"})),
}
