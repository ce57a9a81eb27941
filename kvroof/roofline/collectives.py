"""Bytes that a collective makes each rank send, and the link that carries them."""

from __future__ import annotations

from kvroof.cost.op import Op
from kvroof.ground.errors import Unsupported
from kvroof.spec.hardware import Hardware, Link


def ring_passes(collective: str) -> int:
    """Return how often a ring carries the message round: an all-reduce scatters, then gathers."""
    return 2 if collective == "all_reduce" else 1


def sent_bytes(op: Op) -> float:
    """Return the bytes each rank sends in one execution of a ring collective; 0 for other operations.

    An all-reduce of m bytes over n ranks sends `2 (n - 1) / n m`, an all-gather `(n - 1) / n m` where
    m is the gathered size. Source: Patarasuk and Yuan 2009; the scaling book's collectives.
    """
    if op.collective is None:
        return 0
    return ring_passes(op.collective) * (op.ranks - 1) / op.ranks * op.message_bytes


def link_for(hardware: Hardware, ranks: int) -> Link:
    """Return the slowest link that a ring over `ranks` devices has to cross.

    Raises:
        Unsupported: No link among that many devices is known; a rate is not guessed.
    """
    up = hardware.scale_up
    if up is not None and (up.domain is None or ranks <= up.domain):
        return up
    if up is None and hardware.host is not None and ranks <= 8:
        return hardware.host
    if hardware.scale_out is not None:
        return hardware.scale_out
    domain = f"; its {up.name} joins {up.domain}" if up is not None else ""
    raise Unsupported(
        f"no link among {ranks} devices is known for {hardware.name}{domain}",
        where="--tp",
        way_out="use fewer ranks, or a profile of your own with [scale_out]",
    )
