"""One forward pass as operations: prefill, decode and anything between are the same function."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvroof.cost.formulas import (
    attention_flops,
    begins,
    cross_pairs,
    cross_queries,
    cross_read,
    cross_written,
    distinct_experts,
    index_flops,
    matmul_flops,
    score_elements,
    step_pairs,
    step_read,
    step_written,
)
from kvroof.cost.kernels import (
    attention_family,
    attention_items,
    expert_items,
    product_items,
    weights_kind,
)
from kvroof.cost.op import Kind, Op
from kvroof.ground.dtypes import DTYPES, Dtype
from kvroof.ground.numeric import ceil_div, exact_div, shared_by
from kvroof.ground.record import record, static
from kvroof.spec.architecture import Architecture, Layer
from kvroof.spec.attention import (
    Attention,
    CompressedAttention,
    Execution,
    GroupedAttention,
    Indexer,
    LatentAttention,
    Scored,
)
from kvroof.spec.ffn import FFN, MoE
from kvroof.spec.precision import HF_STATE, KVFormat, StateFormat
from kvroof.spec.reach import Encoder
from kvroof.spec.recurrent import Recurrent
from kvroof.spec.weights import Format, Weight, WeightFormats
from kvroof.spec.workload import Step

_FALLBACKS = ("bf16", "fp16", "fp32")
ELEMENTWISE_LAUNCHES = 3
"""Kernels of a layer that only touch activations: two fused norms and the rotary embedding."""
SCORE_PASSES = 4
"""Scores written and read, probabilities written and read, when attention is not IO-aware."""


@record
class Run:
    """How a model is executed: storage, arithmetic, ranks, and the form attention takes.

    `compute` forces one arithmetic for every matrix; None takes each weight's own where the chip has
    it, else the activation's. Latent attention runs `absorbed` or `expanded`. With `io_aware` false
    the score matrices go through HBM.
    """

    formats: WeightFormats | None = None
    kv_format: KVFormat
    state_format: StateFormat = HF_STATE
    activation: Dtype = DTYPES["bf16"]
    compute: str | None = static(default=None)
    tp: int = static(default=1)
    latent: Execution = static(default="absorbed")
    io_aware: bool = static(default=True)

    def storing(self, own: WeightFormats) -> Run:
        """Return the run with the checkpoint's own storage, unless another is asked for."""
        return self if self.formats is not None else replace(self, formats=own)

    def stored(self, weight: Weight) -> Format:
        """Return the format in which `weight` is stored."""
        assert self.formats is not None
        return self.formats.of(weight)

    def arithmetic(self, stored: Dtype | None = None) -> tuple[str, ...]:
        """Return the arithmetic to multiply in, first choice first."""
        if self.compute is not None:
            return (self.compute,)
        own = (stored.compute,) if stored is not None and stored.compute is not None else ()
        rest = tuple(name for name in (self.activation.name, *_FALLBACKS) if name not in own)
        return tuple(dict.fromkeys(own + rest))


def forward(model: Architecture, step: Step, run: Run) -> tuple[Op, ...]:
    """Return the operations that one rank executes for `step`.

    The LM head runs on the sampled positions only; the input embedding is a look-up of rows.

    Args:
        model: The architecture.
        step: Sequences by `(query_len, kv_len)`.
        run: Storage, arithmetic, ranks.
    """
    ops: list[Op] = [_lookup(model, step, run)]
    if run.tp > 1:
        ops.append(_all_reduce("embedding_all_reduce", 1, model, step, run))
    for group in model.layers:
        own = run.storing(group.layer.formats or model.formats)
        ops += (_placed(op, group.layer) for op in _layer(model, group.layer, group.count, step, own))
    run = run.storing(model.formats)
    ops += _vectors("final_norm", model.final, 1, run)
    ops.append(_matmul(model.lm_head, 1, step.sampled, run))
    if run.tp > 1:
        message = step.sampled * model.vocab_size * run.activation.row_bytes(1)
        ops.append(
            Op(
                name="logits_all_gather",
                kind="collective",
                count=1,
                message_bytes=message,
                collective="all_gather",
                ranks=run.tp,
            )
        )
    return tuple(ops)


