"""Attention and recurrence as operations: projections, scores over each cache, scans, the way out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvroof.cost.communication import gathered, scattered
from kvroof.cost.formulas import (
    attention_flops,
    begins,
    cross_pairs,
    cross_queries,
    cross_read,
    cross_written,
    index_flops,
    score_elements,
    step_pairs,
    step_read,
    step_written,
)
from kvroof.cost.kernels import attention_family, attention_items, prefill_items, scoring_family
from kvroof.cost.op import Op
from kvroof.cost.products import Run, fused, matmul, matrices, vectors
from kvroof.ground.numeric import ceil_div, exact_div, shared_by
from kvroof.spec.attention import (
    Attention,
    CompressedAttention,
    GroupedAttention,
    Indexer,
    LatentAttention,
    Scored,
)
from kvroof.spec.reach import Encoder
from kvroof.spec.recurrent import Recurrent
from kvroof.spec.workload import Phase, Step

LATER = ("q_b_proj", "o_a_proj")
"""Projections of what others have made: they are not fused with those that read the layer's input."""
SCORE_PASSES = 4
"""Scores written and read, probabilities written and read, when attention is not IO-aware."""


def attention(mixer: Attention, count: int, step: Step, run: Run) -> Iterator[Op]:
    """Yield the projections, the scores and the output of one attention."""
    if isinstance(mixer, GroupedAttention) and isinstance(mixer.reach, Encoder):
        if cross_read(step):
            yield from _cross(mixer, count, step, run)
        return
    *into, out = mixer.projections
    first = tuple(w for w in into if w.name not in LATER)
    yield fused("qkv_proj", first, count, step.tokens, run)
    for weight in into:
        if weight not in first:
            yield matmul(weight, count, step.tokens, run)
    parts = tuple((part, _form(run, phase, len(step.phases))) for phase, part in step.phases)
    if isinstance(mixer, LatentAttention):
        rebuilt = sum(_rebuilt(mixer, part, own) for part, own in parts)
        yield matmul(mixer.up_projection, count, rebuilt, run)
    if isinstance(mixer, CompressedAttention) and mixer.compressor is not None:
        yield from matrices(mixer.compressor.weights, count, step.tokens, run)
    for scored in mixer.scored:
        if scored.index is not None:
            yield from matrices(scored.index.weights, count, step.tokens, run)
        for part, own in parts:
            if scored.index is not None and scored.index.stores:
                yield _index(scored, scored.index, count, part, own)
            yield from _scores(mixer, scored, count, part, own)
    yield matmul(out, count, step.tokens, run)
    yield from matrices(mixer.extras, count, step.tokens, run)
    small = tuple(w for w in mixer.weights if w.role == "vector")
    yield from vectors("attention_vectors", small, count, run)


def _form(run: Run, phase: Phase, phases: int) -> Run:
    """Return the run of one phase: decodes beside a prompt stay absorbed, whatever the prompt does."""
    return replace(run, latent="absorbed") if phases > 1 and phase == "decode" else run


def _rebuilt(mixer: LatentAttention, step: Step, run: Run) -> float:
    """Return the rows that latent attention's up-projection multiplies."""
    return step.tokens if run.latent == "absorbed" else step_read(step, mixer.scored[0].reach)


def _cross(mixer: GroupedAttention, count: int, step: Step, run: Run) -> Iterator[Op]:
    """Yield a cross-attention: queries of the step's tokens, keys and values of the encoder's new ones."""
    first, *stored, out = mixer.projections
    yield matmul(first, count, cross_queries(step), run)
    for weight in stored if begins(step) else ():
        yield matmul(weight, count, cross_written(step), run)
    for phase, part in step.phases:
        if cross_read(part):
            yield _cross_scores(mixer, count, phase, part, run)
    yield matmul(out, count, cross_queries(step), run)
    yield from vectors("attention_vectors", tuple(w for w in mixer.extras if w.role == "vector"), count, run)


def _cross_scores(mixer: GroupedAttention, count: int, phase: Phase, step: Step, run: Run) -> Op:
    """Return the scores of one phase's tokens over their encoders' entries; new entries are written."""
    heads, size = exact_div(mixer.num_heads, run.tp), run.row_bytes()
    pairs, read = cross_pairs(step), cross_read(step)
    activation = cross_queries(step) * heads * (mixer.head_dim + mixer.v_head_dim) * size
    if not run.io_aware:
        activation += SCORE_PASSES * heads * pairs * size
    return Op(
        name=f"attention.{mixer.kind}",
        kind="attention",
        count=count,
        flops=attention_flops(pairs, heads, mixer.head_dim, mixer.v_head_dim),
        kv_bytes=(read + cross_written(step)) * run.kv_format.token_bytes(mixer.cache, run.tp),
        activation_bytes=activation,
        compute=run.arithmetic(),
        family=attention_family(mixer, phase, run.kv_format, run.latent),
        items=attention_items(mixer, step, phase, heads, ceil_div(mixer.cache.split, run.tp)),
        depth=read / step.seqs,
        scores=pairs * heads,
    )


