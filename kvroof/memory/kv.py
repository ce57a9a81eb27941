"""KV and state bytes of a batch, by layer kind: the payload, what is allocated, what a rank holds."""

from __future__ import annotations

from collections.abc import Iterable

from kvroof.ground.errors import BadInput
from kvroof.ground.numeric import minimum
from kvroof.ground.record import record, static
from kvroof.memory.allocators import Allocator, Slots, one_copy, slots
from kvroof.memory.demand import Demand, along_context, busiest, equal_lengths, ragged
from kvroof.memory.engines.engine import Figures, Formats
from kvroof.memory.layers import caches as caches
from kvroof.memory.layers import fixed_bytes as fixed_bytes
from kvroof.memory.layers import has_state
from kvroof.memory.layers import states as states
from kvroof.spec.architecture import Architecture
from kvroof.spec.cache import Cache, State
from kvroof.spec.parallel import ALONE, Layout, check_layout
from kvroof.spec.params import params_total
from kvroof.spec.precision import BF16_KV, HF_STATE, KVFormat, StateFormat
from kvroof.spec.reach import Encoder, Full, Selected, Strided
from kvroof.spec.stages import stage_models

MAX_TOKENS = 2**40
MAX_SEQS = 2**24
PAYLOAD = Allocator(name="payload")


@record
class KindBytes:
    """The layers of one kind: `bytes_per_token` is the sum over them, `state_bytes` per sequence."""

    kind: str = static()
    layers: int
    bytes_per_token: int
    window: int | None
    state_bytes: int
    arithmetic: str = static()


@record
class KVReport:
    """KV and state of a batch. Bytes are exact; `bytes_per_token` is the growth of one sequence."""

    model: str = static()
    tokens: int
    seqs: int
    kv_dtype: str = static()
    allocator: str = static()
    block_size: int
    bytes_per_token: int
    fixed_bytes_per_seq: int
    payload_bytes: int
    allocated_bytes: int
    num_blocks: int
    empty_slots: int
    bytes_per_rank: int
    kinds: tuple[KindBytes, ...]
    params_total: int
    engine: Figures | None = None
    assumptions: tuple[str, ...] = static()


def engine_formats(model: Architecture, allocator: Allocator, kv: KVFormat, state: StateFormat) -> Formats:
    """Return how the allocator's engine stores what is asked for; other allocators store just that."""
    return allocator.engine.formats(model, kv, state) if allocator.engine is not None else (kv, state)


def check_demand(demand: Demand, where: str = "--tokens") -> None:
    """Refuse lengths and prefixes that no batch has.

    Raises:
        BadInput: No sequence, a negative or absurd length, or a prefix longer than a sequence.
    """
    if not demand.lengths or not 1 <= demand.seqs <= MAX_SEQS:
        raise BadInput(f"{demand.seqs} sequences is not between 1 and {MAX_SEQS}", where="--seqs")
    for length, _ in demand.lengths:
        if not 1 <= length <= MAX_TOKENS:
            raise BadInput(f"{length} tokens is not between 1 and {MAX_TOKENS}", where=where)
    if not 0 <= demand.encoder_tokens <= MAX_TOKENS:
        raise BadInput(
            f"{demand.encoder_tokens} tokens is not between 0 and {MAX_TOKENS}", where="--encoder-tokens"
        )
    if not 0 <= demand.shared_prefix <= demand.shortest:
        raise BadInput(
            f"{demand.shared_prefix} shared tokens are not in the shortest sequence of {demand.shortest}",
            where="--shared-prefix",
        )


def check_served(demand: Demand, allocator: Allocator) -> None:
    """Refuse sequences longer than what the allocator is told to serve.

    Raises:
        BadInput: A `max_model_len` below the longest sequence.
    """
    limit = allocator.max_model_len
    if limit is not None and demand.longest > limit:
        raise BadInput(f"{demand.longest} tokens are more than the {limit} served", where="--max-model-len")


def cache_bytes(
    model: Architecture,
    demand: Demand,
    allocator: Allocator = PAYLOAD,
    kv: KVFormat = BF16_KV,
    state: StateFormat = HF_STATE,
    layout: Layout = ALONE,
) -> int:
    """Return the bytes `allocator` sets aside for `demand` on the fullest rank of a stage.

    Its group of ranks holds a share of the sequences, and with decode context parallelism a rank a share
    of their tokens. A fixed state is held whole by every sequence; the tokens of an encoder are kept beside
    the cache. An engine counts by its own rules, in formats that are its own (`engine_formats`).
    """
    demand = busiest(demand, layout.dp)
    if allocator.engine is not None:
        return allocator.engine.hold(model, demand, kv, state, layout.tp).held_bytes
    held = along_context(demand, layout.dcp)
    growing = sum(
        layers * _slots(held, cache, allocator).reserved * kv.token_bytes(cache, layout.tp)
        for cache, layers in caches(model)
    )
    return growing + demand.seqs * fixed_bytes(model, state, layout.tp)


