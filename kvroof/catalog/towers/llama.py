"""The vision towers of Llama 3.2 Vision (mllama) and Llama 4."""

from __future__ import annotations

from kvroof.catalog.config import Config
from kvroof.catalog.towers.counting import block, layers, linear, norm, patch_area, patches
from kvroof.spec.architecture import Tower


def _llama4(root: Config, hidden: int) -> tuple[Tower, ...]:
    """Return Llama 4's tower: a ViT, an adapter over shuffled pixels, and one matrix."""
    vision = root.child("vision_config")
    if vision is None:
        return ()
    h, inner = vision.integer("hidden_size", 768), vision.integer("intermediate_size", 5632)
    middle = vision.integer("projector_input_dim", 4096)
    out = vision.integer("projector_output_dim", 4096)
    if vision.boolean("multi_modal_projector_bias", False):
        vision.fail("multi_modal_projector_bias", "a bias is not known for this projector")
    tower = patch_area(vision, 14) * h + h + (patches(vision, 448, 14) + 1) * h + 2 * norm(h)
    tower += layers(vision, 34) * block(h, inner) + inner * middle + out * out
    params = tower + vision.integer("vision_output_dim", 7680) * hidden
    return (Tower(name="llama4_vision_model", params=params),)


def _mllama(root: Config, hidden: int) -> tuple[Tower, ...]:
    """Return Llama 3.2 Vision's tower: tiles with gated tables, local and gated global layers."""
    vision = root.child("vision_config")
    if vision is None:
        return ()
    h, inner = vision.integer("hidden_size", 1280), vision.integer("intermediate_size", 5120)
    tiles, places = vision.integer("max_num_tiles", 4), patches(vision, 448, 14) + 1
    ratios = vision.array("supported_aspect_ratios", list)
    shapes = 1 + (8 if ratios is None else len(ratios))
    positions = 1 + places * h + shapes * tiles * places * h
    tile_tables = 2 * (1 + shapes * tiles * h)
    one = block(h, inner, qkv_bias=False, out_bias=False)
    blocks = layers(vision, 32) * one + layers(vision, 8, "num_global_layers") * (one + 2)
    tower = h + patch_area(vision, 14) * h + positions + tile_tables + 2 * norm(h) + blocks
    params = tower + linear(vision.integer("vision_output_dim", 7680), hidden)
    return (Tower(name="mllama_vision_model", params=params),)


TOWERS = {"llama4": _llama4, "mllama": _mllama}
