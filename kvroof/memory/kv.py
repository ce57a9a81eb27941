"""KV and state bytes of a batch, by layer kind: the payload, what is allocated, what a rank holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kvroof.ground.errors import BadInput
from kvroof.ground.record import record, static
from kvroof.memory.allocators import Allocator, Demand, equal_lengths, ragged, slots
from kvroof.spec.architecture import Architecture
from kvroof.spec.attention import Attention, GroupedAttention
from kvroof.spec.parallel import Layout, check_layout
from kvroof.spec.params import params_total
from kvroof.spec.precision import BF16_KV, KVFormat

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
    assumptions: tuple[str, ...] = static()


def mixers(model: Architecture) -> Iterator[tuple[Attention, int]]:
    """Yield each distinct attention that stores a cache, with the number of layers that have it."""
    for group in model.layers:
        for mixer in group.layer.mixers:
            if mixer.stores_kv:
                yield mixer, group.count


def check_demand(demand: Demand) -> None:
    """Refuse lengths and prefixes that no batch has.

    Raises:
        BadInput: No sequence, a negative or absurd length, or a prefix longer than a sequence.
    """
    if not demand.lengths or not 1 <= demand.seqs <= MAX_SEQS:
        raise BadInput(f"{demand.seqs} sequences is not between 1 and {MAX_SEQS}", where="--seqs")
    for length, _ in demand.lengths:
        if not 0 <= length <= MAX_TOKENS:
            raise BadInput(f"{length} tokens is not between 0 and {MAX_TOKENS}", where="--tokens")
    if not 0 <= demand.shared_prefix <= demand.shortest:
        raise BadInput(
            f"{demand.shared_prefix} shared tokens are not in the shortest sequence of {demand.shortest}",
            where="--shared-prefix",
        )


def cache_bytes(
    model: Architecture, demand: Demand, allocator: Allocator = PAYLOAD, kv: KVFormat = BF16_KV, tp: int = 1
) -> int:
    """Return the bytes `allocator` sets aside for `demand` on one of `tp` ranks; one rank holds all."""
    return sum(
        layers * slots(demand, mixer.reach, allocator).reserved * kv.token_bytes(mixer, tp)
        for mixer, layers in mixers(model)
    )


def growth_bytes(model: Architecture, tokens: int, kv: KVFormat = BF16_KV) -> int:
    """Return what the next token adds to the payload of one sequence of `tokens`."""
    return sum(
        layers * (mixer.reach.kept(tokens + 1) - mixer.reach.kept(tokens)) * kv.token_bytes(mixer)
        for mixer, layers in mixers(model)
    )


def kinds(model: Architecture, kv: KVFormat = BF16_KV) -> tuple[KindBytes, ...]:
    """Return the layers by kind and window, in the order in which they first appear."""
    found: dict[tuple[str, int | None], list[tuple[Attention, int]]] = {}
    for mixer, layers in mixers(model):
        found.setdefault((mixer.kind, mixer.reach.window), []).append((mixer, layers))
    return tuple(
        KindBytes(
            kind=kind,
            layers=sum(layers for _, layers in group),
            bytes_per_token=sum(layers * kv.token_bytes(mixer) for mixer, layers in group),
            window=window,
            state_bytes=0,
            arithmetic=" + ".join(_arithmetic(mixer, layers, kv) for mixer, layers in group),
        )
        for (kind, window), group in found.items()
    )


def _arithmetic(mixer: Attention, layers: int, kv: KVFormat) -> str:
    """Return how the bytes of one token come about, in words."""
    if isinstance(mixer, GroupedAttention):
        parts = f"{mixer.num_kv_heads} KV heads x ({mixer.head_dim} K + {mixer.v_head_dim} V)"
    else:
        parts = f"({mixer.kv_lora_rank} latent + {mixer.qk_rope_head_dim} rotary)"
    return f"{layers} layers x {parts} in {kv.name} = {layers * kv.token_bytes(mixer):,} B"


def kv(
    model: Architecture,
    *,
    tokens: int = 8192,
    seqs: int = 1,
    lengths: Iterable[int] | None = None,
    shared_prefix: int = 0,
    kv_format: KVFormat = BF16_KV,
    allocator: Allocator = Allocator(),  # noqa: B008 - a frozen record
    layout: Layout = Layout(),  # noqa: B008 - a frozen record
) -> KVReport:
    """Return the KV and state bytes of `seqs` sequences of `tokens` cached tokens each.

    Args:
        model: The architecture.
        tokens: Cached tokens of each sequence; after I inputs and O outputs that is I + O - 1.
        seqs: Sequences.
        lengths: Cached tokens of each sequence where they differ, instead of `tokens` and `seqs`.
        shared_prefix: Leading tokens that all sequences share, stored once.
        kv_format: Dtypes of keys and values.
        allocator: The policy that decides what is set aside.
        layout: Parallelism; `bytes_per_rank` is the fullest rank's.

    Raises:
        BadInput: Lengths, a prefix, or a layout that cannot be.
    """
    demand = (
        ragged(lengths, shared_prefix) if lengths is not None else equal_lengths(tokens, seqs, shared_prefix)
    )
    check_demand(demand)
    check_layout(model, layout)
    # Blocks and empty slots are counted on the layers that keep the most tokens.
    longest = max((slots(demand, m.reach, allocator) for m, _ in mixers(model)), key=lambda s: s.used)
    payload = cache_bytes(model, demand, PAYLOAD, kv_format)
    return KVReport(
        model=model.name,
        tokens=demand.longest,
        seqs=demand.seqs,
        kv_dtype=kv_format.name,
        allocator=allocator.name,
        block_size=allocator.block_size,
        bytes_per_token=growth_bytes(model, demand.longest, kv_format),
        fixed_bytes_per_seq=0,
        payload_bytes=payload,
        allocated_bytes=cache_bytes(model, demand, allocator, kv_format),
        num_blocks=longest.blocks,
        empty_slots=longest.empty,
        bytes_per_rank=cache_bytes(model, demand, allocator, kv_format, layout.tp),
        kinds=kinds(model, kv_format),
        params_total=params_total(model),
        assumptions=assumptions(model, demand, allocator, kv_format, layout),
    )


def assumptions(
    model: Architecture, demand: Demand, allocator: Allocator, kv_format: KVFormat, layout: Layout
) -> tuple[str, ...]:
    """Return, in sentences, what the figures take for granted."""
    said = [f"KV cache in {kv_format.name}; one logical copy, before replication over ranks"]
    windows = sorted({m.reach.window for m, _ in mixers(model) if m.reach.window is not None})
    if windows:
        said.append(f"windowed layers keep min(T, W) tokens, W = {', '.join(map(str, windows))}")
    if any(m.kind == "mla" for m, _ in mixers(model)):
        said.append("latent attention stores one latent and one rotary key per token, for all heads")
    limit = model.max_position_embeddings
    if limit is not None and demand.longest > limit:
        said.append(f"{demand.longest} tokens are beyond max_position_embeddings = {limit}")
    if layout.tp > 1 and any(m.kv_split < layout.tp for m, _ in mixers(model)):
        said.append(f"with {layout.tp} ranks, KV heads (or the latent) are replicated")
    if allocator.name == "reserved":
        said.append(f"{allocator.max_model_len} tokens are reserved for every sequence")
    said.extend(model.notes)
    return tuple(said)
