"""One figure of an engine's log beside its prediction, with the reason of the difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeAlias

from kvroof.ground.errors import KvroofError
from kvroof.ground.record import record, static
from kvroof.memory.allocators import AnyEngine
from kvroof.memory.engines.llama_cpp import LlamaCpp
from kvroof.memory.engines.logs import LoggedLine
from kvroof.memory.engines.sglang import SGLang
from kvroof.memory.engines.vllm import VLLM
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


def explained(
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