def _placed(op: Op, layer: Layer) -> Op:
    """Return `op` where its weights or its cache live."""
    parts = layer.on_host
    away = (
        ("layer" in parts and op.kind != "collective")
        or ("experts" in parts and op.kind == "moe")
        or ("kv" in parts and op.kind in ("attention", "scan"))
    )
    return replace(op, place="host") if away else op


def _layer(model: Architecture, layer: Layer, count: int, step: Step, run: Run) -> Iterator[Op]:
    yield from _matrices(layer.norms, count, step.tokens, run)
    for op in _vectors("norms", tuple(w for w in layer.norms if w.role == "vector"), count, run):
        yield replace(op, launches=ELEMENTWISE_LAUNCHES)
    for mixer in layer.mixers:
        if isinstance(mixer, Recurrent):
            yield from _recurrent(mixer, count, step, run)
        else:
            yield from _attention(mixer, count, step, run)
    if run.tp > 1 and layer.mixers and not (layer.parallel and layer.ffns):
        yield _all_reduce("attention_all_reduce", count, model, step, run)
    for ffn in layer.ffns:
        yield from _feed_forward(ffn, count, step.tokens, run)
    if run.tp > 1 and layer.ffns:
        yield _all_reduce("ffn_all_reduce", count, model, step, run)


def _attention(mixer: Attention, count: int, step: Step, run: Run) -> Iterator[Op]:
    """Yield the projections, the scores and the output of one attention."""
    if isinstance(mixer, GroupedAttention) and isinstance(mixer.reach, Encoder):
        if cross_read(step):
            yield from _cross(mixer, count, step, run)
        return
    *into, out = mixer.projections
    first = tuple(w for w in into if w.name != "q_b_proj")
    yield _fused("qkv_proj", first, count, step.tokens, run)
    for weight in into:
        if weight not in first:
            yield _matmul(weight, count, step.tokens, run)
    if isinstance(mixer, LatentAttention):
        rebuilt = step.tokens if run.latent == "absorbed" else step_read(step, mixer.scored[0].reach)
        yield _matmul(mixer.up_projection, count, rebuilt, run)
    if isinstance(mixer, CompressedAttention) and mixer.compressor is not None:
        yield from _matrices(mixer.compressor.weights, count, step.tokens, run)
    for part in mixer.scored:
        if part.index is not None:
            yield from _index(part, part.index, count, step, run)
        yield _scores(mixer, part, count, step, run)
    yield _matmul(out, count, step.tokens, run)
    yield from _matrices(mixer.extras, count, step.tokens, run)
    small = tuple(w for w in mixer.weights if w.role == "vector")
    yield from _vectors("attention_vectors", small, count, run)


def _cross(mixer: GroupedAttention, count: int, step: Step, run: Run) -> Iterator[Op]:
    """Yield a cross-attention: queries of the step's tokens, keys and values of the encoder's new ones."""
    queries, made, read = cross_queries(step), cross_written(step), cross_read(step)
    heads, size = exact_div(mixer.num_heads, run.tp), run.activation.row_bytes(1)
    first, *stored, out = mixer.projections
    yield _matmul(first, count, queries, run)
    for weight in stored if begins(step) else ():
        yield _matmul(weight, count, made, run)
    activation = queries * heads * (mixer.head_dim + mixer.v_head_dim) * size
    if not run.io_aware:
        activation += SCORE_PASSES * heads * cross_pairs(step) * size
    yield Op(
        name=f"attention.{mixer.kind}",
        kind="attention",
        count=count,
        flops=attention_flops(cross_pairs(step), heads, mixer.head_dim, mixer.v_head_dim),
        kv_bytes=(read + made) * run.kv_format.token_bytes(mixer.cache, run.tp),
        activation_bytes=activation,
        compute=run.arithmetic(),
    )
    yield _matmul(out, count, queries, run)
    yield from _vectors("attention_vectors", tuple(w for w in mixer.extras if w.role == "vector"), count, run)


