"""Models that put a known encoder in front of a decoder: what stands between them is the class's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from kvroof.catalog.config import Config
from kvroof.catalog.towers.counting import conv, linear, mlp, norm
from kvroof.catalog.towers.encoders import completed, encoder, sam
from kvroof.spec.architecture import Tower

Projector: TypeAlias = Callable[[Config, Config, int], int]
"""Reads (the whole config, the tower's, the decoder's width) and returns a number of parameters."""

CLIP_336 = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "image_size": 336,
    "patch_size": 14,
}
SIGLIP_384 = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 26,
    "image_size": 384,
    "patch_size": 14,
}


@dataclass(frozen=True, kw_only=True)
class Plugged:
    """An encoder and a projector; `kind` and `own` are what the class builds where the file is silent."""

    kind: str
    projector: Projector
    own: Mapping[str, int] = field(default_factory=dict)
    towers: int = 1

    def __call__(self, root: Config, hidden: int) -> tuple[Tower, ...]:
        """Return the tower with its projector, none where the file describes none."""
        vision = root.child("vision_config")
        if vision is None:
            return ()
        name, params = encoder(vision, self.kind, self.own)
        seen = completed(vision, {"hidden_size": _width(name), **self.own})
        return (Tower(name=name, params=self.towers * params + self.projector(root, seen, hidden)),)


def _width(kind: str) -> int:
    """Return the width that an encoder's class has where the file leaves it out."""
    wide = {"pixtral": 1024, "internvl_vision": 1024}
    return 1152 if kind.startswith(("idefics3", "smolvlm")) else wide.get(kind, 768)


def _features(root: Config) -> int:
    """Return how many of the encoder's layers are concatenated."""
    named = root.data.get("vision_feature_layer") if root.has("vision_feature_layer") else None
    return max(1, len(named)) if isinstance(named, list) else 1


def two_layers(root: Config, vision: Config, hidden: int) -> int:
    """Return LLaVA's projector: two linear layers, with biases unless the config says otherwise."""
    bias = root.boolean("multimodal_projector_bias", True)
    return mlp(vision.integer("hidden_size") * _features(root), hidden, hidden, bias)


def with_newline(root: Config, vision: Config, hidden: int) -> int:
    """Return LLaVA's projector and the learned end of an image row."""
    return two_layers(root, vision, hidden) + hidden


def vip_llava(root: Config, vision: Config, hidden: int) -> int:
    """Return ViP-LLaVA's projector: a norm over five concatenated layers, then two linear ones."""
    read = vision.integer("hidden_size") * (5 if "vision_feature_layer" not in root.data else _features(root))
    return norm(read) + mlp(read, hidden, hidden)


def paligemma(root: Config, vision: Config, hidden: int) -> int:
    """Return PaliGemma's projector, one linear layer."""
    out = root.integer("projection_dim", vision.integer("projection_dim", 2048))
    if vision.integer("projection_dim", out) != out:
        root.fail("projection_dim", f"{out} is not the {vision.integer('projection_dim')} of vision_config")
    return linear(vision.integer("hidden_size"), out)


def gemma3(root: Config, vision: Config, hidden: int) -> int:
    """Return Gemma 3's projector: a norm and one matrix."""
    return vision.integer("hidden_size") * (hidden + 1)


def mistral3(root: Config, vision: Config, hidden: int) -> int:
    """Return Mistral 3's projector: a norm, a merge of neighbouring patches, two linear layers."""
    h, merge = vision.integer("hidden_size"), root.integer("spatial_merge_size", 2)
    bias = root.boolean("multimodal_projector_bias", False)
    return h + h * merge**2 * h + mlp(h * _features(root), hidden, hidden, bias)


def internvl(root: Config, vision: Config, hidden: int) -> int:
    """Return InternVL's projector: a norm over shuffled pixels and two linear layers."""
    ratio = root.optional_number("downsample_ratio")
    ratio = 0.5 if ratio is None else ratio
    if not 1 / 64 <= ratio <= 1 or (1 / ratio) % 1:
        root.fail("downsample_ratio", f"{ratio} is not one over a whole number")
    fold = int(1 / ratio)
    read = vision.integer("hidden_size") * fold**2
    return norm(read) + mlp(read, hidden, hidden)


def idefics2(root: Config, vision: Config, hidden: int) -> int:
    """Return Idefics 2's connector: a gated MLP and a perceiver that resamples."""
    text, perceiver = root.child("text_config"), root.child("perceiver_config")
    if text is None:
        root.fail("text_config", "missing, and it decides the connector's size")
    read = perceiver if perceiver is not None else Config({}, root.where, root.path)
    heads, width = read.integer("resampler_n_heads", 16), read.integer("resampler_head_dim", 96)
    narrow = read.integer("num_key_value_heads", 4) * width
    one = 2 * hidden * (heads * width + narrow) + mlp(hidden, 4 * hidden, hidden, False, True) + 3 * hidden
    resampler = read.integer("resampler_n_latents", 64) * hidden + hidden
    resampler += read.integer("resampler_depth", 3, maximum=10_000) * one
    inner = text.integer("intermediate_size")
    return mlp(vision.integer("hidden_size"), inner, hidden, False, True) + resampler


def idefics3(root: Config, vision: Config, hidden: int) -> int:
    """Return the connector of Idefics 3 and SmolVLM: shuffled pixels through one matrix."""
    return vision.integer("hidden_size") * root.integer("scale_factor", 2) ** 2 * hidden


