"""GLM's vision towers."""

from __future__ import annotations

from kvroof.catalog.config import Config
from kvroof.catalog.towers.counting import block, conv, layers, mlp, norm, patches, sides
from kvroof.spec.architecture import Tower


def _downsampled(config: Config, h: int, out: int) -> int:
    """Return the patches' projection and the strided convolution after the last block."""
    height, width = sides(config, "patch_size", 14)
    merge = config.integer("spatial_merge_size", 2)
    voxels = config.integer("in_channels", 3) * config.integer("temporal_patch_size", 2) * height * width
    return voxels * h + h + conv(h, out, merge, merge)


def _merger(inner: int, out: int) -> int:
    """Return the merger: a matrix, a norm and a gated MLP."""
    return out * out + norm(out) + mlp(out, inner, out, bias=False, gated=True)


def glm4v(config: Config) -> int:
    """Return GLM-4V's tower; its blocks' MLPs are as wide as the tower's output."""
    h, out = config.integer("hidden_size", 1536), config.integer("out_hidden_size", 4096)
    one = block(
        h,
        out,
        qkv_bias=config.boolean("attention_bias", False),
        out_bias=False,
        mlp_bias=False,
        norm_bias=False,
        gated=True,
    )
    ends = patches(config, 336, 14) * h + 2 * h
    merger = _merger(config.integer("intermediate_size", 13_696), out)
    return _downsampled(config, h, out) + ends + layers(config, 24, "depth") * one + merger


def glm_ocr(config: Config) -> int:
    """Return GLM-OCR's tower: biases, normed queries and keys, no position table."""
    h, out = config.integer("hidden_size", 1024), config.integer("out_hidden_size", 1536)
    inner, bias = config.integer("intermediate_size", 4096), config.boolean("attention_bias", True)
    one = block(h, inner, qkv_bias=bias, out_bias=bias, mlp_bias=bias, norm_bias=False, gated=True)
    one += 2 * (h // config.integer("num_heads", 16))
    merger = _merger(out * config.integer("in_channels", 3), out)
    return _downsampled(config, h, out) + h + layers(config, 24, "depth") * one + merger


def _glm4v(root: Config, hidden: int) -> tuple[Tower, ...]:
    vision = root.child("vision_config")
    return () if vision is None else (Tower(name="vision", params=glm4v(vision)),)


def _glm_ocr(root: Config, hidden: int) -> tuple[Tower, ...]:
    vision = root.child("vision_config")
    return () if vision is None else (Tower(name="vision", params=glm_ocr(vision)),)


TOWERS = {"glm4v": _glm4v, "glm4v_moe": _glm4v, "glm46v": _glm4v, "glm_ocr": _glm_ocr}
