"""What stands in a device's memory beside weights and cache, term by term, each with its arithmetic."""

from __future__ import annotations

from collections.abc import Iterator

from kvroof.ground.dtypes import DTYPES
from kvroof.ground.errors import BadInput
from kvroof.ground.numeric import ceil_div
from kvroof.ground.record import record, static
from kvroof.ground.units import GIB
from kvroof.memory.allocators import Allocator
from kvroof.spec.architecture import Architecture, Mixer
from kvroof.spec.attention import LatentAttention
from kvroof.spec.ffn import FFN, MoE
from kvroof.spec.parallel import Layout
from kvroof.spec.params import adapter_sides, weight_bytes
from kvroof.spec.weights import MAX_ADAPTERS, in_features, out_features

NON_TORCH_BYTES = 35 * GIB // 100
"""CUDA context and libraries: 0.35 GiB. Source: the log of github.com/vllm-project/vllm/issues/10517."""
PROFILED_SEQS = 256
"""Sequences whose logits vLLM holds when it measures its peak (its default `max_num_seqs`)."""


@record
class Term:
    """Bytes on the fullest rank under a name; `loaded` with the weights, or taken while steps run."""

    name: str = static()
    term_bytes: int
    arithmetic: str = static()
    loaded: bool = static(default=False)


def step_activations(model: Architecture, tokens: int, seqs: int, tp: int = 1) -> Term:
    """Return the peak of one step: its widest activations and the logits of the sampled positions.

    `tokens x (2 hidden + widest) x bytes + min(tokens, max(seqs, 256)) x vocabulary x 4`: the residual and
    its norm, the widest intermediate of a layer with its inputs, and fp32 logits, gathered whole.

    Source: checked against the peak in the log of github.com/vllm-project/vllm/issues/10517:
    Llama-3.1-8B with 20,000 tokens in a step, 2.07 GiB logged, 2.03 GiB by this formula.
    """
    each = DTYPES[model.dtype].row_bytes(1)
    widest = max(
        (width for g in model.layers for width in _widths(g.layer.mixers, g.layer.ffns, tp)), default=0
    )
    width = 2 * model.hidden_size + widest
    sampled = min(tokens, max(seqs, PROFILED_SEQS))
    size = tokens * width * each + sampled * model.vocab_size * 4
    words = (
        f"{tokens} tokens x {width} elements x {each} B + {sampled} x {model.vocab_size} fp32 logits"
        f" = {size:,} B"
    )
    return Term(name="activation peak", term_bytes=size, arithmetic=words)


def _widths(mixers: tuple[Mixer, ...], ffns: tuple[FFN, ...], tp: int) -> Iterator[int]:
    """Yield the elements per token that each part of a layer has alive at its widest, on one rank."""
    for mixer in mixers:
        *inner, last = mixer.projections
        rebuilt = out_features(mixer.up_projection, tp) if isinstance(mixer, LatentAttention) else 0
        yield sum(out_features(w, tp) for w in inner) + in_features(last, tp) + rebuilt
    for ffn in ffns:
        if isinstance(ffn, MoE):
            up, down = ffn.experts
            routed = ffn.num_experts_per_tok * (
                max(out_features(up, tp), out_features(down, tp)) + in_features(down, tp)
            )
            yield routed + sum(out_features(w, tp) for w in ffn.shared_experts)
        else:
            up, down = ffn.projections
            yield out_features(up, tp) + in_features(down, tp)


def adapters(model: Architecture, count: int, rank: int, tp: int = 1) -> Term:
    """Return the slots of `count` LoRA adapters: `count x rank x (in + out)` over the adapted matrices.

    On each rank an adapter's matrix beside a divided side is divided with it, the other one is whole. Gate
    and up matrix have an adapter each.
    Engines set the slots aside for the largest rank, used or not. Matrices of attention, MLPs and shared
    experts are adapted, routed experts are not.

    Raises:
        BadInput: A count or a rank that is not positive.
    """
    for option, value in (("--adapters", count), ("--adapter-rank", rank)):
        if not 1 <= value <= MAX_ADAPTERS:
            raise BadInput(f"{value} is not between 1 and {MAX_ADAPTERS}", where=option)
    sides = sum(g.count * adapter_sides(g.layer, tp) for g in model.layers)
    each = DTYPES[model.dtype].row_bytes(1)
    size = count * rank * sides * each
    words = f"{count} adapters x rank {rank} x {sides} (in + out of every matrix) x {each} B = {size:,} B"
    return Term(name="LoRA adapters", term_bytes=size, arithmetic=words, loaded=True)


