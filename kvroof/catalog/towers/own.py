"""Towers that one model alone has: Phi-3-vision, InternVL's checkpoints, DeepSeek-VL2, Step, MiniMax, ..."""

from __future__ import annotations

from collections.abc import Callable

from kvroof.catalog.config import Config
from kvroof.catalog.towers.counting import (
    block,
    conv,
    layers,
    linear,
    mlp,
    norm,
    patch_area,
    patches,
    times,
)
from kvroof.catalog.towers.encoders import clip
from kvroof.spec.architecture import Tower

Count = Callable[[Config, Config, int], int]


def video_llama_3(root: Config, vision: Config, hidden: int) -> int:
    """Return VideoLLaMA 3's tower: a ViT with rotary positions and two linear layers."""
    h, inner = vision.integer("hidden_size", 768), vision.integer("intermediate_size", 3072)
    tower = patch_area(vision, 16) * h + h + layers(vision, 12) * block(h, inner) + norm(h)
    return tower + mlp(h, hidden, hidden)


def paddleocr_vl(root: Config, vision: Config, hidden: int) -> int:
    """Return PaddleOCR-VL's tower: SigLIP without pooling, merged patches through two linear layers."""
    h, inner = vision.integer("hidden_size", 1152), vision.integer("intermediate_size", 4304)
    merged = h * vision.integer("spatial_merge_size", 2) ** 2
    tower = patch_area(vision, 14) * h + h + patches(vision, 384, 14) * h
    return tower + layers(vision, 27) * block(h, inner) + norm(h) + norm(h) + mlp(merged, merged, hidden)


def ovis2(root: Config, vision: Config, hidden: int) -> int:
    """Return Ovis 2's tower: a ViT that picks from a table of visual words."""
    h, inner = vision.integer("hidden_size", 1024), vision.integer("intermediate_size", 2816)
    qkv, feed = vision.boolean("qkv_bias", False), vision.boolean("mlp_bias", False)
    words = vision.integer("vocab_size", 16_384)
    picked = words - vision.integer("num_visual_indicator_tokens", 5, maximum=words)
    one = block(h, inner, qkv_bias=qkv, out_bias=qkv, mlp_bias=feed, norm_bias=False, gated=True)
    tower = patch_area(vision, 14) * h + h + patches(vision, 224, 14) * h + 2 * h + layers(vision, 24) * one
    head = h * vision.integer("hidden_stride", 1) ** 2 * picked + norm(picked)
    return tower + head + words * hidden


def step3p7(root: Config, vision: Config, hidden: int) -> int:
    """Return Step 3.7's tower: a ViT with scaled residuals and two strided convolutions."""
    h, inner = vision.integer("hidden_size", 1536), vision.integer("intermediate_size", 8960)
    tower = patch_area(vision, 14) * h + vision.integer("max_position_embeddings", 2704) * h + norm(h)
    tower += layers(vision, 47) * (block(h, inner) + 2 * h)
    tower += conv(h, 2 * h, 3, 3) + conv(2 * h, 4 * h, 3, 3)
    return tower + linear(4 * h, hidden, root.boolean("projector_bias", False))


def minimax_m3(root: Config, vision: Config, hidden: int) -> int:
    """Return MiniMax-M3's tower: a ViT with rotary positions and two projectors of two layers each."""
    h, inner = vision.integer("hidden_size", 1280), vision.integer("intermediate_size", 5120)
    frames, merge = vision.integer("temporal_patch_size", 2), vision.integer("spatial_merge_size", 2)
    tower = patch_area(vision, 14) * frames * h + norm(h) + layers(vision, 32) * block(h, inner)
    middle = root.integer("projector_hidden_size", 6144)
    return tower + mlp(h, middle, hidden) + mlp(hidden * merge**2, middle, hidden)


def internvl_chat(root: Config, vision: Config, hidden: int) -> int:
    """Return InternViT and its projector, in the spelling of OpenGVLab's checkpoints."""
    h, inner = vision.integer("hidden_size"), vision.integer("intermediate_size")
    norms = vision.text("norm_type", "layer_norm")
    if norms not in ("layer_norm", "rms_norm"):
        vision.fail("norm_type", f"{norms!r} is not a norm this tower has")
    one = block(h, inner, qkv_bias=vision.boolean("qkv_bias"), norm_bias=norms == "layer_norm") + 2 * h
    if vision.boolean("qk_normalization", False):
        one += 2 * h
    fold = root.optional_number("downsample_ratio")
    if fold not in (None, 0.5):
        root.fail("downsample_ratio", f"{fold} is not the 0.5 of this projector")
    read = 4 * h
    tower = h + (patches(vision, 448, 14) + 1) * h + patch_area(vision, 14) * h + h
    return (
        tower
        + layers(vision, vision.integer("num_hidden_layers")) * one
        + norm(read)
        + mlp(read, hidden, hidden)
    )


