"""Bytes in transformers' real cache objects equal the ledger, after prefill and after decode past the window.

Runs with `pip install -e '.[parity]'` (CPU only) and is left out where transformers is not installed. The
models are the small random ones of `models/counted`, with random weights.

transformers drops a window's oldest token once the newest has been appended, so that between steps it holds
W - 1 tokens, where the ledger holds the W that a step attends to: that one token per windowed layer is
taken off, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kvroof.calibration.evidence.counted import counted_models
from kvroof.catalog.huggingface import read_architecture
from kvroof.ground.dtypes import parse_dtype
from kvroof.memory.kv import kv
from kvroof.spec.precision import KVFormat, StateFormat

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

CONFIGS = {counted.id: counted.config for counted in counted_models()}
NAMES = (
    "llama-A mistral-A qwen3-A gemma3_text-A gpt_oss-A cohere2-A llama4_text-A deepseek_v3-A bloom-A "
    "falcon-A mamba2-A jamba-A falcon_h1-A zamba2-A nemotron_h-A qwen3_next-A lfm2-A gemma3n_text-A"
).split()
PREFILL, DECODED = 12, 40


def tensors(value: Any, seen: set[int]) -> Iterator[Any]:
    """Yield every floating tensor of more than one element that a cache object holds, each once."""
    if id(value) in seen or value is None:
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        if value.is_floating_point() and value.numel() > 1:
            yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors(item, seen)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors(item, seen)
    elif hasattr(value, "__dict__") and not isinstance(
        value, torch.nn.Module | transformers.PretrainedConfig
    ):
        yield from tensors(vars(value), seen)


def held_bytes(cache: Any) -> int:
    """Return the bytes of a cache object's tensors."""
    return sum(t.numel() * t.element_size() for t in tensors(cache, set()))


def expected_bytes(config: dict[str, Any], tokens: int, dtype: str) -> int:
    """Return the ledger's bytes, one token fewer on each window that is full."""
    stored = parse_dtype(dtype)
    model = read_architecture(config, "x", "x").architecture
    kv_format = KVFormat(k=stored, v=stored)
    report = kv(model, tokens=tokens, kv_format=kv_format, state_format=StateFormat(conv=stored))
    full = [k for k in report.kinds if k.window is not None and tokens >= k.window]
    return report.payload_bytes - sum(k.bytes_per_token for k in full)


@pytest.mark.parametrize("name", NAMES)
def test_the_ledger_is_what_the_cache_holds(name: str) -> None:
    config = CONFIGS[name]
    torch.manual_seed(0)
    made = transformers.AutoConfig.for_model(**config)
    model = transformers.AutoModelForCausalLM.from_config(made).float().eval()
    ids = torch.randint(3, 60, (1, DECODED))
    with torch.no_grad():
        out = model(input_ids=ids[:, :PREFILL], use_cache=True)
        key = "past_key_values" if getattr(out, "past_key_values", None) is not None else "cache_params"
        cache = getattr(out, key)
        assert held_bytes(cache) == expected_bytes(config, PREFILL, "fp32")
        for position in range(PREFILL, DECODED):
            step = model(input_ids=ids[:, position : position + 1], use_cache=True, **{key: cache})
            cache = getattr(step, key)
    assert held_bytes(cache) == expected_bytes(config, DECODED, "fp32")