def encoder_cache(model: Architecture, tokens: int) -> Term | None:
    """Return the cache of encoded images or sounds: a step's tokens of the residual's width.

    None where the model has no tower. Source: vLLM's encoder budget, at least `max_num_batched_tokens`.
    """
    if not model.towers:
        return None
    each = DTYPES[model.dtype].row_bytes(1)
    size = tokens * model.hidden_size * each
    words = f"{tokens} tokens x {model.hidden_size} x {each} B = {size:,} B"
    return Term(name="encoder cache", term_bytes=size, arithmetic=words, loaded=True)


def block_tables(tokens: int, seqs: int, block_size: int) -> Term:
    """Return the block tables of a paged engine: a 4-byte block number per block and sequence.

    Source: vLLM's `BlockTable`, int32 of `[max_num_seqs, max blocks per request]`.
    """
    rows, blocks = max(seqs, PROFILED_SEQS), ceil_div(tokens, block_size)
    words = f"{rows} sequences x {blocks} blocks x 4 B = {rows * blocks * 4:,} B"
    return Term(name="block tables", term_bytes=rows * blocks * 4, arithmetic=words, loaded=True)


def given(name: str, size: int, loaded: bool = False) -> Term:
    """Return a term of a size that is known."""
    return Term(name=name, term_bytes=size, arithmetic=f"given: {size:,} B", loaded=loaded)


def budget_terms(
    model: Architecture,
    allocator: Allocator,
    seqs: int,
    tp: int = 1,
    *,
    tokens: int | None = None,
    tokens_per_step: int | None = None,
    reserved: bool = False,
    activations: int | None = None,
    non_torch: int | None = None,
    graphs: int | None = None,
    lora: tuple[int, int] | None = None,
    draft: tuple[Architecture, Layout] | None = None,
) -> tuple[Term, ...]:
    """Return what stands beside weights and cache under each name.

    An engine's step holds `max_num_batched_tokens`, and its runtime is counted; without an engine there are
    only terms that were asked for. CUDA graphs are not known beforehand.

    Args:
        model: The architecture.
        allocator: Whose terms they are.
        seqs: Sequences at once.
        tp: Tensor-parallel ranks; the fullest rank's terms are returned.
        tokens: The longest sequence, which block tables have to hold.
        tokens_per_step: Tokens of one step, where there is no engine that says so.
        reserved: A reserve was given, and stands for activations, runtime and graphs.
        activations: The activation peak, where it is known.
        non_torch: The runtime, where it is known.
        graphs: The captured graphs.
        lora: How many adapters of which rank.
        draft: A draft model, whose weights are counted, and how it is laid over the ranks.

    Raises:
        BadInput: A step of no tokens, or a number of adapters that cannot be.
    """
    if tokens_per_step is not None and tokens_per_step < 1:
        raise BadInput(
            f"{tokens_per_step} is not a positive number of tokens", where="--max-num-batched-tokens"
        )
    engine = allocator.engine
    step = engine.max_num_batched_tokens if engine is not None else tokens_per_step
    found: list[Term | None] = []
    if activations is not None:
        found.append(given("activation peak", activations))
    elif step is not None and not reserved:
        found.append(step_activations(model, step, seqs, tp))
    if non_torch is not None:
        found.append(given("non-torch", non_torch))
    elif engine is not None and not reserved:
        found.append(RUNTIME)
    if graphs is not None:
        found.append(given("CUDA graphs", graphs))
    if engine is not None and step is not None:
        found.append(encoder_cache(model, step))
    if engine is not None and engine.name != "llama.cpp" and tokens is not None:
        found.append(block_tables(tokens, seqs, allocator.block_size))
    if lora is not None:
        found.append(adapters(model, *lora, tp))
    if draft is not None:
        size = weight_bytes(draft[0], None, draft[1])
        words = f"weights of {draft[0].name}, counted tensor by tensor = {size:,} B"
        found.append(Term(name="draft weights", term_bytes=size, arithmetic=words, loaded=True))
    return tuple(term for term in found if term is not None)


RUNTIME = Term(
    name="non-torch",
    term_bytes=NON_TORCH_BYTES,
    arithmetic="CUDA context and libraries, 0.35 GiB as a vLLM log has it (vllm#10517); --non-torch",
)
