"""Programs that multiply and move: matrices of decoders' shapes, copies, and what is elementwise."""

from __future__ import annotations

from functools import partial
from math import isqrt
from typing import Any

from kvroof.calibration import work
from kvroof.calibration.local.bench import Bench, Call, copies, pool
from kvroof.cost.forward import ELEMENTWISE_LAUNCHES, ELEMENTWISE_ROWS
from kvroof.ground.dtypes import DTYPES

ARRAYS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
"""What JAX calls the dtypes that products are measured in."""
MOST_COPIES = 8
MOST_FLOPS = 8e9
"""FLOPs of a program beyond which it multiplies no further matrix."""
INNER_RATIO = 3.5
"""Width of the MLP over the residual's, as Llama has it."""
ELEMENTWISE_LAYERS = 2
TINY = 1e-30
"""What ties a product to the one before it, and changes no number."""


def product(m: int, k: int, n: int, dtype: str, llc_bytes: float) -> Bench:
    """Return `[m, k] x [k, n]` over several matrices, one after another, as in the layers of a step."""
    size = DTYPES[dtype].row_bytes(1)
    did = work.gemm(m, n, k, size, size, size)
    inner = max(copies(k * n * size, llc_bytes, MOST_COPIES), 2)
    inner = max(min(inner, int(MOST_FLOPS // did.flops)), 1)
    return Bench(
        f"gemm.{dtype}", f"{m} x {k} x {n}", dtype, did, inner, partial(_product, m, k, n, dtype, inner)
    )


def _product(m: int, k: int, n: int, dtype: str, inner: int) -> Call:
    import jax
    import jax.numpy as jnp

    rows = pool(m * k, ARRAYS[dtype]).reshape(m, k)
    weights = [pool(k * n, ARRAYS[dtype], seed).reshape(k, n) for seed in range(inner)]

    @jax.jit
    def chain(poison: Any, rows: Any, weights: Any) -> Any:
        rows, outs = rows * poison.astype(rows.dtype), []
        for weight in weights:
            out = jnp.matmul(rows, weight, precision="highest")
            rows = rows + out[:1, :1] * jnp.asarray(TINY, rows.dtype)
            outs.append(out)
        return outs[-1].reshape(-1)[:8], outs

    return lambda poison: chain(poison, rows, weights)


def copy(elements: int) -> Bench:
    """Return a pass that reads and writes an array in place."""
    moved = 2.0 * 4 * elements
    did = work.Work(0.0, moved, 0.0, 0.0, 0.0)
    return Bench("copy", f"{4 * elements:,} B in place", "fp32", did, 1, partial(_copy, elements))


def _copy(elements: int) -> Call:
    import jax

    @partial(jax.jit, donate_argnums=1)
    def moved(poison: Any, array: Any) -> Any:
        array = array * poison
        return array[:8], array

    held = [pool(elements, "float32")]

    def call(poison: float) -> Any:
        answer, held[0] = moved(poison, held[0])
        return answer, held[0]

    return call


def read(elements: int) -> Bench:
    """Return a pass that reads an array and keeps a sum of it."""
    did = work.Work(0.0, 4.0 * elements, 0.0, 0.0, 0.0)
    return Bench("read", f"{4 * elements:,} B summed", "fp32", did, 1, partial(_read, elements))


def _read(elements: int) -> Call:
    import jax

    array = pool(elements, "float32").reshape(64, -1)
    summed = jax.jit(lambda poison, array: (array * poison).sum(axis=1))
    return lambda poison: summed(poison, array)


def row(elements: int) -> Bench:
    """Return one row through square matrices of about `elements`: what it takes is reading them."""
    side = isqrt(elements)
    once = product(1, side, side, "fp32", 0.0)
    return once._replace(family="read", shape=f"matrices of {4 * side * side:,} B, each by one row")


def elementwise(tokens: int, hidden: int, dtype: str) -> Bench:
    """Return what a layer does between its products: norms, rotary embedding, gate, and the two sums.

    One of the `ELEMENTWISE_LAUNCHES` kernels that a step is priced with takes a third of it.
    """
    size = DTYPES[dtype].row_bytes(1)
    did = work.Work(0.0, float(ELEMENTWISE_ROWS * tokens * hidden * size), 0.0, 0.0, 0.0)
    inner = ELEMENTWISE_LAUNCHES * ELEMENTWISE_LAYERS
    make = partial(_elementwise, tokens, hidden, dtype)
    return Bench("elementwise", f"{tokens} x {hidden}", dtype, did, inner, make)


def _elementwise(tokens: int, hidden: int, dtype: str) -> Call:
    import jax
    import jax.numpy as jnp

    from kvroof.engine.layers import rms_norm
    from kvroof.engine.rotary import Rotary

    rows = pool(tokens * hidden, ARRAYS[dtype]).reshape(1, tokens, hidden)
    inner = int(INNER_RATIO * hidden)
    wide = pool(tokens * 2 * inner, ARRAYS[dtype], 1).reshape(1, tokens, 2 * inner)
    scale = pool(hidden, ARRAYS[dtype], 2)
    apart: Any = jax.lax.optimization_barrier

    @jax.jit
    def layers(poison: Any, rows: Any, wide: Any, scale: Any) -> Any:
        rows = rows * poison.astype(rows.dtype)
        rotary = Rotary(jnp.arange(tokens, dtype=jnp.int32)[None])
        for _ in range(ELEMENTWISE_LAYERS):
            normed = apart(rms_norm(rows, scale))
            turned = apart(rotary(normed.reshape(1, tokens, -1, hidden // 8)).reshape(rows.shape))
            rows = apart(rows + turned)
            normed = apart(rms_norm(rows, scale))
            gate, up = jnp.split(wide + normed[..., :1] * jnp.asarray(TINY, rows.dtype), 2, axis=-1)
            fed = apart(jax.nn.silu(gate) * up)
            rows = apart(rows + fed[..., :hidden])
        return rows.reshape(-1)[:8], rows

    return lambda poison: layers(poison, rows, wide, scale)


def empty_call() -> Bench:
    """Return a jitted call that computes next to nothing: what it takes is the dispatch."""
    did = work.Work(0.0, 0.0, 0.0, 0.0, 0.0)
    return Bench("dispatch", "an empty call", "fp32", did, 1, _empty_call)


def _empty_call() -> Call:
    import jax

    array = pool(8, "float32")
    added = jax.jit(lambda poison, array: array + poison)
    return lambda poison: added(poison, array)
