"""Vision and audio towers: counted, because they occupy memory, and kept apart from the decoder.

The outer `model_type` decides, because the projector belongs to its class. A new one is declared in a
module here, in its `TOWERS`.
"""

from __future__ import annotations

from collections.abc import Callable

from kvroof.catalog.config import Config
from kvroof.catalog.towers import audio, gemma, glm, kimi, llama, own, projectors, qwen
from kvroof.ground.errors import Unsupported
from kvroof.spec.architecture import Tower

TOWER_KEYS = (
    "vision_config",
    "audio_config",
    "vit_config",
    "vision_tower_config",
    "high_res_vision_config",
    "perceiver_config",
    "qformer_config",
    "projector_config",
    "aligner_config",
    "encoder_config",
    "speech_config",
    "vq_config",
    "img_processor",
    "embd_layer",
)
"""Where configs describe what stands before the decoder."""

TOWERS: dict[str, Callable[[Config, int], tuple[Tower, ...]]] = {
    **projectors.TOWERS,
    **qwen.TOWERS,
    **audio.TOWERS,
    **glm.TOWERS,
    **gemma.TOWERS,
    **llama.TOWERS,
    **kimi.TOWERS,
    **own.TOWERS,
}


def read_towers(root: Config, model_type: str, hidden_size: int) -> tuple[Tower, ...]:
    """Return the towers of a multimodal model, whose decoder is `hidden_size` wide.

    Args:
        root: The whole config.
        model_type: The outer `model_type`, whose class decides tower and projector.
        hidden_size: Width of the decoder.

    Raises:
        Unsupported: A tower whose parameters are not known.
    """
    if model_type in TOWERS:
        return TOWERS[model_type](root, hidden_size)
    for key in TOWER_KEYS:
        if root.data.get(key):
            raise Unsupported(
                f"the towers of {model_type!r} are not understood",
                where=root.where,
                key=key,
                way_out=f"leave it out of the count with --ignore-key {key}",
            )
    return ()
