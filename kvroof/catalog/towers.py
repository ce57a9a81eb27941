"""Vision and audio towers: counted, because they occupy memory, and kept apart from the decoder."""

from __future__ import annotations

from kvroof.catalog.config import Config
from kvroof.ground.errors import Unsupported
from kvroof.spec.architecture import Tower

TOWER_KEYS = ("vision_config", "audio_config")


def read_towers(root: Config, hidden_size: int) -> tuple[Tower, ...]:
    """Return the towers of a multimodal model, whose decoder is `hidden_size` wide.

    Raises:
        Unsupported: A tower whose parameters are not known.
    """
    towers = []
    for key in TOWER_KEYS:
        config = root.child(key)
        if config is None:
            continue
        model_type = config.text("model_type", "")
        if model_type != "siglip_vision_model" or root.text("model_type", "") != "gemma3":
            raise Unsupported(
                f"a tower of type {model_type!r} is not understood",
                where=root.where,
                key=key,
                way_out=f"leave it out of the count with --ignore-key {key}",
            )
        projector = config.integer("hidden_size") * (hidden_size + 1)
        towers.append(Tower(name=model_type, params=_siglip(config) + projector))
    return tuple(towers)


def _siglip(config: Config) -> int:
    """Return SigLIP's parameters without its pooling head (transformers' SiglipVisionModel)."""
    h, i = config.integer("hidden_size"), config.integer("intermediate_size")
    patch, image = config.integer("patch_size"), config.integer("image_size")
    layer = 4 * (h * h + h) + (2 * h * i + i + h) + 4 * h
    embedding = 3 * patch * patch * h + h + (image // patch) ** 2 * h
    return embedding + config.integer("num_hidden_layers") * layer + 2 * h
