"""MoonViT, the vision tower of Kimi-VL, Kimi-K2.5 and Kimi-K3."""

from __future__ import annotations

from collections.abc import Callable

from kvroof.catalog.config import Config
from kvroof.catalog.towers.counting import block, layers, linear, norm, patch_area, positives
from kvroof.spec.architecture import Tower


def _moonvit(prefix: str, rows: str, columns: str) -> Callable[[Config, int], tuple[Tower, ...]]:
    """Return a reader of MoonViT whose sizes are spelled with `prefix`, over a table `rows` x `columns`."""

    def read(root: Config, hidden: int) -> tuple[Tower, ...]:
        vision = root.child("vision_config")
        if vision is None:
            return ()
        h = vision.integer(f"{prefix}hidden_size", 1152)
        projector = vision.text("mm_projector_type", "patchmerger")
        if projector != "patchmerger" or vision.integer("mm_hidden_size", h) != h:
            vision.fail("mm_projector_type", f"{projector!r} of another width is not understood")
        height, width = positives(vision, "merge_kernel_size", (2, 2))
        merged = h * height * width
        one = block(h, vision.integer(f"{prefix}intermediate_size", 4304))
        table = vision.integer(rows, 64) * vision.integer(columns, 64) * h
        tower = patch_area(vision, 14) * h + h + table
        tower += layers(vision, 27, f"{prefix}num_hidden_layers") * one + norm(h)
        params = tower + norm(h) + linear(merged, merged) + linear(merged, hidden)
        return (Tower(name="moonvit", params=params),)

    return read


def _kimi_k25(root: Config, hidden: int) -> tuple[Tower, ...]:
    """Return MoonViT in the spelling of the checkpoints (`vt_hidden_size`) or of transformers."""
    vision = root.child("vision_config")
    if vision is not None and vision.has("vt_hidden_size"):
        return _moonvit("vt_", "init_pos_emb_height", "init_pos_emb_width")(root, hidden)
    return _moonvit("", "pos_emb_height", "pos_emb_width")(root, hidden)


def _kimi_k3(root: Config, hidden: int) -> tuple[Tower, ...]:
    """Return Kimi-K3's MoonViT: no biases, RMS norms, heads of another width than the residual's.

    Source: the checkpoint's `PatchMergerMLPV2` and MoonViT3D blocks, as vLLM and llama.cpp read them.
    """
    vision = root.child("vision_config")
    if vision is None:
        return ()
    for key, known in (
        ("mm_projector_type", "patchmergerv2"),
        ("norm_type", "rmsnorm"),
        ("mlp_type", "mlp2"),
    ):
        if vision.text(key, known) != known:
            vision.fail(key, f"is not {known}")
    for key in ("attn_bias", "linear_bias", "patch_embed_proj_bias"):
        if vision.boolean(key, False):
            vision.fail(key, "biases are not known in this tower")
    h, heads = vision.integer("vt_hidden_size"), vision.integer("qkv_hidden_size")
    height, width = positives(vision, "merge_kernel_size", (2, 2))
    merged = vision.integer("mm_hidden_size", h) * height * width
    block_ = 4 * h * heads + 2 * h * vision.integer("vt_intermediate_size") + 2 * h
    table = vision.integer("init_pos_emb_height", 64) * vision.integer("init_pos_emb_width", 64) * h
    tower = patch_area(vision, 14) * h + table + layers(vision, 27, "vt_num_hidden_layers") * block_ + h
    return (Tower(name="moonvit", params=tower + merged * merged + merged * hidden + hidden),)


TOWERS = {
    "kimi_k3": _kimi_k3,
    "kimi_k25": _kimi_k25,
    "kimi_vl": _moonvit("", "init_pos_emb_height", "init_pos_emb_width"),
}
