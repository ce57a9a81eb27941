"""Vision and audio towers: counted, because they occupy memory, and kept apart from the decoder."""

from __future__ import annotations

from collections.abc import Callable

from kvroof.catalog.config import Config
from kvroof.ground.errors import Unsupported
from kvroof.spec.architecture import Tower

TOWER_KEYS = ("vision_config", "audio_config", "vit_config", "vision_tower_config")


def read_towers(root: Config, model_type: str, hidden_size: int) -> tuple[Tower, ...]:
    """Return the towers of a multimodal model, whose decoder is `hidden_size` wide.

    Args:
        root: The whole config.
        model_type: The outer `model_type`, whose class decides tower and projector.
        hidden_size: Width of the decoder.

    Raises:
        Unsupported: A tower whose parameters are not known.
    """
    given = [key for key in TOWER_KEYS if root.child(key) is not None]
    if model_type in TOWERS:
        return TOWERS[model_type](root, hidden_size) if given else ()
    if given:
        raise Unsupported(
            f"the towers of {model_type!r} are not understood",
            where=root.where,
            key=given[0],
            way_out=f"leave it out of the count with --ignore-key {given[0]}",
        )
    return ()


def _gemma3(root: Config, hidden_size: int) -> tuple[Tower, ...]:
    """Return SigLIP and Gemma 3's projector (transformers' Gemma3MultiModalProjector)."""
    vision = root.child("vision_config")
    if vision is None:
        return ()
    projector = vision.integer("hidden_size") * (hidden_size + 1)
    return (Tower(name="siglip_vision_model", params=siglip(vision) + projector),)


def siglip(config: Config) -> int:
    """Return SigLIP's parameters without its pooling head (transformers' SiglipVisionModel)."""
    h, i = config.integer("hidden_size"), config.integer("intermediate_size")
    patch, image = config.integer("patch_size"), config.integer("image_size")
    layer = 4 * (h * h + h) + (2 * h * i + i + h) + 4 * h
    embedding = 3 * patch * patch * h + h + (image // patch) ** 2 * h
    return embedding + config.integer("num_hidden_layers") * layer + 2 * h


TOWERS: dict[str, Callable[[Config, int], tuple[Tower, ...]]] = {"gemma3": _gemma3}
