"""Recurrent layers made small: the same kinds, built anew by the catalog's own builders."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kvroof.catalog.families.recurrences import gated_delta, kda, lightning, mamba1, mamba2, short_conv
from kvroof.engine.delta import delta_parts
from kvroof.ground.errors import Unsupported
from kvroof.spec.recurrent import Recurrent


class Size(NamedTuple):
    """How small: the residual, the width of a head, and how a width goes over to the new residual."""

    hidden: int
    head_dim: int
    inner: Callable[[int], int]


def narrow_recurrent(spec: Recurrent, size: Size) -> Recurrent:
    """Return a mixer of the same kind with the same small parameters, narrow.

    Raises:
        Unsupported: A kind that the engine does not run.
    """
    if spec.kind not in _NARROWED:
        raise Unsupported(
            f"the engine has no {spec.kind} layer", where="engine", way_out="name another model"
        )
    return _NARROWED[spec.kind](spec, size)


def _shapes(spec: Recurrent) -> dict[str, tuple[int, ...]]:
    return {w.name: w.shape for w in spec.weights}


def _mamba1(spec: Recurrent, size: Size) -> Recurrent:
    shapes = _shapes(spec)
    return mamba1(
        hidden=size.hidden,
        inner=size.inner(spec.held.conv_channels),
        state_size=size.head_dim,
        kernel=spec.held.conv_kernel,
        rank=max(1, size.hidden // 16),
        conv_bias="conv1d.bias" in shapes,
        bias="in_proj.bias" in shapes,
        norms="dt_layernorm" in shapes,
    )


def _mamba2(spec: Recurrent, size: Size) -> Recurrent:
    shapes = _shapes(spec)
    heads, inner, shared = shapes["heads"][0], shapes["conv1d.x"][0], shapes["conv1d.bc"][0]
    groups = shared * inner // (2 * spec.held.recurrent_elements)
    kept = min(groups, 2)
    return mamba2(
        hidden=size.hidden,
        heads=kept * min(heads // groups, 4),
        head_dim=size.head_dim,
        groups=kept,
        state_size=size.head_dim,
        kernel=spec.held.conv_kernel,
        conv_bias="conv1d.bias" in shapes,
        in_bias="in_proj.bias" in shapes,
        out_bias="out_proj.bias" in shapes,
        norm="norm" in shapes,
    )


def _gated_delta(spec: Recurrent, size: Size) -> Recurrent:
    shapes = _shapes(spec)
    value_heads, value_dim = shapes["heads"][0], shapes["norm"][0]
    key_dim = spec.held.recurrent_elements // (value_heads * value_dim)
    key_heads = (spec.held.conv_channels - value_heads * value_dim) // (2 * key_dim)
    width = size.head_dim
    return gated_delta(
        {w.name: delta_parts(w.name) for w in spec.projections[:-1]},
        hidden=size.hidden,
        key_heads=2,
        value_heads=2 * (value_heads // key_heads),
        key_dim=width,
        value_dim=max(2, width * value_dim // key_dim),
        kernel=spec.held.conv_kernel,
        out=spec.projections[-1].name,
    )


def _kda(spec: Recurrent, size: Size) -> Recurrent:
    low_rank = "f_a_proj" in _shapes(spec)
    width, kernel = size.head_dim, spec.held.conv_kernel
    return kda(hidden=size.hidden, heads=2, head_dim=width, kernel=kernel, low_rank=low_rank)


def _lightning(spec: Recurrent, size: Size) -> Recurrent:
    return lightning(hidden=size.hidden, heads=4, head_dim=size.head_dim)


def _short_conv(spec: Recurrent, size: Size) -> Recurrent:
    bias = "conv.bias" in _shapes(spec)
    return short_conv(hidden=size.hidden, kernel=spec.held.conv_kernel, bias=bias)


_NARROWED: dict[str, Callable[[Recurrent, Size], Recurrent]] = {
    "mamba1": _mamba1,
    "mamba2": _mamba2,
    "gdn": _gated_delta,
    "kda": _kda,
    "lightning": _lightning,
    "short_conv": _short_conv,
}
