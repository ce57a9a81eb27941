"""Where a multimodal config keeps its decoder, which family that is, and what decides its head.

The outer class wraps a decoder of another `model_type`; what the class takes for granted where a real
file is silent is listed here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from kvroof.catalog.config import Config

NESTED = ("text_config", "language_config", "llm_config")
"""Where multimodal configs keep their decoder; a thinker keeps it one level deeper."""


class Outer(NamedTuple):
    """What an outer class builds where the file leaves it out: decoder, and whether the head is tied.

    With `forwards`, a decoder that says it is tied decides even where the outer config says otherwise.
    """

    text: str
    tied: bool | None = None
    forwards: bool = False


OUTERS: dict[str, Outer] = {
    "audioflamingo3": Outer("qwen2", False),
    "aya_vision": Outer("cohere2", True),
    "cohere2_vision": Outer("cohere2", True),
    "deepseek_vl": Outer("llama", True),
    "deepseek_vl_hybrid": Outer("llama", True),
    "exaone4_5": Outer("exaone4", False),
    "fuyu": Outer("persimmon", False),
    "gemma3": Outer("gemma3_text", True),
    "gemma3n": Outer("gemma3n_text", True),
    "gemma4": Outer("gemma4_text", True),
    "glm46v": Outer("glm4v_text", False, True),
    "glm4v": Outer("glm4v_text", False, True),
    "glm4v_moe": Outer("glm4v_moe_text", False, True),
    "glm_ocr": Outer("glm_ocr_text", False, True),
    "got_ocr2": Outer("qwen2", True),
    "hunyuan_vl": Outer("hunyuan_v1_dense", True),
    "idefics2": Outer("mistral", False),
    "idefics3": Outer("llama", False),
    "internvl": Outer("qwen2", True),
    "internvl_chat": Outer("internlm2"),
    "kimi_k25": Outer("deepseek_v3", True),
    "kimi_k3": Outer("kimi_linear", False),
    "kimi_vl": Outer("deepseek_v3", False),
    "lfm2_vl": Outer("lfm2", True),
    "lighton_ocr": Outer("qwen3", True),
    "llama4": Outer("llama4_text", False),
    "llava": Outer("llama", False, True),
    "llava_next": Outer("llama", False),
    "llava_next_video": Outer("llama", False, True),
    "llava_onevision": Outer("qwen2", False, True),
    "minimax_m3_vl": Outer("minimax_m3_vl_text", False, True),
    "mistral3": Outer("mistral", True),
    "mllama": Outer("mllama_text_model", False),
    "musicflamingo": Outer("qwen2", False),
    "ovis2": Outer("qwen2", True),
    "paddleocr_vl": Outer("ernie4_5", True, True),
    "paligemma": Outer("gemma", True),
    "qwen2_5_omni_thinker": Outer("qwen2", False),
    "qwen2_5_vl": Outer("qwen2", False, True),
    "qwen2_audio": Outer("qwen2", False),
    "qwen2_vl": Outer("qwen2", False, True),
    "qwen3_5": Outer("qwen3_5_text", False),
    "qwen3_5_moe": Outer("qwen3_5_moe_text", False),
    "qwen3_omni_moe_thinker": Outer("qwen3_omni_moe_text", False),
    "qwen3_vl": Outer("qwen3", False),
    "qwen3_vl_moe": Outer("qwen3_moe", False),
    "shieldgemma2": Outer("gemma3_text", True),
    "smolvlm": Outer("llama", False),
    "step3p7": Outer("step3p5", False),
    "video_llama_3": Outer("qwen2", False, True),
    "video_llava": Outer("llama", False),
    "vipllava": Outer("llama", False),
    "voxtral": Outer("llama", False),
}
"""Outer classes, with the decoder and the tie that transformers 5 takes for granted."""

SAME_AS = {
    "hunyuan_vl_text": "hunyuan_v1_dense",
    "paddleocr_vl_text": "ernie4_5",
    "qwen2_5_omni_text": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen2_vl_text": "qwen2",
    "qwen3_vl_moe_text": "qwen3_moe",
    "qwen3_vl_text": "qwen3",
}
"""Decoders that differ from a known family in rotary positions only."""

THINKERS = {"qwen2_5_omni": "qwen2_5_omni_thinker", "qwen3_omni_moe": "qwen3_omni_moe_thinker"}
"""Models that listen, think and speak; what serves text is the thinker."""

ARCHITECTURES = {
    "Qwen2_5OmniForConditionalGeneration": "qwen2_5_omni",
    "Qwen3OmniMoeForConditionalGeneration": "qwen3_omni_moe",
}
"""The `model_type` of classes whose files may leave it out."""


class Parts(NamedTuple):
    """A config taken apart: the object that holds towers and decoder, the decoder's, and their types."""

    scope: Config
    text: Config
    outer: str
    inner: str


