"""An engine's log beside what kvroof predicts, line by line, with the reason of each difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeAlias

from kvroof.ground.errors import BadInput, KvroofError
from kvroof.ground.numeric import largest
from kvroof.ground.record import record, static
from kvroof.ground.units import GIB
from kvroof.memory.allocators import AnyEngine
from kvroof.memory.engines.llama_cpp import LlamaCpp
from kvroof.memory.engines.logs import EngineLog, LoggedLine
from kvroof.memory.engines.sglang import SGLang
from kvroof.memory.engines.tensorrt_llm import TensorRTLLM
from kvroof.memory.engines.vllm import VLLM
from kvroof.memory.kv import fixed_bytes
from kvroof.spec.architecture import Architecture
from kvroof.spec.precision import KVFormat, StateFormat, parse_kv_format

CLOSE = 0.02
"""Relative difference within which a line is taken to be explained."""
HALF_DIGIT = 0.005
"""Half of the last of two printed decimals."""


@record
class ExplainedLine:
    """One figure of the log: predicted and logged in `unit`, the difference in %, and the reason."""

    line: str = static()
    unit: str = static()
    predicted: float | None
    logged: float
    difference_pct: float | None
    reason: str = static()


@record
class Served:
    """A model on an engine: what a prediction depends on.

    `available_bytes` and `context` (llama.cpp's) are asked when the log does not say them.
    """

    model: Architecture
    engine: AnyEngine
    kv_format: KVFormat
    state_format: StateFormat
    tp: int = 1
    available_bytes: int | None = None
    context: int | None = None

    @property
    def stored(self) -> tuple[KVFormat, StateFormat]:
        """How the engine stores it."""
        return self.engine.formats(self.model, self.kv_format, self.state_format)


Prediction: TypeAlias = Callable[[Served], float | None]


def explain_log(served: Served, log: EngineLog) -> tuple[ExplainedLine, ...]:
    """Return the log's figures beside the predicted ones.

    Args:
        served: The model on the engine, with the flags as they are known.
        log: What the engine printed.

    Raises:
        BadInput: A log without a line that is understood, or of another engine.
        Unsupported: A model whose cache on this engine is not modelled.
    """
    if not log.lines:
        raise BadInput(
            "no line about a KV cache is understood",
            where="--log",
            way_out='lines such as "Available KV cache memory: 5.38 GiB" or "KV self size = ..."',
        )
    if log.engine != served.engine.name:
        raise BadInput(
            f"the log is {log.engine}'s, not {served.engine.name}'s",
            where="--log",
            way_out=f"use --engine {log.engine}",
        )
    engine = served.engine
    if isinstance(engine, VLLM):
        return tuple(_vllm(served, engine, log))
    if isinstance(engine, SGLang):
        return tuple(_sglang(served, log))
    if isinstance(engine, LlamaCpp):
        return tuple(_llama_cpp(served, engine, log))
    return tuple(_tensorrt_llm(served, log))


def _line(
    served: Served,
    line: LoggedLine,
    unit: str,
    logged: float,
    predict: Prediction,
    slack: float = 0.0,
    notes: str = "",
) -> ExplainedLine:
    """Return one figure explained: equal, within the digits printed, or what else would give it.

    `slack` is how far the prediction moves with the last printed digit of what it is made from.
    """
    predicted = predict(served)
    if predicted is None:
        return ExplainedLine(
            line=line.text, unit=unit, predicted=None, logged=logged, difference_pct=None,
            reason=notes or "not predicted: the log does not say from what (--available SIZE)",
        )  # fmt: skip
    difference = 100 * (predicted / logged - 1) if logged else None
    if abs(predicted - logged) <= slack + 1e-9:
        reason = "exact" if predicted == logged else "equal within the digits printed"
    else:
        reason = _other(served, logged, predict)
        if not reason and difference is not None and abs(difference) <= 100 * CLOSE:
            reason = f"within {100 * CLOSE:.0f} %"
        reason = reason or "not explained: check --kv-dtype, --tp and the engine's flags"
    return ExplainedLine(
        line=line.text,
        unit=unit,
        predicted=predicted,
        logged=logged,
        difference_pct=difference,
        reason=f"{reason}; {notes}" if notes else reason,
    )


def _other(served: Served, logged: float, predict: Prediction) -> str:
    """Return which single other choice predicts what was logged, "" when none does."""
    for words, other in _choices(served):
        try:
            predicted = predict(other)
        except (KvroofError, ArithmeticError):
            continue
        if predicted is not None and logged and abs(predicted / logged - 1) <= CLOSE / 4:
            return f"as with {words}"
    return ""


def _choices(served: Served) -> Iterator[tuple[str, Served]]:
    """Yield what else might have been the case, each with what it changes."""
    for name in ("bf16", "fp8", "q8_0", "q4_0"):
        other = parse_kv_format(name, served.model)
        if other.name != served.kv_format.name:
            yield f"--kv-dtype {name}", replace(served, kv_format=other)
    for tp in (1, 2, 4, 8):
        if tp != served.tp:
            yield f"--tp {tp}", replace(served, tp=tp)
    engine = served.engine
    if isinstance(engine, VLLM):
        yield "asynchronous scheduling", replace(served, engine=replace(engine, batches_in_flight=2))
        without = replace(engine, prefix_caching=not engine.prefix_caching)
        yield "prefix caching the other way", replace(served, engine=without)
        yield "one drafted token per step", replace(served, engine=replace(engine, spec_tokens=1))
    elif isinstance(engine, SGLang):
        yield (
            "an older build, which leaves index keys out",
            replace(served, engine=replace(engine, counts_index=False)),
        )
    elif isinstance(engine, LlamaCpp):
        yield (
            "windowed layers kept whole (--swa-full)",
            replace(served, engine=replace(engine, swa_full=True)),
        )
        yield "latents beside a transposed copy", replace(served, engine=replace(engine, mla="transposed"))
        yield "keys and values of every head", replace(served, engine=replace(engine, mla="expanded"))


def _vllm(served: Served, engine: VLLM, log: EngineLog) -> Iterator[ExplainedLine]:
    pools = [line.numbers[0] for line in log.of("available")]
    size = min(pools) if pools else served.available_bytes
    ranks = "the fewest blocks over the ranks decide" if len(set(pools)) > 1 else ""
    limits = [line.numbers[0] for line in log.of("concurrency")]
    limit = int(limits[0]) if limits else engine.max_model_len or log.number("max_model_len")
    served = replace(served, engine=replace(engine, max_model_len=limit))

    def figure(name: str, add: float = 0.0) -> Prediction:
        def predict(asked: Served) -> float | None:
            if size is None:
                return None
            figures = asked.engine.figures(asked.model, round(size + add * GIB), *asked.stored, asked.tp)
            value = getattr(figures, name)
            return None if value is None else float(value)

        return predict

    def slack(name: str) -> float:
        if not pools:
            return 0.0
        low, high = (figure(name, add)(served) for add in (-HALF_DIGIT, HALF_DIGIT))
        return 0.0 if low is None or high is None else high - low

    def pool(what: str) -> Prediction:
        def predict(asked: Served) -> float | None:
            assert isinstance(asked.engine, VLLM)
            made = asked.engine.pool(asked.model, *asked.stored, asked.tp)
            if what == "padding":
                return 100 * made.padded_bytes / made.state_bytes if made.state_bytes else 0.0
            return float(made.block_size if what == "block" else made.padding_layers)

        return predict

    for line in log.lines:
        if line.kind == "block size":
            yield _line(served, line, "tokens", line.numbers[0], pool("block"))
        elif line.kind == "state padding":
            yield _line(served, line, "%", line.numbers[0], pool("padding"), HALF_DIGIT)
        elif line.kind == "padding layers":
            yield _line(served, line, "layers", line.numbers[0], pool("layers"))
        elif line.kind == "blocks":
            yield _line(
                served, line, "blocks", line.numbers[0], figure("num_blocks"), slack("num_blocks"), ranks
            )
        elif line.kind == "tokens":
            yield _tokens(served, line, figure, slack, ranks)
        elif line.kind == "concurrency":
            error = slack("max_concurrency") + HALF_DIGIT
            yield _line(served, line, "x", line.numbers[1], figure("max_concurrency"), error, ranks)
        elif line.kind == "needed":
            yield _line(served, line, "GiB", line.numbers[1], _needed(int(line.numbers[0])), HALF_DIGIT)
        elif line.kind == "longest":
            yield _line(served, line, "tokens", line.numbers[0], _longest(size), _longest_slack(served, size))


def _tokens(
    served: Served,
    line: LoggedLine,
    figure: Callable[..., Prediction],
    slack: Callable[[str], float],
    ranks: str,
) -> ExplainedLine:
    """Return the token count explained by whichever of the two ways of counting is nearer."""
    names = {
        "kv_cache_tokens": "counted as max_concurrency x max_model_len (since about v0.21)",
        "kv_cache_tokens_old": "counted as blocks per group x smallest block (up to v0.20)",
    }
    found = [(name, figure(name)(served)) for name in names]
    known = [(name, value) for name, value in found if value is not None]
    if not known:
        return _line(served, line, "tokens", line.numbers[0], lambda _: None)
    logged = line.numbers[0]
    name = min(known, key=lambda pair: abs(pair[1] - logged))[0]
    both = len({value for _, value in known}) > 1
    said = "; ".join(part for part in (names[name] if both else "", ranks) if part)
    return _line(served, line, "tokens", logged, figure(name), slack(name), said)


def _needed(tokens: int) -> Prediction:
    def predict(asked: Served) -> float | None:
        assert isinstance(asked.engine, VLLM)
        pool = asked.engine.pool(asked.model, *asked.stored, asked.tp)
        return pool.request_blocks(tokens) * pool.block_bytes / GIB

    return predict


def _longest(size: float | None) -> Prediction:
    """Return a prediction of the longest request that the pool holds, an exact inverse."""

    def predict(asked: Served) -> float | None:
        if size is None:
            return None
        assert isinstance(asked.engine, VLLM)
        pool = asked.engine.pool(asked.model, *asked.stored, asked.tp)
        return float(largest(lambda n: pool.request_blocks(n) * pool.block_bytes <= size, 2**40 - 1))

    return predict


def _longest_slack(served: Served, size: float | None) -> float:
    if size is None:
        return 0.0
    low, high = (_longest(size + add * GIB)(served) for add in (-HALF_DIGIT, HALF_DIGIT))
    return 0.0 if low is None or high is None else high - low


def _sglang(served: Served, log: EngineLog) -> Iterator[ExplainedLine]:
    def rate(part: str, tokens: float) -> Prediction:
        def predict(asked: Served) -> float | None:
            assert isinstance(asked.engine, SGLang)
            rates = asked.engine.rates(asked.model, *asked.stored, asked.tp)
            whole = rates.k + rates.v + (rates.index if asked.engine.counts_index else 0)
            return tokens * {"k": rates.k, "v": rates.v, "all": whole}[part] / GIB

        return predict

    def tokens(asked: Served) -> float | None:
        if asked.available_bytes is None:
            return None
        figures = asked.engine.figures(asked.model, asked.available_bytes, *asked.stored, asked.tp)
        return float(figures.kv_cache_tokens or 0)

    for line in log.of("K and V", "KV"):
        count = line.numbers[0]
        if served.available_bytes is not None:
            yield _line(served, line, "tokens", count, tokens)
        parts = ("k", "v") if line.kind == "K and V" else ("all",)
        for part, logged in zip(parts, line.numbers[1:], strict=True):
            yield _line(served, line, "GiB (printed GB)", logged, rate(part, count), HALF_DIGIT)


def _llama_cpp(served: Served, engine: LlamaCpp, log: EngineLog) -> Iterator[ExplainedLine]:
    seqs, context = log.number("seqs") or 1, log.number("context") or served.context
    engine = replace(engine, max_num_batched_tokens=log.number("ubatch") or engine.max_num_batched_tokens)
    served = replace(served, engine=engine)

    def buffers(asked: Served, cells: int) -> tuple[tuple[int, int, int], ...]:
        assert isinstance(asked.engine, LlamaCpp)
        return asked.engine.buffers(asked.model, cells, seqs, asked.stored[0])

    def of_layers(layers: int, cells: int) -> Prediction:
        """Predict the bytes of the buffer that holds so many layers, from the cells it is said to have."""

        def predict(asked: Served) -> float | None:
            found = [size * cells / held for size, held, count in buffers(asked, cells) if count == layers]
            return found[0] / 2**20 if found and cells else None

        return predict

    def whole(asked: Served) -> float | None:
        if context is None:
            return None
        return sum(size for size, *_ in buffers(asked, context)) / 2**20

    for line in log.of("self size", "cells", "recurrent"):
        if line.types and line.kind in ("self size", "cells"):
            named = parse_kv_format("/".join(line.types), served.model, "--log")
            served = replace(served, kv_format=named)
        logged = line.numbers[0] / 2**20
        if line.kind == "self size":
            note = "" if context is not None else "the log does not say n_ctx: add --tokens"
            yield _line(served, line, "MiB", logged, whole, HALF_DIGIT, note)
        elif line.kind == "cells":
            streams = int(line.numbers[4]) if len(line.numbers) > 4 else 1
            predict = of_layers(int(line.numbers[2]), int(line.numbers[1]) * streams)
            yield _line(served, line, "MiB", logged, predict, HALF_DIGIT)
        else:
            yield _line(served, line, "MiB", logged, _states(int(line.numbers[1])), HALF_DIGIT)


def _states(slots: int) -> Prediction:
    def predict(asked: Served) -> float | None:
        return slots * fixed_bytes(asked.model, asked.stored[1]) / 2**20

    return predict


def _tensorrt_llm(served: Served, log: EngineLog) -> Iterator[ExplainedLine]:
    def tokens(size: float | None, block: int) -> Prediction:
        def predict(asked: Served) -> float | None:
            if size is None:
                return None
            assert isinstance(asked.engine, TensorRTLLM)
            engine = replace(asked.engine, block_size=block)
            return float(
                engine.figures(asked.model, round(size), *asked.stored, asked.tp).kv_cache_tokens or 0
            )

        return predict

    known = log.of("paged bytes")
    size = known[0].numbers[0] if known else served.available_bytes
    for line in log.of("paged bytes", "paged tokens"):
        count = line.numbers[-1]
        yield _line(
            served, line, "tokens", count, tokens(size, served.engine.block_size), served.engine.block_size
        )
