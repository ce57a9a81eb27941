"""Feed-forward parts as operations: dense products, and experts with what their ranks exchange."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvroof.cost.communication import exchanged, gathered, scattered
from kvroof.cost.formulas import busiest_share, distinct_experts, matmul_flops
from kvroof.cost.kernels import expert_items, weights_kind
from kvroof.cost.op import Op
from kvroof.cost.products import Run, matmul, matrices, vectors
from kvroof.ground.numeric import exact_div
from kvroof.spec.ffn import FFN, MoE

NARROW_DISPATCH = ("fp8", "fp4")
"""Arithmetic of experts whose inputs are sent as fp8. Source: DeepEP's README (fp8 out, bf16 back)."""


def feed_forward(ffn: FFN, count: int, tokens: int, run: Run) -> Iterator[Op]:
    """Yield what `tokens` of one group of ranks cost in a feed-forward part."""
    if isinstance(ffn, MoE):
        yield from _mixture(ffn, count, tokens, run)
    else:
        for weight in ffn.projections:
            yield matmul(weight, count, tokens, run)
    yield from matrices(ffn.extras, count, tokens, run)
    routed = ffn.expert_extras if isinstance(ffn, MoE) else ()
    small = tuple(w for w in ffn.weights if w.role == "vector" and w not in routed)
    yield from vectors("ffn_vectors", small, count, run)


def _mixture(moe: MoE, count: int, tokens: int, run: Run) -> Iterator[Op]:
    """Yield router, routed experts with their exchange, and shared experts."""
    yield matmul(moe.router, count, tokens, run)
    before, after = _exchange(moe, count, tokens, run)
    yield from before
    yield from _experts(moe, count, tokens * run.layout.dp, run)
    yield from after
    for weight in moe.shared_experts:
        yield matmul(weight, count, tokens, run)


def _experts(moe: MoE, count: int, tokens: float, run: Run) -> Iterator[Op]:
    """Yield the routed experts of the busiest rank; of those it holds, the expected distinct ones are read.

    `tokens` are those of all ranks of the stage.
    """
    parts = run.layout.ep
    touched = distinct_experts(moe.num_experts, moe.computed_per_tok, tokens)
    read, share = touched / parts, touched / (moe.num_experts + run.layout.redundant_experts)
    pairs = tokens * moe.computed_per_tok
    routed = pairs * busiest_share(pairs, parts, run.imbalance)
    stored = run.stored(moe.experts[0])
    held = run.layout.share(moe.experts[0])[0].count
    one = sum(exact_div(run.elements(w), held) for w in moe.experts)
    widths = sum(sum(run.widths(w)) for w in moe.experts)
    yield Op(
        name="experts",
        kind="moe",
        count=count,
        flops=matmul_flops(routed, one),
        weight_bytes=share * sum(run.stored_bytes(w) for w in moe.experts),
        activation_bytes=routed * widths * run.row_bytes(),
        compute=run.arithmetic(stored.dtype),
        family=f"moe.{weights_kind(stored)}",
        items=expert_items(read, routed),
        depth=moe.experts[0].shape[-2],
    )
    for op in vectors("expert_vectors", moe.expert_extras, count, run):
        yield replace(op, weight_bytes=share * op.weight_bytes)


def _exchange(moe: MoE, count: int, tokens: int, run: Run) -> tuple[tuple[Op, ...], tuple[Op, ...]]:
    """Return what brings tokens to the ranks of their experts, and their results back.

    Within one group of ranks every token is everywhere already. Among several, each rank deals its share
    of its group's tokens out to the ranks of their experts and gets the results back; experts that all
    ranks split take every group's tokens, gathered, and scatter the sums.
    """
    layout, width = run.layout, moe.experts[0].shape[-2]
    if layout.dp == 1:
        return (), ()
    if layout.ep == 1:
        message, groups = tokens * layout.dp * width * run.row_bytes(), layout.dp
        return (
            (gathered("dispatch_all_gather", count, message, groups, layout.tp),),
            (scattered("combine_reduce_scatter", count, message, groups, layout.tp),),
        )
    rows, chosen = tokens / layout.tp * width, moe.computed_per_tok
    narrow = run.arithmetic(run.stored(moe.experts[0]).dtype)[0] in NARROW_DISPATCH
    out, back = rows * (1 if narrow else run.row_bytes()), rows * run.row_bytes()
    return (
        (exchanged("dispatch_all_to_all", count, out, layout.ep, layout.expert_tp, chosen),),
        (exchanged("combine_all_to_all", count, back, layout.ep, layout.expert_tp, chosen),),
    )
