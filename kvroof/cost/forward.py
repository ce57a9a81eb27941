"""One forward pass as operations: prefill, decode and anything between are the same function."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvroof.cost.attending import attention, recurrent
from kvroof.cost.communication import gathered, reduced
from kvroof.cost.feeding import feed_forward
from kvroof.cost.formulas import distinct_experts, matmul_flops
from kvroof.cost.op import Op
from kvroof.cost.products import Run, matmul, matrices, vectors
from kvroof.ground.dtypes import DTYPES
from kvroof.spec.architecture import Architecture, Layer
from kvroof.spec.params import adapted_weights, adapter_sides
from kvroof.spec.recurrent import Recurrent
from kvroof.spec.workload import Step

ELEMENTWISE_LAUNCHES = 3
"""Kernels of a layer that only touch activations: two fused norms and the rotary embedding."""
ELEMENTWISE_ROWS = 2
"""Residual rows that each of them moves: one read, one written."""

SAMPLING_PASSES = 3
"""Passes over fp32 logits: they are widened, normalised and searched; a bound counts them as fused."""


def forward(model: Architecture, step: Step, run: Run) -> tuple[Op, ...]:
    """Return the operations that one rank executes for `step`, the sequences of its group of ranks.

    The LM head runs on the sampled positions only; the input embedding is a look-up of rows. A stage of a
    pipeline has the embedding or the head only where it holds them.

    Args:
        model: The architecture, or one stage of it.
        step: Sequences by `(query_len, kv_len)`.
        run: Storage, arithmetic, ranks.
    """
    ops: list[Op] = []
    if model.takes_tokens:
        ops.append(_lookup(model, step, run))
        if run.tp > 1:
            ops.append(_all_reduce("embedding_all_reduce", 1, model, step, run))
    for group in model.layers:
        own = run.storing(group.layer.formats or model.formats)
        ops += (_placed(op, group.layer) for op in _layer(model, group.layer, group.count, step, own))
    if model.gives_logits:
        ops += _head(model, step, run.storing(model.formats))
    return tuple(ops)


def _head(model: Architecture, step: Step, run: Run) -> Iterator[Op]:
    yield from vectors("final_norm", model.final, 1, run)
    yield matmul(model.lm_head, 1, step.sampled, run)
    if run.tp > 1:
        yield gathered("logits_all_gather", 1, step.sampled * model.vocab_size * run.row_bytes(), run.tp)
    if not run.fused:
        passed = SAMPLING_PASSES * step.sampled * model.vocab_size * DTYPES["fp32"].row_bytes(1)
        yield Op(name="sampling", kind="vector", count=1, launches=SAMPLING_PASSES, activation_bytes=passed)


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
    yield from matrices(layer.norms, count, step.tokens, run)
    for op in vectors("norms", tuple(w for w in layer.norms if w.role == "vector"), count, run):
        yield _elementwise(op, model, step, run)
    for mixer in layer.mixers:
        if isinstance(mixer, Recurrent):
            yield from recurrent(mixer, count, step, run)
        else:
            yield from attention(mixer, count, step, run)
    if run.tp > 1 and layer.mixers and not (layer.parallel and layer.ffns):
        yield _all_reduce("attention_all_reduce", count, model, step, run)
    for ffn in layer.ffns:
        yield from feed_forward(ffn, count, step.tokens, run)
    if run.tp > 1 and layer.ffns:
        yield _all_reduce("ffn_all_reduce", count, model, step, run)
    if run.adapters:
        yield _adapters(layer, count, step, run)


def _elementwise(op: Op, model: Architecture, step: Step, run: Run) -> Op:
    """Return a layer's norms and rotary embedding; kernels of their own move the residual each time."""
    rows = 0 if run.fused else ELEMENTWISE_LAUNCHES * ELEMENTWISE_ROWS * step.tokens
    moved = rows * model.hidden_size * run.row_bytes()
    return replace(op, launches=ELEMENTWISE_LAUNCHES, activation_bytes=moved)


def _adapters(layer: Layer, count: int, step: Step, run: Run) -> Op:
    """Return the two thin products of LoRA beside each adapted matrix, of the adapters in the batch.

    Each sequence has one of them; engines run them grouped, a shrinking and an expanding kernel a matrix.
    """
    adapted, sides = adapted_weights(layer), adapter_sides(layer, run.tp)
    elements, used = run.adapter_rank * sides, distinct_experts(run.adapters, 1, step.seqs)
    return Op(
        name="lora",
        kind="gemm",
        count=count,
        flops=matmul_flops(step.tokens, elements),
        weight_bytes=used * elements * run.row_bytes(),
        activation_bytes=step.tokens * (sides + 2 * run.adapter_rank * len(adapted)) * run.row_bytes(),
        compute=run.arithmetic(),
        family="gemm.bf16",
        launches=2 * len(adapted),
    )


def _lookup(model: Architecture, step: Step, run: Run) -> Op:
    size = step.tokens * model.hidden_size * run.row_bytes()
    return Op(name="embed_tokens", kind="lookup", count=1, activation_bytes=2 * size)


def _all_reduce(name: str, count: int, model: Architecture, step: Step, run: Run) -> Op:
    return reduced(name, count, step.tokens * model.hidden_size * run.row_bytes(), run.tp)
