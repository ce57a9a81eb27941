"""How a model is executed, and the operations every part of a layer is made of: matrices and vectors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvroof.cost.formulas import matmul_flops
from kvroof.cost.kernels import product_items, weights_kind
from kvroof.cost.op import Kind, Op
from kvroof.ground.dtypes import DTYPES, Dtype
from kvroof.ground.record import record, static
from kvroof.spec.attention import Execution
from kvroof.spec.parallel import ALONE, Layout
from kvroof.spec.precision import HF_STATE, KVFormat, StateFormat
from kvroof.spec.weights import Format, Weight, WeightFormats

FALLBACKS = ("bf16", "fp16", "fp32")
"""What matrices are multiplied in where a chip lacks their own arithmetic, first choice first."""


@record
class Run:
    """How a model is executed: storage, arithmetic, ranks, and the form attention takes.

    `compute` forces one arithmetic for every matrix; None takes each weight's own where the chip has
    it, else the activation's. Latent attention runs `absorbed` or `expanded`. With `io_aware` false
    the score matrices go through HBM. With `fused` false the elementwise kernels between products read and
    write the residual, as engines' do; a bound may not count that. `imbalance` is the load of the busiest
    expert rank over the mean's; None expects it of tokens that choose at random. Of `adapters` LoRA adapters
    of rank `adapter_rank` a batch uses the expected distinct ones.
    """

    formats: WeightFormats | None = None
    kv_format: KVFormat
    state_format: StateFormat = HF_STATE
    activation: Dtype = DTYPES["bf16"]
    compute: str | None = static(default=None)
    layout: Layout = ALONE
    latent: Execution = static(default="absorbed")
    io_aware: bool = static(default=True)
    fused: bool = static(default=True)
    imbalance: float | None = None
    adapters: int = static(default=0)
    adapter_rank: int = static(default=0)

    @property
    def tp(self) -> int:
        """Ranks that split attention and dense layers."""
        return self.layout.tp

    def storing(self, own: WeightFormats) -> Run:
        """Return the run with the checkpoint's own storage, unless another is asked for."""
        return self if self.formats is not None else replace(self, formats=own)

    def stored(self, weight: Weight) -> Format:
        """Return the format in which `weight` is stored."""
        assert self.formats is not None
        return self.formats.of(weight)

    def stored_bytes(self, weight: Weight) -> int:
        """Return the bytes of `weight` on one rank."""
        return self.layout.stored_bytes(weight, self.stored(weight))

    def elements(self, weight: Weight) -> int:
        """Return the parameters of `weight` that one rank multiplies with."""
        part, ranks = self.layout.share(weight)
        return part.elements_per_rank(ranks)

    def widths(self, weight: Weight) -> tuple[float, float]:
        """Return the (input, output) features that one rank multiplies with."""
        part, ranks = self.layout.share(weight)
        return part.widths_per_rank(ranks)

    def row_bytes(self, elements: int = 1) -> int:
        """Return the bytes of a token's `elements` activations."""
        return self.activation.row_bytes(elements)

    def arithmetic(self, stored: Dtype | None = None) -> tuple[str, ...]:
        """Return the arithmetic to multiply in, first choice first."""
        if self.compute is not None:
            return (self.compute,)
        own = (stored.compute,) if stored is not None and stored.compute is not None else ()
        rest = tuple(name for name in (self.activation.name, *FALLBACKS) if name not in own)
        return tuple(dict.fromkeys(own + rest))


def matmul(weight: Weight, count: int, tokens: float, run: Run, kind: Kind = "gemm") -> Op:
    """Return a matrix applied to `tokens` rows: the weights read once, the rows in and out.

    Where the weight is several tensors, each has so many rows of its own.
    """
    stored, (rows, columns) = run.stored(weight), run.widths(weight)
    part, ranks = run.layout.share(weight)
    tensors = part.tensors_per_rank(ranks)
    return Op(
        name=weight.name,
        kind=kind,
        count=count,
        flops=matmul_flops(tokens, run.elements(weight)),
        weight_bytes=run.stored_bytes(weight),
        activation_bytes=tensors * tokens * (rows + columns) * run.row_bytes(),
        compute=run.arithmetic(stored.dtype),
        family=f"gemm.{weights_kind(stored)}",
        items=tensors * product_items(tokens, columns),
        depth=rows,
    )


def fused(name: str, weights: tuple[Weight, ...], count: int, tokens: float, run: Run) -> Op:
    """Return several matrices over the same rows as the one product that engines run: inputs read once."""
    ops = [matmul(weight, count, tokens, run) for weight in weights]
    again = sum(run.widths(weight)[0] for weight in weights[1:])
    read_again = tokens * again * run.row_bytes()
    columns = sum(run.widths(weight)[1] for weight in weights)
    return replace(
        ops[0],
        name=name,
        flops=sum(op.flops for op in ops),
        weight_bytes=sum(op.weight_bytes for op in ops),
        activation_bytes=sum(op.activation_bytes for op in ops) - read_again,
        items=product_items(tokens, columns),
    )


def vectors(name: str, weights: tuple[Weight, ...], count: int, run: Run) -> Iterator[Op]:
    """Yield the reading of norms, biases and other small parameters; their arithmetic is fused."""
    if weights:
        size = sum(run.stored_bytes(w) for w in weights)
        yield Op(name=name, kind="vector", count=count, weight_bytes=size, launches=0)


def matrices(weights: tuple[Weight, ...], count: int, tokens: float, run: Run) -> Iterator[Op]:
    """Yield the matrices among a part's extras: adapters, gates, latent projections.

    Every token runs them, save the experts that a mixture of attentions leaves idle.
    """
    for weight in weights:
        if weight.role not in ("vector", "expert"):
            yield matmul(weight, count, tokens, run)
