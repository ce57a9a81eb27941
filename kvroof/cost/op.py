"""One operation of a forward pass and what it costs, before any machine is named."""

from __future__ import annotations

from typing import Literal, TypeAlias

from kvroof.ground.record import record, static

Kind: TypeAlias = Literal["gemm", "attention", "moe", "scan", "lookup", "vector", "collective", "host"]
Place: TypeAlias = Literal["device", "host"]
Collective: TypeAlias = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"]


@record
class Op:
    """The cost of one execution on one rank; a step executes it `count` times.

    FLOPs count a multiply-add as two. HBM traffic is kept apart by what is read: weights once per
    step, cached keys and values per sequence, activations in and out. `compute` lists the arithmetic
    to run in, first choice first. `place` is where its weights or its cache live. A collective moves a
    message of `message_bytes` among `ranks` that are `stride` devices apart; in an all-to-all each row of it
    chooses `choices` destinations, several of which may lie on one rank.

    What a calibration needs besides: `family` names the kernels it is measured with, `items` are the work
    items they are cut into, `depth` the chain of the longest one (cached tokens, or the inner dimension),
    `scores` the exponentials of softmax.
    """

    name: str = static()
    kind: Kind = static()
    count: float
    flops: float = 0
    weight_bytes: float = 0
    kv_bytes: float = 0
    activation_bytes: float = 0
    message_bytes: float = 0
    collective: Collective | None = static(default=None)
    ranks: int = static(default=1)
    stride: int = static(default=1)
    choices: float = 0
    compute: tuple[str, ...] = static(default=("bf16", "fp16", "fp32"))
    launches: float = 1
    family: str = static(default="")
    items: float = 0
    depth: float = 0
    scores: float = 0
    place: Place = static(default="device")

    @property
    def hbm_bytes(self) -> float:
        """All HBM traffic of one execution."""
        return self.weight_bytes + self.kv_bytes + self.activation_bytes


BY_BATCH = (
    "flops",
    "weight_bytes",
    "kv_bytes",
    "activation_bytes",
    "message_bytes",
    "items",
    "depth",
    "scores",
)
"""The numbers of an operation that depend on the batch."""