def _recurrent(mixer: Recurrent, count: int, step: Step, run: Run) -> Iterator[Op]:
    """Yield the projections and the scan: each sequence's state is read and written once per step.

    The state is fp32, but a chunked scan multiplies in the activations' dtype: a bound may not assume less.
    """
    *into, out = mixer.projections
    for weight in into:
        yield _matmul(weight, count, step.tokens, run)
    seqs = sum(group.count for group in step.groups)
    yield Op(
        name=f"scan.{mixer.kind}",
        kind="scan",
        count=count,
        flops=step.tokens * mixer.scan_flops / shared_by(run.tp, mixer.held.split),
        kv_bytes=2 * seqs * run.state_format.state_bytes(mixer.held, run.tp),
        compute=run.arithmetic(),
    )
    yield _matmul(out, count, step.tokens, run)
    yield from _vectors("recurrent_vectors", mixer.extras, count, run)


def _scores(mixer: Attention, part: Scored, count: int, step: Step, run: Run) -> Op:
    """Return the score-and-mix operation over one cache: reads each sequence's entries, writes the new."""
    heads = exact_div(mixer.num_heads, run.tp)
    qk_dim, v_dim = mixer.score_dims(run.latent)
    read, size = step_read(step, part.reach), run.activation.row_bytes(1)
    pairs = step_pairs(step, part.reach)
    activation = step.tokens * heads * (qk_dim + v_dim) * size
    if isinstance(mixer, LatentAttention) and run.latent == "expanded":
        activation += read * heads * (qk_dim + v_dim) * size
    if not run.io_aware:
        activation += SCORE_PASSES * heads * score_elements(step, part.reach) * size
    entry = run.kv_format.token_bytes(part.cache, run.tp) - run.kv_format.index_bytes(part.cache)
    written = step_written(step, part.cache.reach) if mixer.stores_kv else 0
    return Op(
        name=f"attention.{part.cache.kind}",
        kind="attention",
        count=count,
        flops=attention_flops(pairs, heads, qk_dim, v_dim),
        kv_bytes=(read + written) * entry,
        activation_bytes=activation,
        compute=run.arithmetic(),
        family=attention_family(mixer, step, run.kv_format, run.latent),
        items=attention_items(mixer, step, heads, ceil_div(part.cache.split, run.tp)),
        depth=read / step.seqs,
        scores=pairs * heads,
    )


def _index(part: Scored, index: Indexer, count: int, step: Step, run: Run) -> Iterator[Op]:
    """Yield the indexer where it is not an earlier layer's: it scores every entry, on every rank."""
    yield from _matrices(index.weights, count, step.tokens, run)
    if not index.stores:
        return
    every = part.cache.reach
    entries = step_read(step, every) + step_written(step, every)
    queries = step.tokens * index.num_heads * index.head_dim
    yield Op(
        name=f"index.{part.cache.kind}",
        kind="attention",
        count=count,
        flops=index_flops(step_pairs(step, every), index.num_heads, index.head_dim),
        kv_bytes=entries * run.kv_format.index_bytes(part.cache),
        activation_bytes=queries * run.activation.row_bytes(1),
        compute=run.arithmetic(),
    )


def _feed_forward(ffn: FFN, count: int, tokens: int, run: Run) -> Iterator[Op]:
    if isinstance(ffn, MoE):
        yield from _experts(ffn, count, tokens, run)
    else:
        for weight in ffn.projections:
            yield _matmul(weight, count, tokens, run)
    yield from _matrices(ffn.extras, count, tokens, run)
    routed = ffn.expert_extras if isinstance(ffn, MoE) else ()
    small = tuple(w for w in ffn.weights if w.role == "vector" and w not in routed)
    yield from _vectors("ffn_vectors", small, count, run)


