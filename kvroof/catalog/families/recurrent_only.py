"""Families without any attention that are not Mamba: xLSTM's matrix memory and RWKV-4."""

from __future__ import annotations

from kvroof.catalog.config import MAX_COUNT, Config
from kvroof.catalog.families.family import Family
from kvroof.catalog.families.recurrences import mlstm, rwkv
from kvroof.spec.architecture import Mixer
from kvroof.spec.ffn import FFN, DenseFFN
from kvroof.spec.weights import Weight, vector


def _xlstm_width(config: Config, key: str, default: float, step: int) -> int:
    """Return the residual's width times a factor, brought to a multiple of `step` as the class does."""
    factor = config.optional_number(key)
    width = config.integer("hidden_size") * (default if factor is None else factor)
    if not 1 <= width <= MAX_COUNT:
        config.fail(key, f"makes a width of {width:.3g}")
    return int((width + step - 1) // step) * step


def _xlstm_mixers(config: Config, layer: int) -> tuple[Mixer, ...]:
    """Return the matrix memory; queries and keys are half as wide as values."""
    n = config.integer("num_heads")
    keys = _xlstm_width(config, "qk_dim_factor", 0.5, 1)
    values = _xlstm_width(config, "v_dim_factor", 1.0, 1)
    if keys % n or values % n:
        config.fail("num_heads", f"{n} heads do not divide {keys} key and {values} value channels")
    if config.text("weight_mode", "single") not in ("single", "fused"):
        config.fail("weight_mode", "is neither single nor fused")
    hidden, bias = config.integer("hidden_size"), config.boolean("use_bias", False)
    return (mlstm(hidden=hidden, heads=n, keys=keys, values=values, bias=bias),)


def _xlstm_ffns(config: Config, layer: int) -> tuple[FFN, ...]:
    step = config.integer("ffn_round_up_to_multiple_of", 64)
    inner = _xlstm_width(config, "ffn_proj_factor", 2.667, step)
    bias = config.boolean("use_bias", False)
    return (DenseFFN(hidden_size=config.integer("hidden_size"), intermediate_size=inner, bias=bias),)


def _xlstm_biases(config: Config, layer: int) -> tuple[Weight, ...]:
    """Return the biases of a layer's two norms; the norm after the last layer has none."""
    given = config.boolean("use_bias", False)
    return (vector("norm.bias", config.integer("hidden_size"), count=2),) if given else ()


def _rwkv_mixers(config: Config, layer: int) -> tuple[Mixer, ...]:
    hidden = config.integer("hidden_size")
    width = config.integer("attention_hidden_size", hidden)
    if width != hidden:
        config.fail("attention_hidden_size", f"{width} is not the residual's {hidden}")
    return (rwkv(hidden=hidden, width=width),)


def _rwkv_ffns(config: Config, layer: int) -> tuple[FFN, ...]:
    """Return the channel mixing: a plain MLP behind a gate as wide as the residual."""
    hidden = config.integer("hidden_size")
    inner = config.integer("intermediate_size", 4 * hidden)
    gate = Weight(name="receptance", shape=(hidden, hidden), role="ffn")
    mix = vector("time_mix", hidden, count=2)
    return (DenseFFN(hidden_size=hidden, intermediate_size=inner, gated=False, extras=(gate, mix)),)


FAMILIES = {
    "xlstm": Family(
        mixers=_xlstm_mixers,
        ffns=_xlstm_ffns,
        layer_extras=_xlstm_biases,
        tied=None,
        meaningless=frozenset({"inference_state_dtype", "return_last_states"}),
    ),
    "rwkv": Family(
        mixers=_rwkv_mixers,
        ffns=_rwkv_ffns,
        norms=lambda config, layer: 2 if layer else 3,
        norm_bias=True,
    ),
}
