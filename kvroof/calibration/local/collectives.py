"""Collectives among the devices that JAX shows: how long a message takes, by its size and by the ranks."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from kvroof.calibration import work
from kvroof.calibration.local.bench import Bench, Call, Timing, pool
from kvroof.calibration.wires import Messages
from kvroof.ground.record import record, static

NAMES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
LEAST_SIZES = 4
"""Sizes of message below which a wire is not fitted."""


@record
class Crossing:
    """A message of a collective among some ranks, and its seconds."""

    collective: str = static()
    ranks: int
    message_bytes: int
    seconds: float


def messages(sizes: tuple[int, ...], devices: int) -> list[Bench]:
    """Return the programs that send each size among 2, 4, ... of the devices, and among all."""
    groups = sorted({2**i for i in range(1, devices.bit_length()) if 2**i <= devices} | {devices})
    return [
        Bench(
            f"link.{name}",
            f"{size:,} B among {ranks}",
            "fp32",
            work.Work(0.0, float(size), float(ranks), 0.0, 0.0),
            1,
            partial(_collective, name, ranks, size),
        )
        for size in sizes
        for ranks in groups
        if ranks > 1
        for name in NAMES
    ]


def crossings(timings: list[Timing]) -> list[Crossing]:
    """Return the timings of collectives as what crossed the links."""
    return [
        Crossing(
            collective=t.bench.family.partition(".")[2],
            ranks=int(t.bench.work.items),
            message_bytes=int(t.bench.work.hbm_bytes),
            seconds=t.seconds,
        )
        for t in timings
        if t.bench.family.startswith("link.")
    ]


def fastest_link(crossed: list[Crossing]) -> float | None:
    """Return the most bytes per second that a rank sent in a gather, None where none was measured."""
    rates = [
        (c.ranks - 1) / c.ranks * c.message_bytes / c.seconds for c in crossed if c.collective == "all_gather"
    ]
    return max(rates, default=None)


def as_messages(crossed: list[Crossing], link_bytes_per_s: float, version: str) -> list[Messages]:
    """Return each collective's measurements as the fit of wires takes them."""
    made = []
    for name in NAMES:
        own = [c for c in crossed if c.collective == name]
        if len({c.message_bytes for c in own}) < LEAST_SIZES:
            continue
        made.append(
            Messages(
                collective=name,
                ranks=np.array([float(c.ranks) for c in own]),
                message_bytes=np.array([float(c.message_bytes) for c in own]),
                seconds=np.array([c.seconds for c in own]),
                link_bytes_per_s=np.full(len(own), link_bytes_per_s),
                version=version,
            )
        )
    return made


def _collective(name: str, ranks: int, size: int) -> Call:
    """Return a call in which each rank sends its part: `size` is the gathered one, or each rank's own."""
    import jax
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as Spec

    lax: Any = jax.lax
    mesh = Mesh(np.array(jax.devices()[:ranks]), ("ranks",))
    per_rank = max(size // 4 // ranks * (1 if name == "all_gather" else ranks), ranks)
    split = Spec("ranks")  # type: ignore[no-untyped-call]

    def body(poison: Any, part: Any) -> Any:
        part = part[0] * poison
        if name == "all_reduce":
            out = lax.psum(part, "ranks")
        elif name == "all_gather":
            out = lax.all_gather(part, "ranks", tiled=True)
        elif name == "reduce_scatter":
            out = lax.psum_scatter(part, "ranks", tiled=True)
        else:
            out = lax.all_to_all(part, "ranks", 0, 0, tiled=True)
        return out[None]

    whole = Spec()  # type: ignore[no-untyped-call]
    shared = jax.shard_map(body, mesh=mesh, in_specs=(whole, split), out_specs=split, check_vma=False)
    array = jax.device_put(pool(per_rank * ranks, "float32").reshape(ranks, -1), NamedSharding(mesh, split))
    everywhere = NamedSharding(mesh, whole)
    run = jax.jit(lambda poison, array: (lambda out: (out[0, :1], out))(shared(poison, array)))
    return lambda poison: run(jax.device_put(poison, everywhere), array)