def _slots(demand: Demand, cache: Cache, allocator: Allocator) -> Slots:
    """Return the slots of a cache: the decoder's tokens, or the encoder's for cross-attention."""
    if isinstance(cache.reach, Encoder):
        return slots(equal_lengths(demand.encoder_tokens, demand.seqs), Full(), allocator)
    return slots(demand, cache.reach, allocator)


def growth_bytes(model: Architecture, tokens: int, kv: KVFormat = BF16_KV) -> int:
    """Return what a token adds to the payload of one sequence of `tokens`, a full window nothing.

    An entry that several tokens share (DeepSeek-V4) counts by its share, rounded down over the layers.
    """
    added = 0
    for cache, layers in caches(model):
        shared = _tokens_per_entry(cache)
        grows = minimum(cache.reach.kept(tokens + shared) - cache.reach.kept(tokens), 1)
        added += layers * kv.token_bytes(cache) // shared * grows
    return added


def _tokens_per_entry(cache: Cache) -> int:
    return cache.reach.ratio if isinstance(cache.reach, Strided | Selected) else 1


def kinds(
    model: Architecture, kv: KVFormat = BF16_KV, state: StateFormat = HF_STATE
) -> tuple[KindBytes, ...]:
    """Return the layers by kind and window, in the order in which they first appear."""
    found: dict[tuple[str, int | None], list[tuple[Cache, int]]] = {}
    for cache, layers in caches(model):
        found.setdefault((cache.kind, cache.reach.window), []).append((cache, layers))
    growing = tuple(
        KindBytes(
            kind=kind,
            layers=sum(layers for _, layers in group),
            bytes_per_token=sum(
                layers * kv.token_bytes(cache) // _tokens_per_entry(cache) for cache, layers in group
            ),
            window=window,
            state_bytes=0,
            arithmetic=" + ".join(_arithmetic(cache, layers, kv) for cache, layers in group),
        )
        for (kind, window), group in found.items()
    )
    fixed_kinds: dict[tuple[str, State], int] = {}
    for kind, held, layers in states(model):
        fixed_kinds[kind, held] = fixed_kinds.get((kind, held), 0) + layers
    fixed = tuple(
        KindBytes(
            kind=kind,
            layers=layers,
            bytes_per_token=0,
            window=None,
            state_bytes=layers * state.state_bytes(held),
            arithmetic=_state_arithmetic(held, layers, state),
        )
        for (kind, held), layers in fixed_kinds.items()
    )
    return growing + fixed


def _arithmetic(cache: Cache, layers: int, kv: KVFormat) -> str:
    """Return how the bytes of one token come about, in words."""
    index = f" + {cache.index_width} index" if cache.index_width else ""
    parts = f"({cache.k_width} K + {cache.v_width} V{index} elements)"
    return f"{layers} layers x {parts} in {kv.name} = {layers * kv.token_bytes(cache):,} B"


def _state_arithmetic(held: State, layers: int, state: StateFormat) -> str:
    parts = []
    if held.conv_channels:
        parts.append(f"{held.conv_channels} x {state.columns(held)} convolution in {state.conv.name}")
    if held.recurrent_elements:
        dtype = state.conv if held.in_model_dtype else state.recurrent
        parts.append(f"{held.recurrent_elements} recurrent in {dtype.name}")
    total = f"{layers * state.state_bytes(held):,} B per sequence"
    return f"{layers} layers x ({' + '.join(parts)}) = {total}"


