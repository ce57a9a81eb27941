"""What an allocator reserves for the tokens that sequences keep: payload is not allocation.

`payload` stores each kept token, `paged` whole blocks, `padded` pads every sequence to the longest,
`reserved` sets the maximum length aside for each. An engine sets aside what its own rules say
(`kvroof.memory.engines`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, TypeAlias, cast, get_args

from kvroof.ground.errors import BadInput
from kvroof.ground.numeric import ceil_div
from kvroof.ground.record import record, static
from kvroof.memory.demand import Demand as Demand
from kvroof.memory.demand import equal_lengths as equal_lengths
from kvroof.memory.demand import ragged as ragged
from kvroof.memory.engines.llama_cpp import LlamaCpp
from kvroof.memory.engines.sglang import SGLang
from kvroof.memory.engines.tensorrt_llm import TensorRTLLM
from kvroof.memory.engines.vllm import VLLM
from kvroof.spec.reach import Reach

EngineName: TypeAlias = Literal["vllm", "sglang", "llama.cpp", "tensorrt-llm"]
AllocatorName: TypeAlias = Literal[
    "payload", "paged", "padded", "reserved", "vllm", "sglang", "llama.cpp", "tensorrt-llm"
]
AnyEngine: TypeAlias = VLLM | SGLang | LlamaCpp | TensorRTLLM


@record
class Allocator:
    """A named policy with what it needs to know; an engine's comes with that `engine` and its flags."""

    name: AllocatorName = static(default="paged")
    block_size: int = 16
    max_model_len: int | None = None
    engine: AnyEngine | None = None


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
    name: str,
    block_size: int | None = None,
    max_model_len: int | None = None,
    limit: int | None = None,
    engine: AnyEngine | None = None,
) -> Allocator:
    """Return the allocator called `name`; `reserved` needs a maximum length, by default the model's `limit`.

    Blocks are of 16 tokens, an engine's as that engine has them, unless `block_size` says otherwise. An
    `engine` given with its flags is taken as it is.

    Raises:
        BadInput: An unknown name, a block that is not positive, or no maximum to reserve.
    """
    known = get_args(AllocatorName)
    if name not in known:
        raise BadInput(
            f"{name!r} is not an allocator", where="--allocator", way_out=f"known: {', '.join(known)}"
        )
    if block_size is not None and block_size < 1:
        raise BadInput(f"{block_size} is not a positive number of tokens", where="--block-size")
    length = max_model_len if max_model_len is not None else limit
    if name == "reserved" and length is None:
        raise BadInput(
            "the maximum to reserve is not known", where="--allocator reserved", way_out="add --max-model-len"
        )
    if length is not None and length < 1:
        raise BadInput(f"{length} is not a positive number of tokens", where="--max-model-len")
    if name in get_args(EngineName):
        served = engine or plain_engine(cast(EngineName, name), block_size, max_model_len)
        return Allocator(
            name=cast(AllocatorName, name),
            block_size=served.block_size,
            max_model_len=max_model_len,
            engine=served,
        )
    limit = length if name == "reserved" else max_model_len
    return Allocator(name=cast(AllocatorName, name), block_size=block_size or 16, max_model_len=limit)


def plain_engine(
    name: EngineName, block_size: int | None = None, max_model_len: int | None = None
) -> AnyEngine:
    """Return the engine called `name` with its defaults; llama.cpp has no blocks, it pads its context."""
    if name == "vllm":
        return VLLM(block_size=block_size or VLLM().block_size, max_model_len=max_model_len)
    if name == "sglang":
        return SGLang(block_size=block_size or SGLang().block_size, max_model_len=max_model_len)
    if name == "tensorrt-llm":
        return TensorRTLLM(block_size=block_size or TensorRTLLM().block_size, max_model_len=max_model_len)
    return LlamaCpp(max_model_len=max_model_len)


def one_copy(allocator: Allocator) -> Allocator:
    """Return the allocator as it is before ranks divide the tokens of a sequence among themselves."""
    if not isinstance(allocator.engine, VLLM):
        return allocator
    return replace(allocator, engine=replace(allocator.engine, dcp=1))


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
