"""The command that starts an engine as a question was answered: one line to copy for each pool.

Source: vLLM's and SGLang's server arguments; the roles of two pools are those of vLLM's NixlConnector, of
SGLang's `--disaggregation-mode` and of TensorRT-LLM's `cache_transceiver_config`, as their guides have them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

from kvroof.ground.record import record, static
from kvroof.memory.allocators import EngineName, plain_engine
from kvroof.memory.engines.engine import Question
from kvroof.memory.engines.vllm import VLLM
from kvroof.memory.pipeline import STAGE_FLAGS
from kvroof.spec.parallel import Layout

Role: TypeAlias = Literal["both", "prefill", "decode"]
"""What the instances of a pool do."""

STARTS = {
    "vllm": "vllm serve {}",
    "sglang": "python -m sglang.launch_server --model-path {}",
    "tensorrt-llm": "trtllm-serve {}",
    "llama.cpp": "llama-server --model {}.gguf",
}
_NIXL = """--kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"%s"}'"""
_ROLES: dict[tuple[str, str], str] = {
    ("vllm", "prefill"): _NIXL % "kv_producer",
    ("vllm", "decode"): _NIXL % "kv_consumer",
    ("sglang", "prefill"): "--disaggregation-mode prefill",
    ("sglang", "decode"): "--disaggregation-mode decode",
    ("tensorrt-llm", "prefill"): "cache_transceiver_config.backend: DEFAULT",
    ("tensorrt-llm", "decode"): "cache_transceiver_config.backend: DEFAULT",
}
OPTIONS_FILE = "--extra_llm_api_options FILE"
"""Where TensorRT-LLM takes what is no flag from."""
WHOLE_PROMPTS = 8192
"""Tokens of a step where prompts run whole. Longer ones run in parts, but TensorRT-LLM refuses them."""


@record
class Served:
    """What the instances of a pool run: `tokens` of the longest request, `seqs` of one instance at once.

    `step_tokens` bound a step, None where prompts run whole. `weights_dtype` is named where it is not the
    checkpoint's.
    """

    role: Role = static(default="both")
    layout: Layout
    tokens: int
    seqs: int
    step_tokens: int | None = None
    kv_dtype: str = static(default="bf16")
    weights_dtype: str | None = static(default=None)
    utilization: float = 0.9


def start_line(engine: str, model: str, flags: Sequence[str]) -> str:
    """Return one line that starts an engine; flags that go into a file (TensorRT-LLM) are named by it.

    Args:
        engine: The engine's name.
        model: The hub id, or the folder of the checkpoint.
        flags: As the engine's `flags` gives them.
    """
    inline = [flag for flag in flags if not in_file(flag)]
    return " ".join(
        (STARTS[engine].format(model), *inline, *([OPTIONS_FILE] if len(inline) < len(flags) else ()))
    )


def in_file(flag: str) -> bool:
    """Return whether a flag is a line of the options' file."""
    return not flag.startswith("--")


def pool_flags(name: EngineName, served: Served) -> tuple[str, ...]:
    """Return the flags of the instances of a pool."""
    layout = served.layout
    least = served.tokens if name == "tensorrt-llm" else served.seqs
    step = served.step_tokens or max(WHOLE_PROMPTS, least)
    engine = replace(plain_engine(name), max_num_batched_tokens=step)
    if isinstance(engine, VLLM):
        engine = replace(engine, dcp=layout.dcp)
    question = Question(
        tokens=served.tokens,
        seqs=served.seqs,
        utilization=served.utilization,
        kv_dtype=served.kv_dtype,
        tp=layout.tp,
        dp=layout.dp,
        ep=layout.ep,
    )
    flags = [*engine.flags(question)]
    if layout.pp > 1 and name in STAGE_FLAGS:
        flags.append(f"{STAGE_FLAGS[name]} {layout.pp}")
    if served.weights_dtype == "fp8" and name in ("vllm", "sglang"):
        flags.append("--quantization fp8")
    if served.role != "both":
        flags.append(_ROLES[name, served.role])
    return tuple(flags)


def pool_lines(name: EngineName, model: str, served: Served) -> tuple[str, ...]:
    """Return the command of a pool's instances, and after it the lines of the options' file, if any."""
    flags = pool_flags(name, served)
    lines = [start_line(name, model, flags), *(f"# FILE: {flag}" for flag in flags if in_file(flag))]
    if served.weights_dtype is not None and "--quantization fp8" not in flags:
        lines.append(f"# the checkpoint has to hold its weights in {served.weights_dtype}")
    return tuple(lines)
