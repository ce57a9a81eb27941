"""Which family a `model_type` belongs to. To add one, declare it and name it here."""

from __future__ import annotations

from kvroof.catalog.families import dense, moe
from kvroof.catalog.families.family import Decoder, Family, build

FAMILIES: dict[str, Family] = {
    "llama": dense.LLAMA,
    "mistral": dense.MISTRAL,
    "qwen2": dense.QWEN2,
    "qwen3": dense.QWEN3,
    "gemma3": dense.GEMMA3,
    "gemma3_text": dense.GEMMA3,
    "falcon": dense.FALCON,
    "mixtral": moe.MIXTRAL,
    "gpt_oss": moe.GPT_OSS,
    "qwen3_moe": moe.QWEN3_MOE,
    "deepseek_v2": moe.DEEPSEEK,
    "deepseek_v3": moe.DEEPSEEK,
}

__all__ = ["FAMILIES", "Decoder", "Family", "build"]
