"""Engines' log lines against what is predicted of the model and the memory that the engine had.

`hardware/measured/engine_logs.json` restates public log lines with their sources. Where the model's config
is public it is named; else the log says its shape (`layers`, `kv_heads`, `head_dim`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import msgspec

from kvroof.calibration.evidence.evidence import Case, Evidence, Refused
from kvroof.calibration.evidence.shapes import config_of
from kvroof.catalog.huggingface import read_architecture
from kvroof.catalog.models import load_model
from kvroof.catalog.names import data_folder
from kvroof.ground.errors import KvroofError
from kvroof.ground.units import GIB, MIB
from kvroof.memory.engines.engine import Figures
from kvroof.memory.engines.llama_cpp import LlamaCpp
from kvroof.memory.engines.pool import Pool
from kvroof.memory.engines.sglang import SGLang
from kvroof.memory.engines.vllm import VLLM
from kvroof.spec.architecture import Architecture
from kvroof.spec.precision import HF_STATE, parse_kv_format

WHY = {
    "vllm-r1distill-qwen14b-tp2": (
        "8.69 GiB is the log of one of two ranks; the tokens are the fewest over both, of 7.46 GiB"
    ),
}


class LoggedFigure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One log line, with what it says of the memory and of the options; sizes in the log's own units.

    `figure` names what `logged` is. `inferred` marks a shape that whoever collected the line worked out.
    """

    id: str
    engine: str
    model: str | None
    source: str
    quoted: str
    inferred: bool
    shape: dict[str, Any]
    kv_dtype: str
    figure: str
    logged: float | list[int]
    available_gib: float | None = None
    available_bytes: int | None = None
    tp: int = 1
    block_size: int | None = None
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    spec_tokens: int | None = None
    mtp_layers: int | None = None
    needed_for: int | None = None
    part: str | None = None
    tokens: int | None = None
    n_ctx: int | None = None
    slots: int = 1
    swa_full: bool = False
    mla: Literal["latent", "transposed", "expanded"] = "latent"
    tokens_old: int | None = None
    tokens_new: int | None = None
    blocks: int | None = None
    bytes_per_block: int | None = None
    block_size_logged: int | None = None
    concurrency: float | None = None
    longest: int | None = None
    needed_gib: float | None = None
    padding_pct: float | None = None
    swa_mib: float | None = None
    states_mib: float | None = None


@cache
def engine_logs() -> tuple[LoggedFigure, ...]:
    """Return the log lines that are built in."""
    path = data_folder("hardware") / "measured" / "engine_logs.json"
    return msgspec.json.decode(path.read_bytes(), type=tuple[LoggedFigure, ...])


def engine_log_evidence() -> Evidence:
    """Return every built-in log line with its error."""
    cases, refused = [], []
    for log in engine_logs():
        try:
            predicted = PREDICT[log.figure](log)
        except KvroofError as error:
            refused.append(Refused(name=log.id, why=error.reason))
            continue
        cases.append(
            Case(
                name=log.id,
                known=f"{_shown(log.logged)} {log.figure}",
                predicted=_shown(predicted),
                error=off(log, predicted),
                why=WHY.get(log.id, ""),
            )
        )
    inferred = sum(log.inferred for log in engine_logs())
    return Evidence(
        kind="engine logs",
        against="public logs of vLLM, SGLang and llama.cpp: blocks, tokens, buffers of the memory they name",
        cases=tuple(cases),
        refused=tuple(refused),
        notes=(
            f"the shape of {inferred} of them was inferred by who collected them",
            "most logs round the memory they start from to two decimals, so that few can be equal",
        ),
    )


def off(log: LoggedFigure, predicted: float | list[int]) -> float:
    """Return the predicted figure over the logged one, less 1; a list is right or it is not."""
    if isinstance(log.logged, list) or isinstance(predicted, list):
        return 0.0 if predicted == log.logged else 1.0
    return predicted / log.logged - 1


@cache
def _catalog(name: str) -> Architecture:
    return load_model(name)


