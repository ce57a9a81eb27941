"""What an engine printed when it started: the lines about its cache, as numbers.

A log is untrusted text: lines are cut, patterns are bounded, numbers are limited, nothing is evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, TypeAlias

from kvroof.ground.errors import BadInput
from kvroof.ground.record import record, static
from kvroof.ground.units import GIB, MIB

LogKind: TypeAlias = Literal[
    "available",
    "blocks",
    "host blocks",
    "tokens",
    "stored tokens",
    "all tokens",
    "two pools",
    "concurrency",
    "block size",
    "state padding",
    "padding layers",
    "needed",
    "longest",
    "K and V",
    "KV",
    "states",
    "states of no count",
    "self size",
    "buffer",
    "cells",
    "recurrent",
    "paged tokens",
    "paged bytes",
    "setting",
]
MAX_LINE = 4000
"""Characters of a line that are looked at; the configuration vLLM prints is about half as long."""
MAX_LINES_KEPT = 10_000
MAX_NUMBER = 10**15
_EXAMPLES = 'lines such as "Available KV cache memory: 5.38 GiB" or "KV self size = ..."'
_NUMBER = re.compile(r"[0-9][0-9,]*(\.[0-9]+)?")

_N = r"([0-9]{1,3}(?:,[0-9]{3}){1,5}|[0-9]{1,16})"
_F = r"([0-9]{1,12}(?:[.,][0-9]{1,6})?)"
_DTYPE = r"(?:dtype: [A-Za-z0-9_.]{1,40}, )?"
_STATES = rf"conv_state size: {_F} ?GB, ssm_state size: {_F} ?GB"
_TYPE = r"\(([A-Za-z][A-Za-z0-9_]{0,15})\)"
_PATTERNS: tuple[tuple[LogKind, str, str], ...] = (
    ("available", "vllm", rf"Available KV cache memory: {_F} GiB"),
    ("available", "vllm", rf"memory reserved for KV Cache is(?: only)? {_F} ?GiB"),
    ("available", "vllm", rf"kv_cache_size={_F} ?GiB"),
    ("needed", "vllm", rf"max seq len \({_N}\),? \({_F} GiB KV cache is needed"),
    ("available", "vllm", rf"larger than the available KV cache memory \({_F} GiB\)"),
    ("longest", "vllm", rf"estimated maximum model length is {_N}"),
    ("blocks", "vllm", rf"(?:GPU|cuda) blocks: {_N}"),
    ("host blocks", "vllm", rf"CPU blocks: {_N}"),
    ("stored tokens", "vllm", rf"tokens that can be stored in KV cache \({_N}\)"),
    ("tokens", "vllm", rf"GPU KV cache size: {_N} tokens"),
    ("concurrency", "vllm", rf"Maximum concurrency for {_N} tokens per request: {_F}x"),
    ("block size", "vllm", rf"Setting attention block size to {_N} tokens"),
    ("state padding", "vllm", rf"Padding mamba page size by {_F}%"),
    ("padding layers", "vllm", rf"Add {_N} padding layers"),
    ("states", "sglang", rf"Mamba Cache is allocated\. max_mamba_cache_size: {_N}, {_STATES}"),
    ("states of no count", "sglang", rf"Mamba Cache is allocated\. {_STATES}"),
    ("two pools", "sglang", rf"SWAKVPool mem usage: {_F} GB, swa size: {_N}, full size: {_N}"),
    ("all tokens", "sglang", rf"max_total_num_tokens={_N}"),
    (
        "K and V",
        "sglang",
        rf"KV Cache is allocated\. {_DTYPE}#tokens: {_N}, K size: {_F} GB, V size: {_F} GB",
    ),
    (
        "KV",
        "sglang",
        rf"KV Cache is allocated\. {_DTYPE}#tokens: {_N}, KV size: {_F} GB",
    ),
    (
        "self size",
        "llama.cpp",
        rf"KV self size {{1,4}}= {{0,9}}{_F} MiB, K {_TYPE}: {{0,9}}{_F} MiB, V {_TYPE}: {{0,9}}{_F} MiB",
    ),
    ("self size", "llama.cpp", rf"KV self size {{1,4}}= {{0,9}}{_F} MiB, c\^KV {_TYPE}: {{0,9}}{_F} MiB"),
    ("buffer", "llama.cpp", rf"[A-Za-z_0-9]{{1,20}} KV buffer size = {{0,9}}{_F} MiB"),
    (
        "cells",
        "llama.cpp",
        rf"llama_kv_cache[a-z_]{{0,20}}: +size = {{0,9}}{_F} MiB \( {{0,9}}{_N} cells, {{1,4}}{_N} layers,"
        rf" {{1,4}}{_N}(?:/ {{0,3}}{_N})? seqs\)(?:, K {_TYPE}: {{0,9}}[0-9.,]{{1,12}} MiB, V {_TYPE})?",
    ),
    (
        "recurrent",
        "llama.cpp",
        rf"llama_memory_recurrent: size = {{0,9}}{_F} MiB \( {{0,9}}{_N} cells, {{1,4}}{_N} layers",
    ),
    ("paged bytes", "tensorrt-llm", rf"Allocated {_F} GiB for max tokens in paged KV cache \({_N}\)"),
    ("paged tokens", "tensorrt-llm", rf"Using {_N} tokens in paged KV cache"),
)
_SETTINGS: tuple[tuple[str, str], ...] = (
    ("tp", r"tensor_parallel_size=(\d{1,4})"),
    ("tp", r"\btp_size=(\d{1,4})"),
    ("max_model_len", r"max_seq_len=(\d{1,9})"),
    ("max_model_len", r"max seq len \((\d{1,9})\)"),
    ("max_num_batched_tokens", r"max_num_batched_tokens=(\d{1,9})"),
    ("kv_dtype", r"kv_cache_dtype='?([A-Za-z0-9_]{1,24})"),
    ("context", r"\bn_ctx {1,20}= {1,20}(\d{1,12})"),
    ("context", r"\bkv_size = (\d{1,12})"),
    ("seqs", r"\bn_seq_max {1,20}= {1,20}(\d{1,9})"),
    ("ubatch", r"\bn_ubatch {1,20}= {1,20}(\d{1,9})"),
)
_SCALE: dict[LogKind, int] = {
    **dict.fromkeys(("available", "paged bytes"), GIB),
    **dict.fromkeys(("self size", "buffer", "cells", "recurrent"), MIB),
}
_COMPILED = tuple((kind, engine, re.compile(pattern)) for kind, engine, pattern in _PATTERNS)
_SETTINGS_COMPILED = tuple((name, re.compile(pattern)) for name, pattern in _SETTINGS)
_WORTH_READING = re.compile(
    "KV|kv_|blocks|[Mm]amba|attention block|padding|concurrency|max seq len|model length|n_|_size|_len"
    "|_tokens|_recurrent|SWAKV"
)
"""What any of the patterns needs: other lines of a long log are passed over quickly."""


@record
class LoggedLine:
    """One line about the cache: what it says, in bytes, tokens and counts; and the types it names."""

    kind: LogKind = static()
    text: str = static()
    numbers: tuple[float, ...]
    types: tuple[str, ...] = static(default=())


@record
class EngineLog:
    """The lines that an engine printed about its cache, and the settings that stand in the log."""

    engine: str | None = static()
    lines: tuple[LoggedLine, ...]
    settings: dict[str, str] = static()

    @property
    def printed_by(self) -> str:
        """The engine that prints such lines.

        Raises:
            BadInput: No line that is understood.
        """
        if self.engine is None:
            raise BadInput("no line about a KV cache is understood", where="--log", way_out=_EXAMPLES)
        return self.engine

    def of(self, *kinds: LogKind) -> tuple[LoggedLine, ...]:
        """Return the lines of these kinds, as they stand in the log."""
        return tuple(line for line in self.lines if line.kind in kinds)

    def number(self, setting: str) -> int | None:
        """Return a setting that is a whole number, None when the log does not say."""
        text = self.settings.get(setting, "")
        return int(text) if text.isascii() and text.isdigit() else None


def read_log(text: str) -> EngineLog:
    """Return what `text` says about the cache; the engine is the one that prints such lines."""
    lines: list[LoggedLine] = []
    settings: dict[str, str] = {}
    engine = None
    for line in text.splitlines():
        cut = line[:MAX_LINE]
        if not _WORTH_READING.search(cut):
            continue
        for name, pattern in _SETTINGS_COMPILED:
            if name not in settings and (match := pattern.search(cut)):
                settings[name] = match[1]
        if len(lines) >= MAX_LINES_KEPT:
            continue
        for kind, printed_by, numbers, types, said in _said(cut):
            engine = engine or printed_by
            lines.append(LoggedLine(kind=kind, text=said, numbers=numbers, types=types))
    return EngineLog(engine=engine, lines=tuple(lines), settings=settings)


def _said(line: str) -> Iterator[tuple[LogKind, str, tuple[float, ...], tuple[str, ...], str]]:
    """Yield what one line says of the cache; several things may stand in one line."""
    for kind, engine, pattern in _COMPILED:
        match = pattern.search(line)
        if match is None:
            continue
        found = [group for group in match.groups() if group is not None]
        numbers = tuple(_number(group) for group in found if _NUMBER.fullmatch(group))
        if any(number > MAX_NUMBER for number in numbers):
            continue
        types = tuple(group for group in found if not _NUMBER.fullmatch(group))
        if kind in _SCALE:
            numbers = (numbers[0] * _SCALE[kind], *numbers[1:])
        yield kind, engine, numbers, types, _printable(match[0])


def _number(text: str) -> float:
    """Return a number: a comma before three digits groups thousands, before others it is the point."""
    if re.fullmatch(r"[0-9]{1,3}(,[0-9]{3})+", text):
        return float(text.replace(",", ""))
    return float(text.replace(",", ".", 1).replace(",", ""))


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)[:200]