def recurrent(mixer: Recurrent, count: int, step: Step, run: Run) -> Iterator[Op]:
    """Yield the projections and the scan: each sequence's state is read and written once per step.

    The state is fp32, but a chunked scan multiplies in the activations' dtype: a bound may not assume less.
    """
    *into, out = mixer.projections
    for weight in into:
        yield matmul(weight, count, step.tokens, run)
    seqs = sum(group.count for group in step.groups)
    yield Op(
        name=f"scan.{mixer.kind}",
        kind="scan",
        count=count,
        flops=step.tokens * mixer.scan_flops / shared_by(run.tp, mixer.held.split),
        kv_bytes=2 * seqs * run.state_format.state_bytes(mixer.held, run.tp),
        compute=run.arithmetic(),
    )
    yield matmul(out, count, step.tokens, run)
    yield from vectors("recurrent_vectors", mixer.extras, count, run)


def _scores(mixer: Attention, part: Scored, count: int, step: Step, run: Run) -> Iterator[Op]:
    """Yield the scores over one cache: it reads each sequence's entries and writes the new ones.

    With decode context parallelism a rank reads its share of the tokens for the heads of all the ranks that
    hold the same KV head: queries are gathered before, partial outputs combined after. A prompt's own
    tokens are at hand everywhere.
    """
    (phase, _), *_ = step.phases
    context = run.layout.dcp if phase == "decode" else 1
    heads = context * exact_div(mixer.num_heads, run.tp)
    qk_dim, v_dim = mixer.score_dims(run.latent)
    read, size = _shared(step_read(step, part.reach), context), run.row_bytes()
    pairs = _shared(step_pairs(step, part.reach), context)
    activation: float = step.tokens * heads * (qk_dim + v_dim) * size
    if isinstance(mixer, LatentAttention) and run.latent == "expanded":
        activation += read * heads * (qk_dim + v_dim) * size
    if not run.io_aware:
        activation += SCORE_PASSES * heads * _shared(score_elements(step, part.reach), context) * size
    entry = run.kv_format.token_bytes(part.cache, run.tp) - run.kv_format.index_bytes(part.cache)
    written = _shared(step_written(step, part.cache.reach), run.layout.dcp) if mixer.stores_kv else 0
    if context > 1:
        yield gathered("query_all_gather", count, step.tokens * heads * qk_dim * size, context)
    yield Op(
        name=f"attention.{part.cache.kind}",
        kind="attention",
        count=count,
        flops=attention_flops(pairs, heads, qk_dim, v_dim),
        kv_bytes=(read + written) * entry,
        activation_bytes=activation,
        compute=run.arithmetic(),
        family=attention_family(mixer, phase, run.kv_format, run.latent),
        items=attention_items(mixer, step, phase, heads, ceil_div(part.cache.split, run.tp)),
        depth=read / step.seqs,
        scores=pairs * heads,
    )
    if context > 1:
        yield scattered("output_reduce_scatter", count, step.tokens * heads * v_dim * size, context)


def _shared(amount: int, ranks: int) -> float:
    """Return the part of one of `ranks`; whole numbers stay whole where one has it all."""
    return amount if ranks == 1 else amount / ranks


def _index(part: Scored, index: Indexer, count: int, step: Step, run: Run) -> Op:
    """Return the indexer of one phase: it scores every entry with all its heads, on every rank.

    No kernel of it is measured by itself: the attention over one KV head stands in.
    """
    (phase, _), *_ = step.phases
    every = part.cache.reach
    read, pairs = step_read(step, every), step_pairs(step, every)
    queries = step.tokens * index.num_heads * index.head_dim
    return Op(
        name=f"index.{part.cache.kind}",
        kind="attention",
        count=count,
        flops=index_flops(pairs, index.num_heads, index.head_dim),
        kv_bytes=(read + step_written(step, every)) * run.kv_format.index_bytes(part.cache),
        activation_bytes=queries * run.row_bytes(),
        compute=run.arithmetic(),
        family=scoring_family("attention", phase, run.kv_format),
        items=step.seqs if phase == "decode" else prefill_items(step, index.num_heads),
        depth=read / step.seqs,
        scores=pairs * index.num_heads,
    )
