"""The arithmetic of operations, each formula once: pairs, reads, products, distinct experts."""

from __future__ import annotations

import math

from kvroof.ground.numeric import minimum
from kvroof.spec.reach import Reach, Selected, Strided
from kvroof.spec.workload import Step


def step_pairs(step: Step, reach: Reach) -> int:
    """Return the query-key pairs of a step, `pairs(kv) - pairs(kv - q)` summed over sequences.

    It telescopes: the chunks of a prefill add up exactly to the whole.
    """
    return sum(g.count * (reach.pairs(g.kv_len) - reach.pairs(g.kv_len - g.query_len)) for g in step.groups)


def step_read(step: Step, reach: Reach) -> int:
    """Return the cached tokens read by a step's attention, each once per sequence (IO-aware)."""
    return sum(g.count * reach.read(g.query_len, g.kv_len) for g in step.groups)


def step_written(step: Step, reach: Reach) -> int:
    """Return the entries that a step adds to a cache: its tokens, or the blocks that they complete."""
    if isinstance(reach, Strided):
        return sum(g.count * (reach.kept(g.kv_len) - reach.kept(g.kv_len - g.query_len)) for g in step.groups)
    return step.tokens


def cross_read(step: Step) -> int:
    """Return the encoder's tokens that a step's cross-attention reads, each once per sequence."""
    return sum(g.count * g.encoder_len for g in step.groups if g.encoder_len)


def cross_written(step: Step) -> int:
    """Return the encoder's tokens whose keys and values a step makes: those of sequences that begin."""
    return sum(g.count * g.encoder_len * (1 - minimum(g.kv_len - g.query_len, 1)) for g in step.groups)


def begins(step: Step) -> bool:
    """Return whether a sequence of the step may be at its start, where its encoder's entries are made."""
    return any(phase == "prefill" for phase, _ in step.phases)


def cross_queries(step: Step) -> int:
    """Return the tokens that look at an encoder."""
    return sum(g.count * g.query_len for g in step.groups if g.encoder_len)


def cross_pairs(step: Step) -> int:
    """Return the pairs of a step's tokens with the encoder's, `q E` summed over sequences."""
    return sum(g.count * g.query_len * g.encoder_len for g in step.groups)


def score_elements(step: Step, reach: Reach) -> int:
    """Return the elements of the score matrices that attention without IO-awareness writes out."""
    if isinstance(reach, Selected):
        return sum(g.count * g.query_len * reach.read(1, g.kv_len) for g in step.groups)
    return sum(g.count * g.query_len * reach.read(g.query_len, g.kv_len) for g in step.groups)


def attention_flops(pairs: float, num_heads: float, qk_dim: float, v_dim: float) -> float:
    """Return `2 heads (qk_dim + v_dim) pairs`: scores and their product with the values."""
    return 2 * num_heads * (qk_dim + v_dim) * pairs


def index_flops(pairs: float, num_heads: float, head_dim: float) -> float:
    """Return `2 heads dim pairs` of the indexer's queries against one key per entry."""
    return 2 * num_heads * head_dim * pairs


def matmul_flops(tokens: float, elements: float) -> float:
    """Return `2 tokens elements` of a matrix applied to each token."""
    return 2 * tokens * elements


def distinct_experts(num_experts: float, per_token: float, tokens: float) -> float:
    """Return the experts that a batch is expected to touch, `E (1 - (1 - k/E)^T)`.

    Tokens are taken to choose independently and evenly, so that real, correlated batches touch fewer.
    """
    missed: float = (1 - minimum(per_token / num_experts, 1.0)) ** tokens
    return num_experts * (1 - missed)


def reached_ranks(ranks: float, per_token: float) -> float:
    """Return the expert ranks that a token is expected to reach, `n (1 - (1 - 1/n)^k)`."""
    missed: float = (1 - 1 / ranks) ** per_token
    return ranks * (1 - missed)


def busiest_share(pairs: float, ranks: int, imbalance: float | None = None) -> float:
    """Return the share of the token-expert pairs that the busiest of `ranks` computes.

    `imbalance` is its load over the mean's. With None tokens choose at random: the mean and
    `0.8 sqrt(2 ln n)` standard deviations of a binomial, about the largest of n. Trained routers are less
    even than chance, balanced placements (redundant experts) more.

    Source: extreme-value approximation; checked in `tests/cost/test_experts.py` against drawing.
    """
    if ranks == 1:
        return 1
    if imbalance is not None:
        return minimum(imbalance / ranks, 1)
    deviation: float = ((1 / ranks) * (1 - 1 / ranks) / pairs) ** 0.5
    spread = 0.8 * math.sqrt(2 * math.log(ranks)) * deviation
    return minimum(1 / ranks + spread, 1.0)
