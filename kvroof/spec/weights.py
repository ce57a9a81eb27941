"""What a model stores: one `Weight` per tensor, read alike by the count, the bytes and the traffic."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

from kvroof.ground.dtypes import Dtype
from kvroof.ground.numeric import ceil_div, exact_div, shared_by
from kvroof.ground.record import record, static

Role: TypeAlias = Literal[
    "attention", "ffn", "expert", "shared_expert", "router", "embedding", "lm_head", "vector"
]

EXPERTS = "experts."
"""What the names of the routed experts' tensors begin with."""


@record
class Weight:
    """`count` equal tensors of `shape`; a matrix is `(in_features, out_features)`.

    `split` is the largest number of tensor-parallel ranks that divide the tensor among themselves
    (KV heads for a key projection, 1 for what every rank holds whole); beyond it ranks hold copies.
    They take columns each, or rows with `split_rows` (the second matrix of a pair). Of the columns,
    every rank holds `replicated` whole (Mamba-2's B and C where heads share one group). With `dealt` they
    take whole tensors instead: groups, each with rows of its own.
    """

    name: str = static()
    shape: tuple[int, ...]
    count: int = 1
    split: int = 1
    replicated: int = 0
    split_rows: bool = static(default=False)
    dealt: bool = static(default=False)
    role: Role = static()

    @property
    def routed(self) -> bool:
        """Whether a routed expert owns the tensor; each of them has one like it."""
        return self.name.startswith(EXPERTS)

    @property
    def elements(self) -> int:
        """Parameters of all `count` tensors."""
        return self.count * math.prod(self.shape)

    def elements_per_rank(self, tp: int) -> int:
        """Return the parameters that the fullest of `tp` ranks holds; a vocabulary is padded up."""
        shards = shared_by(tp, self.split)
        if self.role in ("embedding", "lm_head"):
            return ceil_div(self.elements, shards)
        whole = self.count * math.prod(self.shape[:-1]) * self.replicated
        return exact_div(self.elements - whole, shards) + whole

    def tensors_per_rank(self, tp: int) -> float:
        """Return how many of the `count` tensors one of `tp` ranks multiplies with."""
        return exact_div(self.count, shared_by(tp, self.split)) if self.dealt else self.count

    def widths_per_rank(self, tp: int) -> tuple[float, float]:
        """Return the (input, output) features of each tensor that one of `tp` ranks multiplies with."""
        shards = 1 if self.dealt else shared_by(tp, self.split)
        rows, columns = self.shape[-2:]
        if self.split_rows:
            return rows / shards, columns
        return rows, (columns - self.replicated) / shards + self.replicated


def out_features(weight: Weight, tp: int) -> int:
    """Return the columns of a matrix on the fullest of `tp` ranks."""
    return ceil_div(weight.shape[-1], 1 if weight.split_rows else min(tp, weight.split))


def in_features(weight: Weight, tp: int) -> int:
    """Return the rows of a matrix on the fullest of `tp` ranks."""
    return ceil_div(weight.shape[-2], min(tp, weight.split) if weight.split_rows else 1)


def vector(name: str, *shape: int, count: int = 1, split: int = 1) -> Weight:
    """Return a norm, bias or other small parameter that no checkpoint quantises."""
    return Weight(name=name, shape=shape, count=count, split=split, role="vector")


WHOLE = 2**40
"""A scale block as long as the matrix: one scale per column, per row or per tensor."""


@record
class Format:
    """How a weight is stored: its elements' dtype, and `scale_bits` of scales per block of a matrix.

    A scale block is `(input features, output features)`; zero points count with the scales.
    """

    dtype: Dtype
    scale_block: tuple[int, int] | None = static(default=None)
    scale_bits: int = 0

    def stored_bytes(self, weight: Weight, tp: int = 1) -> int:
        """Return the bytes of `weight` on the fullest of `tp` ranks, its scales included."""
        size = self.dtype.row_bytes(weight.elements_per_rank(tp))
        if self.scale_block is None or len(weight.shape) < 2:
            return size
        rows, columns = weight.shape[-2:]
        blocks = ceil_div(rows, self.scale_block[0]) * ceil_div(columns, self.scale_block[1])
        matrices = weight.count * math.prod(weight.shape[:-2])
        return size + ceil_div(ceil_div(matrices * blocks, shared_by(tp, weight.split)) * self.scale_bits, 8)


@record
class StoredAs:
    """The format of the weights called `what`, or of that role."""

    what: str = static()
    format: Format


@record
class WeightFormats:
    """The storage format of each weight, by its name, else by its role, else the `default`."""

    name: str = static()
    default: Format
    exceptions: tuple[StoredAs, ...] = ()

    def of(self, weight: Weight) -> Format:
        """Return the format in which `weight` is stored."""
        for key in (weight.name, weight.role):
            for stored in self.exceptions:
                if stored.what == key:
                    return stored.format
        return self.default


def unquantised(dtype: Dtype) -> WeightFormats:
    """Return formats that store every weight in `dtype`."""
    return WeightFormats(name=dtype.name, default=Format(dtype=dtype))


def quantised(name: str, layers: Format, rest: Dtype, roles: tuple[Role, ...]) -> WeightFormats:
    """Return formats that store `roles` as `layers` says and everything else in `rest`."""
    stored = tuple(StoredAs(what=role, format=layers) for role in roles)
    return WeightFormats(name=name, default=Format(dtype=rest), exceptions=stored)


ADAPTED: tuple[Role, ...] = ("attention", "ffn", "shared_expert")
"""Roles of the matrices that have a LoRA adapter; routed experts have none."""
MAX_ADAPTERS = 2**20
LAYER_MATRICES: tuple[Role, ...] = ("attention", "ffn", "expert", "shared_expert")


def stored_as(dtype: Dtype, rest: Dtype) -> WeightFormats:
    """Return formats that store a layer's matrices in `dtype`; a narrow dtype leaves the `rest` alone.

    Embeddings, head, router, norms and biases keep the checkpoint's dtype under a narrow format, as
    quantised checkpoints do.
    """
    if dtype.name in ("bf16", "fp16", "fp32"):
        return unquantised(dtype)
    return quantised(dtype.name, Format(dtype=dtype), rest, LAYER_MATRICES)
