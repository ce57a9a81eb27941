"""Result files of serving benchmarks, under the names that a points file has.

Read as they are: `vllm bench serve --save-result` (JSON), SGLang's `bench_serving` (JSON lines) and
genai-perf's `profile_export_genai_perf.json`. Lengths are the means over the completed requests. What they
do not know, the machine and the layout, comes from the command line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

ALIASES = {
    "id": "name",
    "hardware": "hw",
    "gpu": "hw",
    "model_id": "model",
    "engine": "framework",
    "tensor_parallel_size": "tp",
    "pipeline_parallel_size": "pp",
    "data_parallel_size": "dp",
    "expert_parallel_size": "ep",
    "input_len": "isl",
    "random_input_len": "isl",
    "output_len": "osl",
    "random_output_len": "osl",
    "max_concurrency": "concurrency",
    "mean_ttft_ms": "ttft_ms",
    "mean_tpot_ms": "tpot_ms",
    "kv_cache_dtype": "kv_dtype",
}
"""Other names of a points file's columns."""
ENGINES = ("vllm", "sglang", "tensorrt-llm", "trtllm")
"""Values of `backend` that name an engine; others name the client's protocol."""
MOST = 10**15
"""What no run counts; beyond it a file is wrong."""
TO_MS = {"ms": 1.0, "us": 1e-3, "ns": 1e-6, "s": 1e3, "sec": 1e3}


def as_columns(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row or a benchmark's result with the columns of a points file."""
    found = {ALIASES.get(key, key): value for key, value in row.items()}
    if row.get("backend") in ENGINES and "framework" not in found:
        found["framework"] = row["backend"]
    if "time_to_first_token" in row:
        found |= _genai_perf(row)
    if isinstance(row.get("completed"), int) and _counted(row["completed"]):
        found |= _means(row, row["completed"])
    return found


def _means(row: Mapping[str, Any], completed: int) -> dict[str, Any]:
    """Return the mean lengths and the waves of a run of vLLM's or SGLang's benchmark."""
    lengths = {"isl": "total_input_tokens", "osl": "total_output_tokens"}
    found = {
        name: max(round(row[total] / completed), 1)
        for name, total in lengths.items()
        if _counted(row.get(total))
    }
    slots = row.get("max_concurrency")
    if isinstance(slots, int) and _counted(slots):
        found["waves"] = max(completed / slots, 1)
    return found


def _counted(value: Any) -> bool:
    """Return whether a value is a positive number that a run can have counted or timed."""
    return isinstance(value, int | float) and 0 < value < MOST


def _genai_perf(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what genai-perf reports: statistics with an average and a unit, and its own options."""
    times = {"time_to_first_token": "ttft_ms", "inter_token_latency": "tpot_ms"}
    lengths = {"input_sequence_length": "isl", "output_sequence_length": "osl"}
    found: dict[str, Any] = {}
    for name, column in times.items():
        stat = row.get(name)
        if isinstance(stat, Mapping) and _counted(stat.get("avg")):
            found[column] = stat["avg"] * TO_MS.get(str(stat.get("unit", "ms")), 1.0)
    for name, column in lengths.items():
        stat = row.get(name)
        if isinstance(stat, Mapping) and _counted(stat.get("avg")):
            found[column] = max(round(stat["avg"]), 1)
    options = dict(_leaves(row.get("input_config")))
    models = options.get("model_names") or options.get("model")
    found["concurrency"] = options.get("concurrency")
    found["model"] = models[0] if isinstance(models, list) and models else models
    return {key: value for key, value in found.items() if value is not None}


def _leaves(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the options inside nested tables, outer ones last so that they win."""
    if isinstance(value, Mapping):
        for inner in value.values():
            if isinstance(inner, Mapping):
                yield from _leaves(inner)
        for key, inner in value.items():
            if not isinstance(inner, Mapping):
                yield str(key), inner
