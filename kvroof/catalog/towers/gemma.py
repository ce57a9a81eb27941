"""Gemma 4's vision and audio towers and Gemma 3n's audio one."""

from __future__ import annotations

from kvroof.catalog.config import Config
from kvroof.catalog.towers.counting import conv, layers, linear
from kvroof.spec.architecture import Tower


def gemma4_vision(config: Config) -> int:
    """Return Gemma 4's vision encoder: two position tables, four norms a layer, normed queries and keys."""
    h, inner = config.integer("hidden_size", 768), config.integer("intermediate_size", 3072)
    heads, width = config.integer("num_attention_heads", 12), config.integer("head_dim", 64)
    narrow = config.integer("num_key_value_heads", heads)
    if config.boolean("attention_bias", False):
        config.fail("attention_bias", "biases are not known for this tower")
    attention = 2 * h * width * (heads + narrow) + 2 * width
    one = attention + 3 * h * inner + 4 * h
    patch = 3 * config.integer("patch_size", 16) ** 2 * h
    positions = 2 * config.integer("position_embedding_size", 10_240) * h
    return patch + positions + layers(config, 16) * one


def gemma4_audio(config: Config) -> tuple[int, int]:
    """Return the parameters of Gemma 4's conformer, and the width of its output."""
    h, heads = config.integer("hidden_size", 1024), config.integer("num_attention_heads", 8)
    first, second = config.array("subsampling_conv_channels", int, 2) or (128, 32)
    out, kernel = config.integer("output_proj_dims", 1536), config.integer("conv_kernel_size", 5)
    front = conv(1, first, 3, 3, False) + first + conv(first, second, 3, 3, False) + second
    front += first // 4 * second * h
    return front + layers(config, 12) * _conformer(h, heads, kernel) + linear(h, out), out


def _conformer(h: int, heads: int, kernel: int) -> int:
    """Return one conformer layer: two feed-forwards, relative attention, a light convolution."""
    feed_forwards = 2 * (8 * h * h + 2 * h)
    attention = 5 * h * h + h // heads + 2 * h
    return feed_forwards + attention + 3 * h * h + kernel * h + 2 * h + h


def _gemma4(root: Config, hidden: int) -> tuple[Tower, ...]:
    vision, audio = root.child("vision_config"), root.child("audio_config")
    found = []
    if vision is not None:
        width = vision.integer("hidden_size", 768)
        found.append(Tower(name="vision", params=gemma4_vision(vision) + width * hidden))
    if audio is not None:
        params, out = gemma4_audio(audio)
        found.append(Tower(name="audio", params=params + out * hidden))
    return tuple(found)


TOWERS = {"gemma4": _gemma4}
