"""The options that choose an engine and its flags, and the storage that they make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast, get_args

import click

from kvroof.cli.options import gathered, given, left_out
from kvroof.ground.dtypes import parse_dtype
from kvroof.ground.errors import BadInput
from kvroof.memory.allocators import (
    Allocator,
    AllocatorName,
    EngineName,
    parse_allocator,
    plain_engine,
)
from kvroof.memory.engines.llama_cpp import Latent
from kvroof.memory.engines.vllm import Mismatch
from kvroof.memory.kv import engine_formats
from kvroof.spec.architecture import Architecture
from kvroof.spec.parallel import Layout
from kvroof.spec.precision import HF_STATE, KVFormat, StateFormat, parse_kv_format

F = TypeVar("F", bound=Callable[..., Any])
Flags: TypeAlias = dict[str, Any]
"""The options that were given, by name."""

ENGINES = get_args(EngineName)
_FLAGS: dict[str, tuple[str, ...]] = {
    "max_num_batched_tokens": ENGINES,
    "dcp": ("vllm",),
    "spec_tokens": ("vllm",),
    "mtp_layers": ("vllm",),
    "batches_in_flight": ("vllm",),
    "mismatch": ("vllm",),
    "similar": ("vllm",),
    "prefix_caching": ("vllm", "sglang"),
    "state_dtype": ("vllm", "sglang"),
    "swa_ratio": ("sglang",),
    "state_ratio": ("sglang",),
    "unified": ("llama.cpp",),
    "swa_full": ("llama.cpp",),
    "mla": ("llama.cpp",),
}
"""Fields of the engines' records that an option sets, and the engines that have them."""


def _option(*names: str, help: str, type: Any = None) -> Callable[[F], F]:
    return click.option(*names, help=help, type=type, default=None)


_OPTIONS = (
    _option("--allocator", help=f"{', '.join(get_args(AllocatorName))}; paged if left out."),
    _option("--engine", help=f"The engine's allocator and defaults: {', '.join(ENGINES)}."),
    _option("--block-size", type=int, help="Tokens in a KV block; 16, or the engine's own."),
    _option("--max-model-len", type=int, help="Longest sequence that is served, or `reserved` for each."),
    _option("--max-num-batched-tokens", type=int, help="Tokens in one step (llama.cpp: --ubatch-size)."),
    _option("--state-dtype", help="Recurrent state: auto (the engine's choice, else fp32), fp32, bf16."),
    _option("--dcp", type=int, help="Ranks that share a KV head's tokens in decode."),
    _option("--spec-tokens", type=int, help="Tokens drafted per step (vllm)."),
    _option("--mtp-layers", type=int, help="The model's own drafting layers, which cache too (vllm)."),
    _option("--batches-in-flight", type=int, help="2 with asynchronous scheduling (vllm)."),
    _option(
        "--page-mismatch", "mismatch", type=click.Choice(get_args(Mismatch)), help="Uneven pages (vllm): pad."
    ),
    _option("--group-ratio", "similar", help="Counts of layers nearer than this share groups (vllm): 1.5."),
    _option(
        "--prefix-caching/--no-prefix-caching",
        "prefix_caching",
        help="Keep states to go back to (vllm, sglang): on.",
    ),
    _option("--swa-ratio", help="Windowed tokens per full token (sglang): 0.8."),
    _option("--state-ratio", help="Memory of states per memory of tokens (sglang): 0.9."),
    _option("--kv-unified/--no-kv-unified", "unified", help="One context for all slots (llama.cpp): on."),
    _option("--swa-full/--no-swa-full", "swa_full", help="Windowed layers keep all (llama.cpp): off."),
    _option(
        "--mla",
        type=click.Choice(get_args(Latent)),
        help="How latent attention is stored (llama.cpp; ik_llama.cpp -mla 3, 1, 0): latent.",
    ),
)


engine_options = gathered("flags", given, *_OPTIONS)