def kv(
    model: Architecture,
    *,
    tokens: int = 8192,
    seqs: int = 1,
    lengths: Iterable[int] | None = None,
    shared_prefix: int = 0,
    encoder_tokens: int = 0,
    kv_format: KVFormat = BF16_KV,
    state_format: StateFormat = HF_STATE,
    allocator: Allocator = Allocator(),  # noqa: B008 - a frozen record
    layout: Layout = Layout(),  # noqa: B008 - a frozen record
    available_bytes: int | None = None,
) -> KVReport:
    """Return the KV and state bytes of `seqs` sequences of `tokens` cached tokens each.

    Args:
        model: The architecture.
        tokens: Cached tokens of each sequence; after I inputs and O outputs that is I + O - 1.
        seqs: Sequences.
        lengths: Cached tokens of each sequence where they differ, instead of `tokens` and `seqs`.
        shared_prefix: Leading tokens that all sequences share, stored once.
        encoder_tokens: Tokens of the encoder's output per sequence, for cross-attention.
        kv_format: Dtypes of keys and values.
        state_format: Dtypes of a fixed state.
        allocator: The policy that decides what is set aside.
        layout: Parallelism; `bytes_per_rank` is the fullest rank's.
        available_bytes: What an engine's smallest rank has for its cache: then what it logs is predicted.

    Raises:
        BadInput: Lengths, a prefix, or a layout that cannot be; available memory without an engine.
        Unsupported: A cache that the engine, or kvroof's model of it, does not have.
    """
    demand = (
        ragged(lengths, shared_prefix, encoder_tokens)
        if lengths is not None
        else equal_lengths(tokens, seqs, shared_prefix, encoder_tokens)
    )
    check_demand(demand, "--tokens" if lengths is None else "--lengths")
    check_layout(model, layout)
    check_served(demand, allocator)
    kv_format, state_format = engine_formats(model, allocator, kv_format, state_format)
    whole = one_copy(allocator)
    blocks, empty = block_count(model, demand, whole, kv_format, state_format)
    figures = None
    if available_bytes is not None:
        if allocator.engine is None:
            raise BadInput("only an engine logs its figures", where="--available", way_out="add --engine")
        figures = allocator.engine.figures(model, available_bytes, kv_format, state_format, layout.tp)
    return KVReport(
        model=model.name,
        tokens=demand.longest,
        seqs=demand.seqs,
        kv_dtype=kv_format.name,
        allocator=allocator.name,
        block_size=allocator.block_size,
        bytes_per_token=growth_bytes(model, demand.longest, kv_format),
        fixed_bytes_per_seq=fixed_bytes(model, state_format),
        payload_bytes=cache_bytes(model, demand, PAYLOAD, kv_format, state_format),
        allocated_bytes=cache_bytes(model, demand, whole, kv_format, state_format),
        num_blocks=blocks,
        empty_slots=empty,
        bytes_per_rank=max(
            cache_bytes(stage, demand, allocator, kv_format, state_format, layout)
            for stage in stage_models(model, layout.pp)
        ),
        kinds=kinds(model, kv_format, state_format),
        params_total=params_total(model),
        engine=figures,
        assumptions=assumptions(model, demand, allocator, kv_format, state_format, layout),
    )


def block_count(
    model: Architecture, demand: Demand, allocator: Allocator, kv: KVFormat, state: StateFormat
) -> tuple[int, int]:
    """Return the blocks of all sequences and the empty slots in them.

    Counted on the layers that keep the most tokens; an engine's blocks are those it draws from its pool.
    """
    if allocator.engine is not None:
        held = allocator.engine.hold(model, demand, kv, state)
        return held.blocks, held.slots - held.used
    counted = [_slots(demand, cache, allocator) for cache, _ in caches(model)]
    most = max(counted, key=lambda s: s.used, default=Slots(reserved=0, used=0, blocks=0))
    return most.blocks, most.empty


def assumptions(
    model: Architecture,
    demand: Demand,
    allocator: Allocator,
    kv_format: KVFormat,
    state_format: StateFormat,
    layout: Layout,
) -> tuple[str, ...]:
    """Return, in sentences, what the figures take for granted."""
    said = [f"KV cache in {kv_format.name}; one logical copy, before replication over ranks"]
    windows = sorted({c.reach.window for c, _ in caches(model) if c.reach.window is not None})
    if allocator.engine is not None:
        said.extend(allocator.engine.sentences(model))
    elif windows:
        said.append(f"windowed layers keep min(T, W) tokens, W = {', '.join(map(str, windows))}")
    if any(c.kind.startswith("mla") for c, _ in caches(model)):
        said.append("latent attention stores one latent and one rotary key per token, for all heads")
    if allocator.engine is None and has_state(model):
        said.append(
            f"fixed state as Hugging Face keeps it: d_conv columns in {state_format.conv.name}, recurrence in"
            f" {state_format.recurrent.name}"
        )
    if any(isinstance(c.reach, Encoder) for c, _ in caches(model)):
        said.append(f"cross-attention keeps {demand.encoder_tokens} encoder tokens (--encoder-tokens)")
    limit = model.max_position_embeddings
    if limit is not None and demand.longest > limit:
        said.append(f"{demand.longest} tokens are beyond max_position_embeddings = {limit}")
    if layout.dp > 1:
        said.append(f"{layout.dp} groups of ranks each hold their own share of the sequences")
    if layout.dcp > 1:
        said.append(f"{layout.dcp} ranks share the tokens of each KV head they would hold copies of")
    elif layout.tp > 1 and any(c.split < layout.tp for c, _ in caches(model)):
        said.append(f"with {layout.tp} ranks, KV heads (or the latent) are replicated")
    if allocator.name == "reserved":
        said.append(f"{allocator.max_model_len} tokens are reserved for every sequence")
    said.extend(model.notes)
    return tuple(said)
