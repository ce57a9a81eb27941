"""What a measured kernel did: FLOPs, bytes, items and chains of table rows, by the formulas of `cost`.

Every function takes numbers or columns of them alike (types are written for one row) and returns what
`Points` needs besides the seconds and the machine.
"""

from __future__ import annotations

from typing import NamedTuple

from kvroof.cost.formulas import attention_flops, matmul_flops
from kvroof.ground.numeric import ceil_div, maximum, minimum

TILE = 128
"""Rows and columns of the output tile that counts as one work item."""
HALF = 2
"""Bytes of a bf16 activation."""
MLA_LATENT, MLA_ROPE, MLA_NOPE, MLA_V = 512, 64, 128, 128
"""Latent and rotary widths of DeepSeek-V3's cache, per-head widths of its expanded form (config.json)."""


class Work(NamedTuple):
    """FLOPs, HBM bytes, work items, chain length and softmax scores of each row."""

    flops: float
    hbm_bytes: float
    items: float
    depth: float
    scores: float


def gemm(
    m: float, n: float, k: float, weight_bytes: float, activation_bytes: float, out_bytes: float = HALF
) -> Work:
    """Return the work of `[m, k] x [k, n]`; bytes are per element of weight, input and output."""
    moved = n * k * weight_bytes + m * k * activation_bytes + m * n * out_bytes
    tiles = ceil_div(m, TILE) * ceil_div(n, TILE)
    return Work(matmul_flops(m, n * k), moved, tiles, k, 0 * m)


def decode(
    batch: float,
    kv_len: float,
    heads: float,
    kv_heads: float,
    head_dim: float,
    kv_bytes: float,
    activation_bytes: float = HALF,
) -> Work:
    """Return the work of one query per sequence against `kv_len` cached tokens: each read once."""
    pairs = batch * kv_len
    cache = (pairs + batch) * kv_heads * 2 * head_dim * kv_bytes
    queries = batch * heads * 2 * head_dim * activation_bytes
    flops = attention_flops(pairs, heads, head_dim, head_dim)
    return Work(flops, cache + queries, batch * kv_heads, kv_len, pairs * heads)


def prefill(
    batch: float,
    length: float,
    heads: float,
    kv_heads: float,
    head_dim: float,
    kv_bytes: float,
    activation_bytes: float = HALF,
) -> Work:
    """Return the work of whole prompts: causal pairs, keys and values read and written once."""
    pairs = batch * length * (length + 1) / 2
    tokens = batch * length
    cache = 2 * tokens * kv_heads * 2 * head_dim * kv_bytes
    queries = tokens * heads * 2 * head_dim * activation_bytes
    flops = attention_flops(pairs, heads, head_dim, head_dim)
    tiles = batch * heads * ceil_div(length, TILE)
    return Work(flops, cache + queries, tiles, length, pairs * heads)


def latent_decode(batch: float, kv_len: float, heads: float, kv_bytes: float) -> Work:
    """Return the work of absorbed latent attention: one cached row per token, shared by all heads."""
    pairs, width = batch * kv_len, MLA_LATENT + MLA_ROPE
    moved = (pairs + batch) * width * kv_bytes + batch * heads * (width + MLA_LATENT) * HALF
    flops = attention_flops(pairs, heads, width, MLA_LATENT)
    return Work(flops, moved, batch * ceil_div(heads, 64), kv_len, pairs * heads)


def latent_prefill(batch: float, length: float, heads: float, kv_bytes: float) -> Work:
    """Return the work of expanded latent attention over whole prompts."""
    pairs, tokens = batch * length * (length + 1) / 2, batch * length
    qk = MLA_NOPE + MLA_ROPE
    moved = tokens * (2 * heads * (qk + MLA_V) * HALF + 2 * (MLA_LATENT + MLA_ROPE) * kv_bytes)
    flops = attention_flops(pairs, heads, qk, MLA_V)
    tiles = batch * heads * ceil_div(length, TILE)
    return Work(flops, moved, tiles, length, pairs * heads)


def experts(
    tokens: float,
    hidden: float,
    inter: float,
    per_tok: float,
    num_experts: float,
    ranks: float,
    weight_bytes: float,
) -> Work:
    """Return one rank's work of gated experts under an even routing: gate, up and down together.

    A benchmark's even routing spreads `tokens x per_tok` pairs over the experts in turn, so that it touches
    `min(experts, pairs)` of them; the expectation under random routing is for models, not for this.
    """
    pairs = maximum(tokens * per_tok / ranks, 1.0)
    touched = minimum(num_experts / ranks, pairs)
    one = 3 * hidden * inter
    moved = touched * one * weight_bytes + 2 * pairs * (hidden + inter) * HALF
    tiles = touched * ceil_div(pairs / touched, TILE)
    return Work(matmul_flops(pairs, one), moved, tiles, hidden, 0 * hidden)
