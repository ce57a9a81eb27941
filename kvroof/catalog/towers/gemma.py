"""Gemma 4's vision and audio towers and Gemma 3n's audio one."""

from __future__ import annotations

from kvroof.catalog.config import Config
from kvroof.catalog.towers.counting import conv, layers, linear, positives
from kvroof.ground.errors import Unsupported
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
    first, second = positives(config, "subsampling_conv_channels", (128, 32))
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


MOBILENET_V5_300M = 294_126_912
"""Parameters of timm's `mobilenetv5_300m_enc`, counted on meta tensors."""


def gemma3n_audio(config: Config) -> int:
    """Return the parameters of Gemma 3n's conformer."""
    h, heads = config.integer("hidden_size", 1536), config.integer("conf_num_attention_heads", 8)
    first, second = positives(config, "sscp_conv_channel_size", (128, 32))
    kernels = config.array("sscp_conv_kernel_size", list) or [[3, 3], [3, 3]]
    if kernels != [[3, 3], [3, 3]]:
        config.fail("sscp_conv_kernel_size", "another kernel than 3 x 3 is not understood")
    front = conv(1, first, 3, 3, False) + first + conv(first, second, 3, 3, False) + second
    front += config.integer("input_feat_size", 128) // 4 * second * h
    one = _conformer(h, heads, config.integer("conf_conv_kernel_size", 5))
    return front + layers(config, 12, "conf_num_hidden_layers") * one


def _embedder(config: Config, width: int, hidden: int) -> int:
    """Return the special tokens of a modality, two norms, and the projection to the decoder."""
    return config.integer("vocab_size", 128) * width + 2 * width + width * hidden


def _gemma3n(root: Config, hidden: int) -> tuple[Tower, ...]:
    vision, audio = root.child("vision_config"), root.child("audio_config")
    found = []
    if vision is not None:
        network = vision.text("architecture", "mobilenetv5_300m_enc")
        if network != "mobilenetv5_300m_enc":
            raise Unsupported(f"{network!r} is not understood", where=root.where, key="vision_config")
        params = MOBILENET_V5_300M + _embedder(vision, vision.integer("hidden_size", 2048), hidden)
        found.append(Tower(name=network, params=params))
    if audio is not None:
        params = gemma3n_audio(audio) + _embedder(audio, audio.integer("hidden_size", 1536), hidden)
        found.append(Tower(name="audio", params=params))
    return tuple(found)


TOWERS = {"gemma3n": _gemma3n, "gemma4": _gemma4}