def deepseek_vl2(root: Config, vision: Config, hidden: int) -> int:
    """Return DeepSeek-VL2's SigLIP, whose pooling it stores and does not run, and its projector."""
    h = vision.integer("width", 1024)
    inner = times(vision, h, "mlp_ratio", 4)
    pool = vision.text("global_pool", "map")
    if pool != "map" or vision.boolean("class_token", False):
        vision.fail("global_pool", f"{pool!r} pooling or a class token is not understood")
    tower = patch_area(vision, 16) * h + h + patches(vision, 384, 16) * h
    tower += layers(vision, 24, "layers") * block(h, inner) + norm(h)
    tower += h + 4 * linear(h, h) + norm(h) + mlp(h, inner, h)
    shape = root.child("projector_config") or Config({}, root.where, root.path)
    kind, depth = shape.text("projector_type", "downsample_mlp_gelu"), shape.integer("depth", 2)
    fold, wide = shape.integer("downsample_ratio", 2), shape.integer("mlp_ratio", 1)
    read, out = shape.integer("input_dim", 1152), shape.integer("n_embed", 2048)
    tags = root.text("tile_tag", "2D")
    if kind != "downsample_mlp_gelu" or depth != 2 or tags != "2D" or read != h or out != hidden:
        root.fail("projector_config", f"{kind!r} of depth {depth} with {tags!r} tiles is not understood")
    return tower + linear(read * fold**2, out * wide) + linear(out * wide, out) + 2 * out


def hunyuan_vl(root: Config, vision: Config, hidden: int) -> int:
    """Return Hunyuan-VL's tower: a ViT, two convolutions that merge patches, and learned separators."""
    h, inner = vision.integer("hidden_size", 1152), vision.integer("intermediate_size", 4304)
    if vision.integer("temporal_patch_size", 1) != 1 or vision.integer("spatial_merge_size", 2) != 2:
        vision.fail("spatial_merge_size", "another merge than 2 x 2 of one frame is not understood")
    tower = patch_area(vision, 16) * h + h + (vision.integer("max_vit_seq_len", 16_384) + 1) * h
    tower += layers(vision, 27) * block(h, inner)
    merger = conv(h, 2 * h, 2, 2) + conv(2 * h, 4 * h, 1) + 4 * h + linear(4 * h, hidden)
    return tower + merger + h + 4 * hidden


def _seen(count: Count, key: str = "vision_config") -> Callable[[Config, int], tuple[Tower, ...]]:
    def read(root: Config, hidden: int) -> tuple[Tower, ...]:
        vision = root.child(key)
        return () if vision is None else (Tower(name="vision", params=count(root, vision, hidden)),)

    return read


def _fuyu(root: Config, hidden: int) -> tuple[Tower, ...]:
    """Return Fuyu's only vision weight, the projection of a patch."""
    return (Tower(name="vision", params=linear(patch_area(root, 30), hidden)),)


def _phi3_v(root: Config, hidden: int) -> tuple[Tower, ...]:
    """Return Phi-3-vision's CLIP ViT-L/14-336, two separators and two linear layers.

    The file names the encoder instead of giving its sizes, so any other is refused.
    """
    image, layout = root.child("img_processor"), root.child("embd_layer")
    if image is None:
        return ()
    name = image.text("model_name", "openai/clip-vit-large-patch14-336")
    learned = layout is None or layout.boolean("with_learnable_separator", True)
    kind = "mlp" if layout is None else layout.text("projection_cls", "mlp")
    if name != "openai/clip-vit-large-patch14-336" or kind != "mlp" or not learned:
        image.fail("model_name", f"{name!r} with a {kind!r} projection is not understood")
    sizes = {
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "image_size": 336,
        "patch_size": 14,
    }
    params = clip(Config(sizes, root.where)) + mlp(4096, hidden, hidden) + 2 * 4096
    return (Tower(name="clip_vision_model", params=params),)


TOWERS = {
    "video_llama_3": _seen(video_llama_3),
    "paddleocr_vl": _seen(paddleocr_vl),
    "ovis2": _seen(ovis2),
    "step3p7": _seen(step3p7),
    "minimax_m3_vl": _seen(minimax_m3),
    "internvl_chat": _seen(internvl_chat),
    "deepseek_vl_v2": _seen(deepseek_vl2),
    "fuyu": _fuyu,
    "hunyuan_vl": _seen(hunyuan_vl),
    "phi3_v": _phi3_v,
}