def _allocator(flags: Flags, model: Architecture, engine: str | None = None) -> Allocator:
    """Return the allocator that the options make for `model`; `engine` where no option names one.

    Raises:
        BadInput: An unknown name, a value that cannot be, or a flag that the engine does not have.
    """
    name: str | None = flags.get("engine", engine)
    name = name if name is None else name.lower()
    if name is not None and name not in ENGINES:
        raise BadInput(f"{name!r} is not an engine", where="--engine", way_out=f"known: {', '.join(ENGINES)}")
    asked: str = flags.get("allocator", name or "paged").lower()
    if name is not None and asked != name:
        raise BadInput(
            f"{asked!r} and --engine {name} are two allocators", where="--allocator", way_out="leave one out"
        )
    block, length = flags.get("block_size"), flags.get("max_model_len")
    own = {key: value for key, value in flags.items() if key in _FLAGS}
    if asked not in ENGINES:
        for key in own:
            if key not in ("state_dtype", "max_num_batched_tokens", "dcp"):
                raise BadInput("is a flag of an engine", where=_spelling(key), way_out="add --engine vllm")
        return parse_allocator(asked, block, length, model.max_position_embeddings)
    for key, value in own.items():
        if asked not in _FLAGS[key]:
            raise BadInput(
                f"{asked} has no such flag",
                where=_spelling(key),
                way_out=f"it is {' and '.join(_FLAGS[key])}'s",
            )
        own[key] = _value(key, value)
    if block is not None and asked == "llama.cpp":
        raise BadInput(
            "llama.cpp has no blocks: it pads its context", where="--block-size", way_out="leave it out"
        )
    parse_allocator(asked, block, length)
    made = replace(plain_engine(cast(EngineName, asked), block, length), **own)
    return parse_allocator(asked, block, length, engine=made)


class Stored(NamedTuple):
    """What the options make of a model: its allocator, the formats of its cache and state, and its layout."""

    allocator: Allocator
    kv_format: KVFormat
    state_format: StateFormat
    layout: Layout

    def tokens(self, asked: int) -> int:
        """Return the tokens of a sequence: as asked, or a default that is no longer than what is served."""
        limit = self.allocator.max_model_len
        return min(asked, limit) if limit is not None and left_out("tokens") else asked


def chosen_storage(
    flags: Flags, model: Architecture, layout: Layout, kv_dtype: str, engine: str | None = None
) -> Stored:
    """Return how the options store a model's cache, in an engine as that engine does.

    Args:
        flags: The options of engines.
        model: The model.
        layout: Its layout, less `--dcp`, which an engine's own allocator counts by itself.
        kv_dtype: As `--kv-dtype` gives it.
        engine: The engine where no option names one.

    Raises:
        BadInput: No such dtype, an unknown name, or a flag that the engine does not have.
    """
    allocator = _allocator(flags, model, engine)
    state, dtype = HF_STATE, flags.get("state_dtype")
    if dtype is not None and dtype != "auto":
        state = replace(state, recurrent=parse_dtype(dtype, "--state-dtype"))
    formats = engine_formats(model, allocator, parse_kv_format(kv_dtype, model), state)
    if allocator.engine is None:
        layout = replace(layout, dcp=flags.get("dcp", 1))
    return Stored(allocator, *formats, layout)


def _value(key: str, value: Any) -> Any:
    """Return what the engine's record holds for an option's value.

    Raises:
        BadInput: A number that cannot be.
    """
    if key == "state_dtype":
        return None if value == "auto" else parse_dtype(value, "--state-dtype")
    if key in ("swa_ratio", "state_ratio", "similar"):
        try:
            ratio = Fraction(value).limit_denominator(10**6)
        except (ValueError, ZeroDivisionError, OverflowError):
            raise BadInput(f"{value!r} is not a ratio", where=_spelling(key), way_out="write 0.8") from None
        if not 0 < ratio <= 1000:
            raise BadInput(f"{value!r} is not a positive ratio", where=_spelling(key))
        return ratio
    least = 0 if key in ("spec_tokens", "mtp_layers") else 1
    if isinstance(value, int) and not isinstance(value, bool) and not least <= value <= 2**32:
        raise BadInput(f"{value} is not between {least} and {2**32}", where=_spelling(key))
    return value


def _spelling(key: str) -> str:
    names = {"mismatch": "page-mismatch", "similar": "group-ratio", "unified": "kv-unified"}
    return "--" + names.get(key, key).replace("_", "-")
