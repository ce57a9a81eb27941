"""The whole model as plain data: models, machines and calibrations, for a program that is not Python.

`kvroof.view.explorer` puts it into a page. Every formula in it is an expression that was traced from the
functions that answer here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias, cast

from kvroof.cost.op import BY_BATCH, Collective
from kvroof.memory.allocators import Allocator
from kvroof.search.expressions import OPERATIONS, Pool
from kvroof.search.machine_tables import (
    KERNEL,
    LINKS,
    PRICED,
    SENT,
    WIRE,
    WORK,
    Asked,
    Collectives,
    kernel_forms,
    machine_table,
)
from kvroof.search.model_tables import CACHED, RANKS, SAID, WEIGHTS, model_table
from kvroof.serving.latency import MAX_POINTS
from kvroof.spec.architecture import Architecture
from kvroof.spec.hardware import Hardware

Data: TypeAlias = dict[str, Any]


def explorer_tables(
    models: Iterable[tuple[str, Architecture]],
    machines: Iterable[tuple[str, Hardware]],
) -> Data:
    """Return models and machines as data that can be put to JSON, any model with any machine.

    Args:
        models: Architectures, each with the name that the command line knows it by.
        machines: Machines, likewise.
    """
    traced = [model_table(name, model) for name, model in models]
    asked = Asked(
        compute=tuple(sorted(_said(traced, "compute"))),
        families=tuple(sorted(_said(traced, "family") - {"collective"})),
        collectives=cast(tuple[Collective, ...], tuple(sorted(_said(traced, "collective")))),
        ranks=RANKS,
    )
    collectives, pool = Collectives(), Pool()
    tables = [machine_table(name, machine, asked, collectives, pool) for name, machine in machines]
    return {
        "operations": OPERATIONS,
        "columns": {
            "op": (*SAID, *BY_BATCH),
            "work": WORK,
            "kernel": KERNEL,
            "priced": PRICED,
            "wire": WIRE,
            "links": LINKS,
            "sent": SENT,
        },
        "choices": {"weights": WEIGHTS, "cached": CACHED},
        "block_size": Allocator().block_size,
        "max_points": MAX_POINTS,
        "models": traced,
        "machines": tables,
        "pool": pool.parts(),
        "kernel_forms": kernel_forms(),
        "collective_forms": collectives.table(),
    }


def _said(models: Iterable[Data], column: str) -> set[str]:
    """Return everything that the operations of some models say in a column."""
    at = SAID.index(column)
    found: set[str | None] = set()
    for model in models:
        pool = model["pool"]
        for laid_out in model["ranks"].values():
            for phase in (*laid_out["prefill"], laid_out["decode"]):
                cells = {pool[row][at] for rows in phase.values() for row in rows}
                for cell in (pool[number] for number in cells):
                    found.update(next(iter(cell.values())) if isinstance(cell, dict) else [cell])
    return {name for name in found if name is not None}