def _shown(figure: float | list[int]) -> str:
    return ", ".join(map(str, figure)) if isinstance(figure, list) else f"{figure:,.8g}"


def model_of(log: LoggedFigure) -> Architecture:
    """Return the log's model: of the catalog, or of the shape that the log tells."""
    if "catalog" in log.shape:
        return _catalog(log.shape["catalog"])
    config = config_of(log.shape)
    return read_architecture(config, log.id, log.id).architecture


def vllm(log: LoggedFigure) -> VLLM:
    """Return vLLM with the options that the log was started with."""
    said = {name: getattr(log, name) for name in _VLLM_OPTIONS}
    return VLLM(**{name: value for name, value in said.items() if value is not None})


_VLLM_OPTIONS = ("block_size", "max_model_len", "max_num_batched_tokens", "spec_tokens", "mtp_layers")


def pool(log: LoggedFigure) -> Pool:
    """Return the pool of pages that vLLM makes for the log's model."""
    model, engine = model_of(log), vllm(log)
    formats = engine.formats(model, parse_kv_format(log.kv_dtype, model), HF_STATE)
    return engine.pool(model, *formats, log.tp)


def available_bytes(log: LoggedFigure, add_gib: float = 0.0) -> int:
    """Return the memory that the log leaves to the cache, moved within its printed decimals by `add_gib`."""
    if log.available_bytes is not None:
        return log.available_bytes
    assert log.available_gib is not None, log.id
    return round((log.available_gib + add_gib) * GIB)


def engine_figures(log: LoggedFigure, add_gib: float = 0.0) -> Figures:
    """Return what vLLM would print of that memory."""
    model, engine = model_of(log), vllm(log)
    formats = engine.formats(model, parse_kv_format(log.kv_dtype, model), HF_STATE)
    return engine.figures(model, available_bytes(log, add_gib), *formats, log.tp)


def tokens(log: LoggedFigure, add_gib: float = 0.0) -> int:
    """Return the token count as releases of either kind report it, whichever is nearer to the logged one."""
    assert not isinstance(log.logged, list), log.id
    made, logged = engine_figures(log, add_gib), log.logged
    counts = [n for n in (made.kv_cache_tokens, made.kv_cache_tokens_old) if n is not None]
    return min(counts, key=lambda n: abs(n - logged))


def buffers_mib(log: LoggedFigure) -> list[float]:
    """Return the sizes of llama.cpp's cache buffers."""
    assert log.n_ctx is not None, log.id
    model, engine = model_of(log), LlamaCpp(swa_full=log.swa_full, mla=log.mla)
    kv_format = parse_kv_format(log.kv_dtype, model)
    return [size / MIB for size, *_ in engine.buffers(model, log.n_ctx, log.slots, kv_format)]


def sglang_gib(log: LoggedFigure) -> float:
    """Return what SGLang prints as GB, in GiB: of the keys where the log shows K and V apart, else of all."""
    assert log.tokens is not None, log.id
    model, engine = model_of(log), SGLang()
    formats = engine.formats(model, parse_kv_format(log.kv_dtype, model), HF_STATE)
    rates = engine.rates(model, *formats, log.tp)
    rate = rates.k if log.part == "K" else rates.k + rates.v + rates.index
    return log.tokens * rate / GIB


def needed_gib(log: LoggedFigure) -> float:
    """Return the memory that vLLM asks for a request of `needed_for` tokens."""
    assert log.needed_for is not None, log.id
    made = pool(log)
    return made.request_blocks(log.needed_for) * made.block_bytes / GIB


PREDICT: dict[str, Callable[[LoggedFigure], Any]] = {
    "tokens": tokens,
    "blocks": lambda log: engine_figures(log).num_blocks,
    "block size": lambda log: pool(log).block_size,
    "blocks of layers": lambda log: sorted({group.block_size for group in pool(log).groups}),
    "bytes per block": lambda log: pool(log).block_bytes,
    "needed GiB": needed_gib,
    "SGLang GB": sglang_gib,
    "llama.cpp MiB": lambda log: sum(buffers_mib(log)),
}
"""What is predicted of each figure that a log prints."""
