"""Audio towers: Whisper's encoder and the projectors of the models that listen through it."""

from __future__ import annotations

from collections.abc import Callable

from kvroof.catalog.config import Config
from kvroof.catalog.towers.counting import block, conv, layers, linear, mlp, norm
from kvroof.spec.architecture import Tower


def whisper_layers(config: Config, key_bias: bool = False) -> int:
    """Return Whisper's encoder layers, whose key projection has no bias (`key_bias` in some relatives)."""
    spelled = config.has("encoder_layers")
    d = config.integer("d_model", config.integer("hidden_size", 1280))
    inner = config.integer("encoder_ffn_dim" if spelled else "intermediate_size", 5120)
    one = block(d, inner) - (0 if key_bias else d)
    return layers(config, 32, "encoder_layers" if spelled else "num_hidden_layers") * one


def whisper(config: Config) -> int:
    """Return Whisper's encoder: two convolutions, a position table, layers and a norm."""
    d = config.integer("d_model", config.integer("hidden_size", 1280))
    front = conv(config.integer("num_mel_bins", 128), d, 3) + conv(d, d, 3)
    return front + config.integer("max_source_positions", 1500) * d + whisper_layers(config) + norm(d)


def _listening(
    projector: Callable[[Config, Config, int], int],
) -> Callable[[Config, int], tuple[Tower, ...]]:
    def read(root: Config, hidden: int) -> tuple[Tower, ...]:
        audio = root.child("audio_config")
        if audio is None:
            return ()
        return (Tower(name="audio", params=whisper(audio) + projector(root, audio, hidden)),)

    return read


def _one_layer(root: Config, audio: Config, hidden: int) -> int:
    return linear(audio.integer("d_model", 1280), hidden)


def _voxtral(root: Config, audio: Config, hidden: int) -> int:
    return mlp(audio.integer("intermediate_size", 5120), hidden, hidden, bias=False)


def _flamingo(root: Config, audio: Config, hidden: int) -> int:
    root.read_nothing(("head_dim",))  # Music Flamingo's rotary width
    return mlp(audio.integer("hidden_size", 1280), hidden, hidden, root.boolean("projector_bias", True))


TOWERS = {
    "qwen2_audio": _listening(_one_layer),
    "voxtral": _listening(_voxtral),
    "audioflamingo3": _listening(_flamingo),
    "musicflamingo": _listening(_flamingo),
}
