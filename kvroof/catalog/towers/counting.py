"""Parameters of the parts that towers are made of; a tower is not run here, so a count is enough."""

from __future__ import annotations

from kvroof.catalog.config import MAX_COUNT, Config

MAX_LAYERS = 10_000


def linear(inputs: int, outputs: int, bias: bool = True) -> int:
    """Return the parameters of a linear layer."""
    return inputs * outputs + (outputs if bias else 0)


def conv(inputs: int, outputs: int, height: int, width: int = 1, bias: bool = True) -> int:
    """Return the parameters of a convolution."""
    return inputs * outputs * height * width + (outputs if bias else 0)


def norm(width: int, bias: bool = True) -> int:
    """Return the parameters of a layer norm, or of an RMS norm without `bias`."""
    return 2 * width if bias else width


def mlp(inputs: int, inner: int, outputs: int, bias: bool = True, gated: bool = False) -> int:
    """Return the parameters of an MLP of two matrices, or three when `gated`."""
    return (2 if gated else 1) * linear(inputs, inner, bias) + linear(inner, outputs, bias)


def block(
    hidden: int,
    inner: int,
    *,
    qkv_bias: bool = True,
    out_bias: bool = True,
    mlp_bias: bool = True,
    norm_bias: bool = True,
    gated: bool = False,
    kv_width: int | None = None,
) -> int:
    """Return the parameters of a pre-norm transformer block of full-width heads."""
    narrow = hidden if kv_width is None else kv_width
    attention = linear(hidden, hidden + 2 * narrow, qkv_bias) + linear(hidden, hidden, out_bias)
    return attention + mlp(hidden, inner, hidden, mlp_bias, gated) + 2 * norm(hidden, norm_bias)


def layers(config: Config, default: int, key: str = "num_hidden_layers") -> int:
    """Return how many blocks a tower has."""
    return config.integer(key, default, minimum=0, maximum=MAX_LAYERS)


def sides(config: Config, key: str, default: int) -> tuple[int, int]:
    """Return the height and width of an image or patch, which one number may stand for."""
    if not isinstance(config.data.get(key), list):
        side = config.integer(key, default)
        return side, side
    height, width = positives(config, key, (default, default))
    return height, width


def positives(config: Config, key: str, default: tuple[int, ...]) -> tuple[int, ...]:
    """Return a list of positive whole numbers, as many as `default` has."""
    found = config.array(key, int, len(default))
    if found is None:
        return default
    if not all(0 < number <= MAX_COUNT for number in found):
        config.fail(key, f"holds a number that is not between 1 and {MAX_COUNT}")
    return tuple(found)


def times(config: Config, width: int, key: str, default: float) -> int:
    """Return `width` times the factor under `key`, rounded down as the classes do."""
    factor = config.optional_number(key)
    factor = default if factor is None else factor
    if not 1 <= width * factor <= MAX_COUNT:
        config.fail(key, f"{factor} times {width} is not a width")
    return int(width * factor)


def patches(config: Config, image: int, patch: int) -> int:
    """Return the patches of an image of the config's size; `image` and `patch` are the class's."""
    rows, columns = sides(config, "image_size", image)
    height, width = sides(config, "patch_size", patch)
    return (rows // height) * (columns // width)


def patch_area(config: Config, patch: int, channels: str = "num_channels") -> int:
    """Return the numbers in one patch, over its colour channels."""
    height, width = sides(config, "patch_size", patch)
    return config.integer(channels, 3) * height * width
