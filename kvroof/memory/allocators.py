"""What an allocator reserves for the tokens that sequences keep: payload is not allocation.

`payload` stores each kept token, `paged` whole blocks, `padded` pads every sequence to the longest,
`reserved` sets the maximum length aside for each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal, TypeAlias, cast, get_args

from kvroof.ground.errors import BadInput
from kvroof.ground.numeric import ceil_div
from kvroof.ground.record import record, static
from kvroof.spec.reach import Reach

AllocatorName: TypeAlias = Literal["payload", "paged", "padded", "reserved"]


@record
class Demand:
    """Sequences as `(cached tokens, how many)`; the first `shared_prefix` tokens are the same in all.

    Each has `encoder_tokens` beside them where the model has an encoder.
    """

    lengths: tuple[tuple[int, int], ...]
    shared_prefix: int = 0
    encoder_tokens: int = 0

    @property
    def seqs(self) -> int:
        """Sequences in all."""
        return sum(count for _, count in self.lengths)

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return max(length for length, _ in self.lengths)

    @property
    def shortest(self) -> int:
        """Tokens of the shortest sequence."""
        return min(length for length, _ in self.lengths)


def equal_lengths(tokens: int, seqs: int, shared_prefix: int = 0, encoder_tokens: int = 0) -> Demand:
    """Return `seqs` sequences of `tokens` each."""
    return Demand(lengths=((tokens, seqs),), shared_prefix=shared_prefix, encoder_tokens=encoder_tokens)


def ragged(lengths: Iterable[int], shared_prefix: int = 0, encoder_tokens: int = 0) -> Demand:
    """Return sequences of the given lengths."""
    counted = tuple(Counter(lengths).items())
    return Demand(lengths=counted, shared_prefix=shared_prefix, encoder_tokens=encoder_tokens)


@record
class Allocator:
    """A named policy with what it needs to know."""

    name: AllocatorName = static(default="paged")
    block_size: int = 16
    max_model_len: int | None = None


@record
class Slots:
    """Token slots of one layer kind: how many are set aside, in how many blocks, how many are used."""

    reserved: int
    used: int
    blocks: int

    @property
    def empty(self) -> int:
        """Slots set aside and not used."""
        return self.reserved - self.used


def parse_allocator(
    name: str, block_size: int = 16, max_model_len: int | None = None, limit: int | None = None
) -> Allocator:
    """Return the allocator called `name`; `reserved` needs a maximum length, by default the model's `limit`.

    Raises:
        BadInput: An unknown name, a block that is not positive, or no maximum to reserve.
    """
    known = get_args(AllocatorName)
    if name not in known:
        raise BadInput(
            f"{name!r} is not an allocator", where="--allocator", way_out=f"known: {', '.join(known)}"
        )
    if block_size < 1:
        raise BadInput(f"{block_size} is not a positive number of tokens", where="--block-size")
    length = max_model_len if max_model_len is not None else limit
    if name == "reserved" and length is None:
        raise BadInput(
            "the maximum to reserve is not known", where="--allocator reserved", way_out="add --max-model-len"
        )
    if length is not None and length < 1:
        raise BadInput(f"{length} is not a positive number of tokens", where="--max-model-len")
    return Allocator(name=cast(AllocatorName, name), block_size=block_size, max_model_len=length)


def slots(demand: Demand, reach: Reach, allocator: Allocator) -> Slots:
    """Return the token slots that `allocator` sets aside on a layer of this reach.

    A shared prefix is stored once, as far as the reach still keeps it; paged, by whole blocks, and the
    part-filled block where sequences diverge is each one's own copy.

    Raises:
        BadInput: Sequences that share a prefix under an allocator without sharing, or longer than the
            reserved maximum.
    """
    kept = [(reach.kept(length), count) for length, count in demand.lengths]
    shared = [_shared(reach, length, demand.shared_prefix) for length, _ in demand.lengths]
    used = sum((keep - part) * n for (keep, n), part in zip(kept, shared, strict=True)) + max(shared)
    size = allocator.block_size
    if allocator.name in ("payload", "paged"):
        common = [part // size for part in shared]
        own = sum((ceil_div(keep, size) - part) * n for (keep, n), part in zip(kept, common, strict=True))
        blocks = own + max(common)
        return Slots(
            reserved=used if allocator.name == "payload" else blocks * size, used=used, blocks=blocks
        )
    if demand.shared_prefix:
        raise BadInput(
            f"{allocator.name} sequences do not share",
            where="--shared-prefix",
            way_out="use --allocator paged",
        )
    longest = demand.longest
    if allocator.name == "reserved":
        limit = allocator.max_model_len or 0
        if longest > limit:
            raise BadInput(f"{longest} tokens are more than the {limit} reserved", where="--max-model-len")
        longest = limit
    each = reach.kept(longest)
    return Slots(reserved=each * demand.seqs, used=used, blocks=ceil_div(each, size) * demand.seqs)


def _shared(reach: Reach, length: int, prefix: int) -> int:
    """Return how many of the kept tokens lie in the shared prefix; the kept ones are the last."""
    return max(reach.kept(length) - (length - prefix), 0)
