"""An engine's log beside what kvroof predicts, line by line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from kvroof.ground.errors import BadInput
from kvroof.ground.numeric import largest
from kvroof.ground.units import GIB
from kvroof.memory.engines.llama_cpp import LlamaCpp
from kvroof.memory.engines.logs import EngineLog, LoggedLine
from kvroof.memory.engines.prediction import HALF_DIGIT, ExplainedLine, Prediction, Served, explained
from kvroof.memory.engines.sglang import SGLang
from kvroof.memory.engines.tensorrt_llm import TensorRTLLM
from kvroof.memory.engines.vllm import VLLM
from kvroof.memory.kv import fixed_bytes
from kvroof.spec.precision import parse_kv_format

PRINTED_GB = "GiB (printed GB)"
SWAP_BYTES = 4 * GIB
"""What vLLM's releases before V1 set aside in host memory for each device unless told otherwise."""


def explain_log(served: Served, log: EngineLog) -> tuple[ExplainedLine, ...]:
    """Return the log's figures beside the predicted ones.

    Args:
        served: The model on the engine, with the flags as they are known.
        log: What the engine printed.

    Raises:
        BadInput: A log without a figure that is understood, or of another engine.
        Unsupported: A model whose cache on this engine is not modelled.
    """
    engine = served.engine
    if log.printed_by != engine.name:
        raise BadInput(
            f"the log is {log.engine}'s, not {engine.name}'s",
            where="--log",
            way_out=f"use --engine {log.engine}",
        )
    if isinstance(engine, VLLM):
        lines = tuple(_vllm(served, engine, log))
    elif isinstance(engine, SGLang):
        lines = tuple(_sglang(served, engine, log))
    elif isinstance(engine, LlamaCpp):
        lines = tuple(_llama_cpp(served, engine, log))
    else:
        lines = tuple(_tensorrt_llm(served, log))
    if not lines:
        raise BadInput(
            f"says of the memory ({log.lines[0].text[:60]}), and of nothing that follows from it",
            where="--log",
            way_out="--available SIZE instead of --log says what the rest will be",
        )
    return lines


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
            yield explained(served, line, "tokens", line.numbers[0], pool("block"))
        elif line.kind == "state padding":
            yield explained(served, line, "%", line.numbers[0], pool("padding"), HALF_DIGIT)
        elif line.kind == "padding layers":
            yield explained(served, line, "layers", line.numbers[0], pool("layers"))
        elif line.kind == "blocks":
            yield explained(
                served, line, "blocks", line.numbers[0], figure("num_blocks"), slack("num_blocks"), ranks
            )
        elif line.kind == "host blocks":
            yield explained(
                served, line, "blocks", line.numbers[0], _swapped, notes="of a --swap-space of 4 GiB"
            )
        elif line.kind == "tokens":
            yield _tokens(served, line, figure, slack, ranks)
        elif line.kind == "stored tokens":
            old = "kv_cache_tokens_old"
            yield explained(served, line, "tokens", line.numbers[0], figure(old), slack(old), ranks)
        elif line.kind == "concurrency":
            error = slack("max_concurrency") + HALF_DIGIT
            yield explained(served, line, "x", line.numbers[1], figure("max_concurrency"), error, ranks)
        elif line.kind == "needed":
            yield explained(served, line, "GiB", line.numbers[1], _needed(int(line.numbers[0])), HALF_DIGIT)
        elif line.kind == "longest":
            yield explained(
                served, line, "tokens", line.numbers[0], _longest(size), _longest_slack(served, size)
            )


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
        return explained(served, line, "tokens", line.numbers[0], _nothing)
    logged = line.numbers[0]
    name = min(known, key=lambda pair: abs(pair[1] - logged))[0]
    both = len({value for _, value in known}) > 1
    said = "; ".join(part for part in (names[name] if both else "", ranks) if part)
    return explained(served, line, "tokens", logged, figure(name), slack(name), said)


