"""What else answers the same questions, run by the Python that `KVROOF_PEERS` names.

pip install aiconfigurator genz-llm hf-mem llm-cal, in an environment of its own. Each is asked through what
it offers to Python and is told the same model and machine; a peer that is missing is left out.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from functools import cache

PYTHON = os.environ.get("KVROOF_PEERS")

LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}
"""The keys of Llama-3.1-8B's config.json that decide cost, for peers that take a config."""

CACHE = {
    "hf-mem": f"""
from hf_mem.safetensors.kv_cache import compute_safetensors_kv_cache_size
config = {LLAMA_8B}
ask = lambda: compute_safetensors_kv_cache_size(config, "BF16", 8192)
assert ask() == 2**30
""",
    "llm-cal": f"""
from llm_cal.architecture.detector import detect
from llm_cal.architecture.formulas.kv_cache import compute_kv_cache_bytes
profile = detect({LLAMA_8B})
ask = lambda: compute_kv_cache_bytes(profile, 8192)
assert ask().value == 2**30
""",
}
"""The KV cache of one sequence of 8,192 tokens, from a config that is already read."""

ESTIMATE = {
    "genz-llm": """
from GenZ import decode_moddeling, prefill_moddeling
same = dict(model="meta-llama/Llama-3.1-8B", batch_size=8, input_tokens=2048, system_name="H100_GPU",
    bits="bf16")
ask = lambda: (prefill_moddeling(**same), decode_moddeling(**same, output_tokens=256))
""",
    "aiconfigurator": """
from aiconfigurator.cli.api import cli_estimate
ask = lambda: cli_estimate(model_path="meta-llama/Meta-Llama-3.1-8B", system_name="h200_sxm", mode="agg",
    backend_name="vllm", isl=2048, osl=256, batch_size=8, tp_size=1)
""",
}
"""TTFT and TPOT of eight requests of 2,048 + 256 tokens."""

STEP = {
    "genz-llm": """
from itertools import count
from GenZ import decode_moddeling
points = count()
def ask():
    point = next(points)
    return decode_moddeling(model="meta-llama/Llama-3.1-70B", batch_size=1 + point % 64,
        input_tokens=500 + 37 * point % 4000, output_tokens=1, system_name="H100_GPU", bits="bf16",
        tensor_parallel=8)
""",
    "aiconfigurator": """
from itertools import count
from aiconfigurator.sdk import config, models, perf_database
from aiconfigurator.sdk.backends.factory import get_backend
from aiconfigurator.sdk.inference_session import InferenceSession
version = perf_database.get_latest_database_version("h200_sxm", "vllm")
database = perf_database.get_database("h200_sxm", "vllm", version)
model = models.get_model("meta-llama/Meta-Llama-3.1-70B", config.ModelConfig(tp_size=8), "vllm")
session = InferenceSession(model, database, get_backend("vllm"))
points = count()
def ask():
    point = next(points)
    asked = config.RuntimeConfig(batch_size=1 + point % 64, isl=500 + 37 * point % 4000, osl=2)
    return session.run_static(asked, "static_gen")
""",
}
"""A decode step of Llama-3.1-70B over eight devices, each time of another batch and length."""

TIMED = """
import json, time
ask()
start, count = time.perf_counter(), 0
while (took := time.perf_counter() - start) < 1 or count == 0:
    ask()
    count += 1
print(json.dumps(took / count))
"""


@cache
def version(package: str) -> str | None:
    """Return the version of a peer that the Python has, None without it."""
    if PYTHON is None:
        return None
    line = f"from importlib.metadata import version; print(version({package!r}))"
    done = subprocess.run([PYTHON, "-c", line], capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def named(package: str) -> str:
    """Return a peer's name with its version, as the table has it."""
    return f"{package} {version(package)}"


def seconds_each(snippet: str) -> float:
    """Return the seconds of one call of `ask()`, over a second of them, in a fresh process of the peer's."""
    assert PYTHON is not None
    done = subprocess.run([PYTHON, "-c", snippet + TIMED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return float(json.loads(done.stdout.strip().splitlines()[-1]))


def ways(snippets: Mapping[str, str]) -> dict[str, Callable[[], float]]:
    """Return a way to time each peer that is there, under its name and version."""
    return {
        named(package): (lambda snippet=snippet: seconds_each(snippet))
        for package, snippet in snippets.items()
        if version(package)
    }