def take_apart(root: Config, families: Collection[str]) -> Parts:
    """Return where the decoder is and which of `families` it is; `inner` may be none of them.

    A nested decoder is its own `model_type`, else what its outer class takes for granted.
    """
    outer = root.text("model_type", "") or _by_architecture(root)
    scope = root.child("thinker_config") if outer in THINKERS else None
    if scope is not None:
        outer = THINKERS[outer]
        for key in ("talker_config", "token2wav_config", "code2wav_config"):
            if root.data.get(key):
                root.fail(key, "a speaking model is not understood", f"count the thinker: --ignore-key {key}")
    else:
        scope = root
    text = next((child for key in NESTED if (child := scope.child(key)) is not None), scope)
    named = text.text("model_type", "") if text is not scope else ""
    granted = OUTERS[outer].text if outer in OUTERS else ""
    candidates = (named, SAME_AS.get(named, ""), outer if not named else "", granted if not named else "")
    found = next((name for name in candidates if name in families), "")
    if not found and outer in families:
        found = outer
    return Parts(scope, text, outer, found or named or outer)


def _by_architecture(root: Config) -> str:
    """Return the `model_type` that the named class has, where the file leaves it out."""
    classes = root.array("architectures", str) or []
    return next((ARCHITECTURES[name] for name in classes if name in ARCHITECTURES), "")


def is_tied(parts: Parts, decoder: bool) -> bool:
    """Return whether the head reads the embedding; `decoder` is what the decoder's config says alone.

    Files that transformers 4 wrote mean the decoder's own tie; since transformers 5 the outer config
    decides, and some classes pass a decoder's tie on.
    """
    outer, key = OUTERS.get(parts.outer), "tie_word_embeddings"
    if outer is None or outer.tied is None or parts.text is parts.scope:
        return decoder
    version = (
        parts.scope.data.get("transformers_version") if parts.scope.has("transformers_version") else None
    )
    old = isinstance(version, str) and version.startswith(("3.", "4."))
    said = parts.scope.boolean(key, decoder if old else outer.tied)
    passed_on = parts.text.has(key) and decoder and (old or outer.forwards)
    return said or passed_on


LLAMA_7B = {
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32_000,
}
MISTRAL_7B = {**LLAMA_7B, "intermediate_size": 14_336, "num_key_value_heads": 8}
_LLAVAS = ("llava", "llava_next", "llava_next_video", "video_llava", "vipllava", "idefics2")


def filled(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config with what the few known files leave to their decoder's class written out.

    LLaVA on Vicuna or Mistral 7B leaves out every size, Pixtral 12B the heads, Gemma 3 4B its heads.
    """
    outer, text = data.get("model_type"), data.get("text_config")
    if not isinstance(text, dict) or not isinstance(outer, str):
        return data
    kind, defaults = text.get("model_type"), {}
    empty = not {"hidden_size", "num_hidden_layers", "num_attention_heads"} & text.keys()
    headless = not {"num_attention_heads", "num_key_value_heads"} & text.keys()
    if outer in _LLAVAS and empty:
        defaults = {"llama": LLAMA_7B, "mistral": MISTRAL_7B}.get(str(kind or "llama"), {})
    elif outer == "llava" and kind == "mistral" and text.get("hidden_size") == 5120:
        defaults = {"num_attention_heads": 32}
    elif outer == "gemma3" and headless and text.get("hidden_size") == 2560:
        defaults = {"num_attention_heads": 8, "num_key_value_heads": 4}
    return {**data, "text_config": {**defaults, **text}} if defaults else data
