"""A model as data: what its operations, weights and caches come to, as expressions over a batch.

Nothing is written down here that `cost` and `memory` do not say: they are run on symbols. Each expression
is a line of the model's tape, over the inputs `seqs` and `tokens`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias, get_args

from kvroof.cost.forward import forward
from kvroof.cost.op import BY_BATCH, Op
from kvroof.cost.products import Run
from kvroof.ground.dtypes import DTYPES
from kvroof.ground.errors import BadInput
from kvroof.ground.numeric import ceil_div
from kvroof.ground.record import record
from kvroof.memory.allocators import Allocator
from kvroof.memory.kv import fixed_bytes, growth_bytes, kinds
from kvroof.memory.layers import caches, crosses
from kvroof.search.expressions import Pool, Tape
from kvroof.spec.architecture import Architecture
from kvroof.spec.attention import Execution
from kvroof.spec.cache import Cache
from kvroof.spec.parallel import Layout, check_layout
from kvroof.spec.params import params_active, params_total, parse_formats, weight_bytes
from kvroof.spec.precision import KVFormat, parse_kv_format
from kvroof.spec.weights import WeightFormats
from kvroof.spec.workload import Step, decode, prefill

Data: TypeAlias = dict[str, Any]

RANKS = (1, 2, 4, 8, 16)
"""Tensor-parallel ranks that are offered where the model divides into them."""
WEIGHTS = ("auto", "bf16", "fp8", "int4", "nvfp4")
"""Storage of the layers' matrices."""
CACHED = ("auto", "bf16", "fp8", "q8_0", "nvfp4")
"""Dtypes of the KV cache."""
INPUTS = ("seqs", "tokens")
SAID = ("name", "kind", "collective", "count", "launches", "compute", "family")
"""What an operation says as it is; `compute` joins its choices of arithmetic with slashes."""
Rows: TypeAlias = list[list[Any]]


@record
class Traced:
    """A model on its tape, with the storages it may be asked for, and a pool of rows and their cells."""

    model: Architecture
    tape: Tape
    weights: tuple[WeightFormats | None, ...]
    cached: tuple[KVFormat, ...]
    pool: Pool


def model_table(name: str, model: Architecture) -> Data:
    """Return a model as plain data, for every choice of ranks, storage and phase.

    Args:
        name: What it is called.
        model: The architecture.
    """
    tape = Tape(INPUTS)
    traced = Traced(
        model=model,
        tape=tape,
        weights=tuple(parse_formats(dtype, model) for dtype in WEIGHTS),
        cached=tuple(parse_kv_format(dtype, model) for dtype in CACHED),
        pool=Pool(),
    )
    laid_out = {str(tp): _laid_out(traced, Layout(tp=tp)) for tp in RANKS if _divides(model, tp)}
    return {
        "name": name,
        "params_total": params_total(model),
        "params_active": params_active(model),
        "max_tokens": model.max_position_embeddings,
        "weights_auto": model.formats.name,
        "cached_auto": traced.cached[0].name,
        "notes": [*model.notes, *_left_out(model)],
        "ranks": laid_out,
        "pool": traced.pool.parts(),
        "kinds": _kinds(traced),
        "growth_bytes": [tape.line(growth_bytes(model, tape.symbol("tokens"), kv)) for kv in traced.cached],
        "tape": tape.program(),
    }


def _left_out(model: Architecture) -> Iterator[str]:
    """Yield what an estimate can be told and the tables leave out."""
    if model.towers:
        yield "towers take memory; their own time is left out (--patches)"
    if crosses(model):
        yield "cross-attention keeps no encoder tokens (--encoder-tokens)"


def _divides(model: Architecture, tp: int) -> bool:
    try:
        check_layout(model, Layout(tp=tp))
    except BadInput:
        return False
    return True


def _laid_out(traced: Traced, layout: Layout) -> Data:
    """Return what one rank of a layout holds and runs."""
    model, tape = traced.model, traced.tape
    seqs, tokens = tape.symbol("seqs"), tape.symbol("tokens")
    first, later = prefill(seqs, tokens), decode(seqs, tokens)
    absorbed, expanded = (
        _runner(traced, layout, first, latent, True)(0, 0) for latent in get_args(Execution)
    )
    forms: tuple[Execution, ...] = ("absorbed",) if absorbed == expanded else ("absorbed", "expanded")
    return {
        "weights_bytes": [weight_bytes(model, formats, layout) for formats in traced.weights],
        "held_bytes": [tape.line(_held(model, kv, layout.tp, tape)) for kv in traced.cached],
        "prefill": [_rows(traced, layout, first, latent) for latent in forms],
        "decode": _rows(traced, layout, later, "absorbed"),
    }


