"""Qwen's vision towers (2-VL, 2.5-VL, 3-VL, 3.5) and the audio and vision towers of its Omni models."""

from __future__ import annotations

from collections.abc import Callable

from kvroof.catalog.config import Config
from kvroof.catalog.towers.audio import whisper_layers
from kvroof.catalog.towers.counting import block, conv, layers, linear, mlp, norm, sides, times
from kvroof.spec.architecture import Tower


def _voxels(config: Config, patch: int) -> int:
    """Return the numbers in one patch: channels, frames, height and width."""
    channels = config.integer("in_channels", config.integer("in_chans", 3))
    height, width = sides(config, "patch_size", patch)
    return channels * config.integer("temporal_patch_size", 2) * height * width


def qwen2(config: Config) -> int:
    """Return Qwen2-VL's tower; `hidden_size` is its output's width, `embed_dim` its own."""
    h, out = config.integer("embed_dim", 1280), config.integer("hidden_size", 3584)
    inner = times(config, h, "mlp_ratio", 4)
    merged = h * config.integer("spatial_merge_size", 2) ** 2
    return (
        _voxels(config, 14) * h
        + layers(config, 32, "depth") * block(h, inner)
        + norm(h)
        + mlp(merged, merged, out)
    )


def qwen2_5(config: Config) -> int:
    """Return Qwen2.5-VL's tower: RMS norms and gated MLPs; Exaone's has fewer key heads."""
    h, out = config.integer("hidden_size", 3584), config.integer("out_hidden_size", 3584)
    heads = config.integer("num_heads", 16)
    narrow = h // heads * config.integer("num_key_value_heads", heads)
    one = block(h, config.integer("intermediate_size", 3420), norm_bias=False, gated=True, kv_width=narrow)
    merged = h * config.integer("spatial_merge_size", 2) ** 2
    return (
        _voxels(config, 14) * h
        + layers(config, 32, "depth") * one
        + norm(h, False)
        + mlp(merged, merged, out)
    )


def qwen3(config: Config, deepstack: tuple[int, ...] = ()) -> int:
    """Return Qwen3-VL's tower; `deepstack` are the layers that also feed the decoder, by default."""
    h, out = config.integer("hidden_size", 1152), config.integer("out_hidden_size", 3584)
    merged = h * config.integer("spatial_merge_size", 2) ** 2
    named = config.array("deepstack_visual_indexes", int) if deepstack else None
    extra = len(deepstack if named is None else named)
    return (
        _voxels(config, 16) * h
        + h
        + config.integer("num_position_embeddings", 2304) * h
        + layers(config, 27, "depth") * block(h, config.integer("intermediate_size", 4304))
        + norm(h)
        + mlp(merged, merged, out)
        + extra * (norm(merged) + mlp(merged, merged, out))
    )


def audio2_5(config: Config) -> int:
    """Return Qwen2.5-Omni's audio tower: Whisper's layers, sinusoidal positions, a projection."""
    d, out = config.integer("d_model", 1280), config.integer("output_dim", 3584)
    ends = conv(config.integer("num_mel_bins", 128), d, 3) + conv(d, d, 3) + 2 * out
    return ends + whisper_layers(config) + norm(d) + linear(d, out)


def audio3(config: Config) -> int:
    """Return Qwen3-Omni's audio tower: three strided convolutions over the spectrogram."""
    d, out = config.integer("d_model", 1280), config.integer("output_dim", 3584)
    c, bins = config.integer("downsample_hidden_size", 480), config.integer("num_mel_bins", 128)
    for _ in range(3):
        bins = (bins + 1) // 2
    front = conv(1, c, 3, 3) + 2 * conv(c, c, 3, 3) + c * bins * d
    return front + whisper_layers(config, key_bias=True) + norm(d) + mlp(d, d, out)


def _vision(count: Callable[[Config], int]) -> Callable[[Config, int], tuple[Tower, ...]]:
    def read(root: Config, hidden: int) -> tuple[Tower, ...]:
        vision = root.child("vision_config")
        return () if vision is None else (Tower(name="vision", params=count(vision)),)

    return read


def _omni(
    vision: Callable[[Config], int], audio: Callable[[Config], int]
) -> Callable[[Config, int], tuple[Tower, ...]]:
    def read(root: Config, hidden: int) -> tuple[Tower, ...]:
        sound = root.child("audio_config")
        heard = () if sound is None else (Tower(name="audio", params=audio(sound)),)
        return _vision(vision)(root, hidden) + heard

    return read


def _deepstack(config: Config) -> int:
    return qwen3(config, (8, 16, 24))


TOWERS = {
    "qwen2_vl": _vision(qwen2),
    "qwen2_5_vl": _vision(qwen2_5),
    "exaone4_5": _vision(qwen2_5),
    "qwen3_vl": _vision(_deepstack),
    "qwen3_vl_moe": _vision(_deepstack),
    "qwen3_5": _vision(qwen3),
    "qwen3_5_moe": _vision(qwen3),
    "qwen2_5_omni_thinker": _omni(qwen2_5, audio2_5),
    "qwen3_omni_moe_thinker": _omni(_deepstack, audio3),
}
