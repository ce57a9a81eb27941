"""Vision encoders that several models carry, by the `model_type` of their own config."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kvroof.catalog.config import Config
from kvroof.catalog.towers.counting import block, layers, linear, mlp, norm, patch_area, patches, sides
from kvroof.ground.errors import Unsupported


def clip(config: Config) -> int:
    """Return CLIP's parameters (CLIPVisionModel): a class token, norms before and after."""
    h, inner = config.integer("hidden_size", 768), config.integer("intermediate_size", 3072)
    embedding = h + patch_area(config, 32) * h + (patches(config, 224, 32) + 1) * h
    return embedding + 2 * norm(h) + layers(config, 12) * block(h, inner)


def siglip(config: Config) -> int:
    """Return SigLIP's parameters (SiglipVisionModel), with its pooling head unless the config has none."""
    h, inner = config.integer("hidden_size", 768), config.integer("intermediate_size", 3072)
    embedding = patch_area(config, 16) * h + h + patches(config, 224, 16) * h
    return embedding + layers(config, 12) * block(h, inner) + norm(h) + _pooling(config, h, inner)


def siglip2(config: Config) -> int:
    """Return SigLIP 2's parameters (Siglip2VisionModel): patches of any grid, a table of `num_patches`."""
    h, inner = config.integer("hidden_size", 768), config.integer("intermediate_size", 3072)
    embedding = patch_area(config, 16) * h + h + config.integer("num_patches", 256) * h
    return embedding + layers(config, 12) * block(h, inner) + norm(h) + _pooling(config, h, inner)


def _pooling(config: Config, h: int, inner: int) -> int:
    """Return SigLIP's attention pooling: a probe, one attention, one MLP."""
    if not config.boolean("vision_use_head", True):
        return 0
    return h + linear(h, 3 * h) + linear(h, h) + norm(h) + mlp(h, inner, h)


def plain_vit(config: Config, hidden: int = 768, patch: int = 32) -> int:
    """Return SigLIP without pooling, as Idefics 2 and 3 and SmolVLM have it."""
    h, inner = config.integer("hidden_size", hidden), config.integer("intermediate_size", 3072)
    embedding = patch_area(config, patch) * h + h + patches(config, 224, patch) * h
    return embedding + layers(config, 12) * block(h, inner) + norm(h)


def idefics3(config: Config) -> int:
    """Return the tower of Idefics 3 and SmolVLM."""
    return plain_vit(config, hidden=1152)


def pixtral(config: Config) -> int:
    """Return Pixtral's parameters (PixtralVisionModel): no biases, rotary positions, gated MLPs."""
    h, inner = config.integer("hidden_size", 1024), config.integer("intermediate_size", 4096)
    one = block(h, inner, qkv_bias=False, out_bias=False, mlp_bias=False, norm_bias=False, gated=True)
    return patch_area(config, 16) * h + norm(h, False) + layers(config, 24) * one


def internvit(config: Config) -> int:
    """Return InternViT's parameters (InternVLVisionModel): a class token and scaled residuals."""
    h, inner = config.integer("hidden_size", 1024), config.integer("intermediate_size", 4096)
    bias = config.boolean("attention_bias", False)
    norms = config.text("norm_type", "layer_norm")
    if norms not in ("layer_norm", "rms_norm"):
        config.fail("norm_type", f"{norms!r} is not a norm this tower has")
    one = block(h, inner, qkv_bias=bias, norm_bias=norms == "layer_norm") + 2 * h
    if config.boolean("use_qk_norm", False):
        one += 2 * h
    tokens = h * (2 if config.boolean("use_mask_token", False) else 1)
    if config.boolean("use_absolute_position_embeddings", True):
        tokens += (patches(config, 448, 14) + 1) * h
    last = 0 if config.boolean("use_mean_pooling", True) else norm(h)
    return tokens + patch_area(config, 14) * h + h + layers(config, 24) * one + last


def sam(config: Config) -> int:
    """Return the parameters of SAM's encoder: windows with relative positions, a convolutional neck."""
    h, heads = config.integer("hidden_size", 768), config.integer("num_attention_heads", 12)
    out, count = config.integer("output_channels", 256), layers(config, 12)
    grid = sides(config, "image_size", 1024)[0] // sides(config, "patch_size", 16)[0]
    one = block(h, config.integer("mlp_dim", 4 * h), qkv_bias=config.boolean("qkv_bias", True))
    total = patch_area(config, 16) * h + h + count * one
    if config.boolean("use_abs_pos", True):
        total += grid * grid * h
    if config.boolean("use_rel_pos", True):
        named = config.array("global_attn_indexes", int)
        everywhere = {i for i in ((2, 5, 8, 11) if named is None else named) if 0 <= i < count}
        window = config.integer("window_size", 14)
        spans = len(everywhere) * (2 * grid - 1) + (count - len(everywhere)) * (2 * window - 1)
        total += 2 * spans * (h // heads)
    return total + h * out + norm(out) + 9 * out * out + norm(out)


ENCODERS: dict[str, Callable[[Config], int]] = {
    "clip_vision_model": clip,
    "siglip_vision_model": siglip,
    "siglip2_vision_model": siglip2,
    "pixtral": pixtral,
    "internvl_vision": internvit,
    "idefics2": plain_vit,
    "idefics2_vision": plain_vit,
    "idefics3": idefics3,
    "idefics3_vision": idefics3,
    "smolvlm_vision": idefics3,
    "sam_vision_model": sam,
    "got_ocr2_vision": sam,
}


def completed(config: Config, own: Mapping[str, int]) -> Config:
    """Return the config with what its class takes for granted; what is read counts as read of the file."""
    given = {key: value for key, value in config.data.items() if value is not None}
    whole = Config({**own, **given}, config.where, config.path)
    whole.read = config.read
    return whole


def encoder(config: Config, default: str, own: Mapping[str, int]) -> tuple[str, int]:
    """Return the name and the parameters of the encoder that `config` describes.

    Args:
        config: The tower's config.
        default: The encoder the outer class builds where the file names none.
        own: Sizes the outer class gives that encoder where the file leaves them out.

    Raises:
        Unsupported: An encoder whose layout is not known.
    """
    kind = config.text("model_type", "")
    if not kind:
        kind, config = default, completed(config, own)
    if kind not in ENCODERS:
        raise Unsupported(
            f"the tower {kind!r} is not understood", where=config.where, key=config.path + "model_type"
        )
    return kind, ENCODERS[kind](config)