def _rows(traced: Traced, layout: Layout, step: Step, latent: Execution) -> dict[str, list[int]]:
    """Return the operations of a step, of a `bound` and `calibrated`: rows of `SAID` and `BY_BATCH`.

    Rows and their cells stand in the pool, here are their numbers. A cell that a choice changes is a mapping
    from the axis (`weights`, `cached`) to its values in the order of the choices. No cell depends on both, so
    that each axis is run by itself.
    """
    tables = {}
    for name, fused in (("bound", True), ("calibrated", False)):
        run = _runner(traced, layout, step, latent, fused)
        axes = {
            "weights": [run(choice, 0) for choice in range(len(traced.weights))],
            "cached": [run(0, choice) for choice in range(len(traced.cached))],
        }
        tables[name] = [
            traced.pool.number([traced.pool.number(_cell(r, c, axes)) for c in range(len(row))])
            for r, row in enumerate(run(0, 0))
        ]
    return tables


def _runner(
    traced: Traced, layout: Layout, step: Step, latent: Execution, fused: bool
) -> Callable[[int, int], Rows]:
    """Return what gives the rows of a step for a choice of weights and cache, each distinct one run once."""
    seen: dict[tuple[int, int], Rows] = {}

    def run(weights: int, cached: int) -> Rows:
        key = traced.weights.index(traced.weights[weights]), traced.cached.index(traced.cached[cached])
        if key not in seen:
            how = Run(
                formats=traced.weights[weights],
                kv_format=traced.cached[cached],
                activation=DTYPES[traced.model.dtype],
                layout=layout,
                latent=latent,
                fused=fused,
            )
            seen[key] = [_row(op, traced.tape) for op in forward(traced.model, step, how)]
        return seen[key]

    return run


def _row(op: Op, tape: Tape) -> list[Any]:
    said = {"compute": "/".join(op.compute), "family": op.family or op.kind}
    return [
        *(said.get(name, getattr(op, name)) for name in SAID),
        *(tape.line(getattr(op, name)) for name in BY_BATCH),
    ]


def _cell(row: int, column: int, axes: dict[str, list[Rows]]) -> Any:
    """Return what a cell holds: one value, or the values along the axis that changes it."""
    found = {axis: [rows[row][column] for rows in tables] for axis, tables in axes.items()}
    changing = {axis: values for axis, values in found.items() if values.count(values[0]) < len(values)}
    if len(changing) > 1:
        name = (*SAID, *BY_BATCH)[column]
        raise ArithmeticError(f"{name} of operation {row} depends on {' and '.join(changing)}")
    return changing or found["weights"][0]


def _kinds(traced: Traced) -> list[Data]:
    """Return the layers by kind: what one sequence keeps in them, for each dtype of the cache."""
    model, tape = traced.model, traced.tape
    found: list[Data] = []
    for at, kind in enumerate(kinds(model, traced.cached[0])):
        growing = () if kind.state_bytes else caches(model)
        own = [(c, n) for c, n in growing if (c.kind, c.reach.window) == (kind.kind, kind.window)]
        payload = [sum(_kept_bytes(c, n, kv, tape) for c, n in own) for kv in traced.cached]
        found.append(
            {
                "kind": kind.kind,
                "layers": kind.layers,
                "window": kind.window,
                "state_bytes": kind.state_bytes,
                "bytes_per_token": [kinds(model, kv)[at].bytes_per_token for kv in traced.cached],
                "payload_bytes": [tape.line(size + kind.state_bytes) for size in payload],
            }
        )
    return found


def _kept_bytes(cache: Cache, layers: int, kv: KVFormat, tape: Tape, tp: int = 1, block: int = 1) -> Any:
    """Return the bytes that one sequence keeps in `layers` on one rank, in whole blocks."""
    kept = cache.reach.kept(tape.symbol("tokens"))
    return layers * (ceil_div(kept, block) * block) * kv.token_bytes(cache, tp)


def _held(model: Architecture, kv: KVFormat, tp: int, tape: Tape) -> Any:
    """Return what is allocated for the batch on one of `tp` ranks, in the usual blocks."""
    block = Allocator().block_size
    growing = sum(_kept_bytes(cache, layers, kv, tape, tp, block) for cache, layers in caches(model))
    return tape.symbol("seqs") * (growing + fixed_bytes(model, tp=tp))