def aya_vision(root: Config, vision: Config, hidden: int) -> int:
    """Return Aya Vision's projector: a norm over shuffled pixels and a gated MLP."""
    read = vision.integer("hidden_size") * root.integer("downsample_factor", 2) ** 2
    inner = root.integer("alignment_intermediate_size", hidden)
    return norm(read) + linear(read, inner) + linear(inner // 2, hidden)


def cohere2_vision(root: Config, vision: Config, hidden: int) -> int:
    """Return Command A Vision's projector: a gated MLP over shuffled pixels."""
    read = vision.integer("hidden_size") * root.integer("downsample_factor", 2) ** 2
    inner = root.integer("alignment_intermediate_size", 36_864)
    return linear(read, inner) + linear(inner // 2, hidden)


def got_ocr2(root: Config, vision: Config, hidden: int) -> int:
    """Return GOT-OCR 2's projector: two strided convolutions and one linear layer."""
    out = vision.integer("output_channels", 256)
    return (
        conv(out, 2 * out, 3, 3, bias=False)
        + conv(2 * out, hidden, 3, 3, bias=False)
        + linear(hidden, hidden)
    )


def deepseek_vl(root: Config, vision: Config, hidden: int) -> int:
    """Return DeepSeek-VL's aligner: two linear layers."""
    return mlp(vision.integer("hidden_size"), hidden, hidden)


def deepseek_vl_hybrid(root: Config, vision: Config, hidden: int) -> int:
    """Return DeepSeek-VL's second encoder (SAM), its neck and the aligner of both."""
    fine = root.child("high_res_vision_config")
    if fine is None:
        root.fail("high_res_vision_config", "missing, and it decides the size")
    h, out = fine.integer("hidden_size", 768), fine.integer("output_channels", 256)
    neck = conv(h, out, 1, bias=False) + norm(out) + conv(out, out, 3, 3, bias=False) + norm(out)
    down = conv(out, 2 * out, 3, 3, bias=False) + conv(2 * out, 4 * out, 3, 3, bias=False)
    half = hidden // 2
    aligner = linear(vision.integer("hidden_size"), half) + linear(4 * out, half) + linear(hidden, hidden)
    return sam(fine) + neck + down + 1 + aligner


def lfm2_vl(root: Config, vision: Config, hidden: int) -> int:
    """Return LFM2-VL's projector: a norm over shuffled pixels and two linear layers."""
    read = vision.integer("hidden_size") * root.integer("downsample_factor", 2) ** 2
    inner, bias = root.integer("projector_hidden_size", 2560), root.boolean("projector_bias", True)
    first = norm(read) if root.boolean("projector_use_layernorm", True) else 0
    return first + mlp(read, inner, hidden, bias)


_INTERNVIT = {"hidden_size": 1024}
_PIXTRAL = {"hidden_size": 1024, "image_size": 1540, "patch_size": 14}

TOWERS: dict[str, Callable[[Config, int], tuple[Tower, ...]]] = {
    "llava": Plugged(kind="clip_vision_model", own=CLIP_336, projector=two_layers),
    "llava_next": Plugged(kind="clip_vision_model", own=CLIP_336, projector=with_newline),
    "llava_next_video": Plugged(kind="clip_vision_model", own=CLIP_336, projector=with_newline),
    "llava_onevision": Plugged(
        kind="siglip_vision_model", own={**SIGLIP_384, "vision_use_head": False}, projector=with_newline
    ),
    "video_llava": Plugged(
        kind="clip_vision_model", own={**CLIP_336, "image_size": 224}, projector=two_layers, towers=2
    ),
    "vipllava": Plugged(kind="clip_vision_model", own=CLIP_336, projector=vip_llava),
    "paligemma": Plugged(
        kind="siglip_vision_model",
        own={
            **SIGLIP_384,
            "intermediate_size": 4096,
            "num_hidden_layers": 27,
            "image_size": 224,
            "vision_use_head": False,
        },
        projector=paligemma,
    ),
    "gemma3": Plugged(kind="siglip_vision_model", projector=gemma3),
    "shieldgemma2": Plugged(kind="siglip_vision_model", projector=gemma3),
    "mistral3": Plugged(kind="pixtral", own=_PIXTRAL, projector=mistral3),
    "ministral3": Plugged(kind="pixtral", own=_PIXTRAL, projector=mistral3),
    "lighton_ocr": Plugged(kind="pixtral", own=_PIXTRAL, projector=mistral3),
    "internvl": Plugged(kind="internvl_vision", own=_INTERNVIT, projector=internvl),
    "idefics2": Plugged(kind="idefics2_vision", projector=idefics2),
    "idefics3": Plugged(kind="idefics3_vision", projector=idefics3),
    "smolvlm": Plugged(kind="smolvlm_vision", projector=idefics3),
    "aya_vision": Plugged(
        kind="siglip_vision_model", own={**SIGLIP_384, "vision_use_head": False}, projector=aya_vision
    ),
    "cohere2_vision": Plugged(
        kind="siglip_vision_model",
        own={
            **SIGLIP_384,
            "intermediate_size": 3072,
            "num_hidden_layers": 27,
            "image_size": 512,
            "patch_size": 16,
        },
        projector=cohere2_vision,
    ),
    "got_ocr2": Plugged(kind="got_ocr2_vision", projector=got_ocr2),
    "deepseek_vl": Plugged(kind="siglip_vision_model", projector=deepseek_vl),
    "deepseek_vl_hybrid": Plugged(kind="siglip_vision_model", projector=deepseek_vl_hybrid),
    "lfm2_vl": Plugged(kind="siglip2_vision_model", projector=lfm2_vl),
}