def _nothing(asked: Served) -> None:
    """Return None: nothing follows."""


def _swapped(asked: Served) -> float:
    """Return the blocks in host memory of releases that swap, at their default."""
    assert isinstance(asked.engine, VLLM)
    return float(asked.engine.pool(asked.model, *asked.stored, asked.tp).num_blocks(SWAP_BYTES))


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


def _sglang(served: Served, engine: SGLang, log: EngineLog) -> Iterator[ExplainedLine]:
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

    def state(part: int, slots: int) -> Prediction:
        """Predict a state's part in all slots, of which one more than is said is for padding."""

        def predict(asked: Served) -> float | None:
            assert isinstance(asked.engine, SGLang)
            parts = asked.engine.state_parts(asked.model, asked.stored[1], asked.tp)
            return (slots + 1) * parts[part] / GIB

        return predict

    for line in log.of("states"):
        for part, logged in enumerate(line.numbers[1:]):
            predict = state(part, int(line.numbers[0]))
            yield explained(served, line, PRINTED_GB, logged, predict, HALF_DIGIT)
    if not log.of("states"):
        for line in log.of("states of no count"):
            for logged in line.numbers:
                yield explained(
                    served, line, PRINTED_GB, logged, _nothing, notes="the log does not say how many"
                )

    def both(full: float, windowed: float) -> Prediction:
        def predict(asked: Served) -> float | None:
            assert isinstance(asked.engine, SGLang)
            rates = asked.engine.rates(asked.model, *asked.stored, asked.tp)
            return (full * rates.full + windowed * rates.windowed) / GIB

        return predict

    two = log.of("two pools")
    pools = () if two else log.of("K and V", "KV")
    for line in two:
        logged, windowed, full = line.numbers
        yield explained(served, line, PRINTED_GB, logged, both(full, windowed), HALF_DIGIT)
    for line in () if two or pools else log.of("all tokens"):
        yield explained(served, line, "tokens", line.numbers[0], tokens)
    for line in pools:
        count = line.numbers[0]
        if served.available_bytes is not None:
            yield explained(served, line, "tokens", count, tokens)
        parts = ("k", "v") if line.kind == "K and V" else ("all",)
        for name, logged in zip(parts, line.numbers[1:], strict=True):
            yield explained(served, line, PRINTED_GB, logged, rate(name, count), HALF_DIGIT)


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

    said = log.of("self size", "cells", "recurrent")
    if (parts := log.of("buffer")) and not log.of("self size", "cells"):
        sizes = sum(line.numbers[0] for line in parts)
        whole_of = replace(parts[0], kind="self size", numbers=(sizes,), text=_together(parts))
        said = (whole_of, *said)
    for line in said:
        if line.types and line.kind in ("self size", "cells"):
            named = parse_kv_format("/".join(line.types), served.model, "--log")
            served = replace(served, kv_format=named)
        logged = line.numbers[0] / 2**20
        if line.kind == "self size":
            note = "" if context is not None else "the log does not say n_ctx: add --tokens"
            digits = HALF_DIGIT * max(len(parts), 1)
            yield explained(served, line, "MiB", logged, whole, digits, note)
        elif line.kind == "cells":
            streams = int(line.numbers[4]) if len(line.numbers) > 4 else 1
            predict = of_layers(int(line.numbers[2]), int(line.numbers[1]) * streams)
            yield explained(served, line, "MiB", logged, predict, HALF_DIGIT)
        else:
            yield explained(served, line, "MiB", logged, _states(int(line.numbers[1])), HALF_DIGIT)


def _together(parts: tuple[LoggedLine, ...]) -> str:
    """Return what is said of a cache that lies in several devices' buffers."""
    return parts[0].text if len(parts) == 1 else f"{parts[0].text} and {len(parts) - 1} more"


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
        yield explained(
            served, line, "tokens", count, tokens(size, served.engine.block_size), served.engine.block_size
        )