def _experts(moe: MoE, count: int, tokens: int, run: Run) -> Iterator[Op]:
    """Yield router, routed and shared experts; of the routed, the expected distinct ones are read."""
    yield _matmul(moe.router, count, tokens, run)
    touched = distinct_experts(moe.num_experts, moe.computed_per_tok, tokens)
    share, routed = touched / moe.num_experts, tokens * moe.computed_per_tok
    stored = run.stored(moe.experts[0])
    one = sum(exact_div(w.elements_per_rank(run.tp), w.count) for w in moe.experts)
    widths = sum(sum(w.widths_per_rank(run.tp)) for w in moe.experts)
    yield Op(
        name="experts",
        kind="moe",
        count=count,
        flops=matmul_flops(routed, one),
        weight_bytes=share * sum(run.stored(w).stored_bytes(w, run.tp) for w in moe.experts),
        activation_bytes=routed * widths * run.activation.row_bytes(1),
        compute=run.arithmetic(stored.dtype),
        family=f"moe.{weights_kind(stored)}",
        items=expert_items(touched, routed),
        depth=moe.experts[0].shape[-2],
    )
    for op in _vectors("expert_vectors", moe.expert_extras, count, run):
        yield replace(op, weight_bytes=share * op.weight_bytes)
    for weight in moe.shared_experts:
        yield _matmul(weight, count, tokens, run)


def _matmul(weight: Weight, count: int, tokens: float, run: Run, kind: Kind = "gemm") -> Op:
    """Return a matrix applied to `tokens` rows: the weights read once, the rows in and out."""
    stored, (rows, columns) = run.stored(weight), weight.widths_per_rank(run.tp)
    return Op(
        name=weight.name,
        kind=kind,
        count=count,
        flops=matmul_flops(tokens, weight.elements_per_rank(run.tp)),
        weight_bytes=stored.stored_bytes(weight, run.tp),
        activation_bytes=tokens * sum(weight.widths_per_rank(run.tp)) * run.activation.row_bytes(1),
        compute=run.arithmetic(stored.dtype),
        family=f"gemm.{weights_kind(stored)}",
        items=product_items(tokens, columns),
        depth=rows,
    )


def _fused(name: str, weights: tuple[Weight, ...], count: int, tokens: float, run: Run) -> Op:
    """Return several matrices over the same rows as the one product that engines run: inputs read once."""
    ops = [_matmul(weight, count, tokens, run) for weight in weights]
    again = sum(weight.widths_per_rank(run.tp)[0] for weight in weights[1:])
    read_again = tokens * again * run.activation.row_bytes(1)
    columns = sum(weight.widths_per_rank(run.tp)[1] for weight in weights)
    return replace(
        ops[0],
        name=name,
        flops=sum(op.flops for op in ops),
        weight_bytes=sum(op.weight_bytes for op in ops),
        activation_bytes=sum(op.activation_bytes for op in ops) - read_again,
        items=product_items(tokens, columns),
    )


def _vectors(name: str, weights: tuple[Weight, ...], count: int, run: Run) -> Iterator[Op]:
    """Yield the reading of norms, biases and other small parameters; their arithmetic is fused."""
    if weights:
        size = sum(run.stored(w).stored_bytes(w, run.tp) for w in weights)
        yield Op(name=name, kind="vector", count=count, weight_bytes=size, launches=0)


def _matrices(weights: tuple[Weight, ...], count: int, tokens: float, run: Run) -> Iterator[Op]:
    """Yield the matrices among a part's extras: adapters, gates, latent projections.

    Every token runs them, save the experts that a mixture of attentions leaves idle.
    """
    for weight in weights:
        if weight.role not in ("vector", "expert"):
            yield _matmul(weight, count, tokens, run)


def _lookup(model: Architecture, step: Step, run: Run) -> Op:
    size = step.tokens * model.hidden_size * run.activation.row_bytes(1)
    return Op(name="embed_tokens", kind="lookup", count=1, activation_bytes=2 * size)


def _all_reduce(name: str, count: int, model: Architecture, step: Step, run: Run) -> Op:
    return Op(
        name=name,
        kind="collective",
        count=count,
        message_bytes=step.tokens * model.hidden_size * run.activation.row_bytes(1),
        collective="all_reduce",
        ranks=run.tp,
    )
