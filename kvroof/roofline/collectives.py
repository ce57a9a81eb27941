"""Collectives over tiers of links: what a group of ranks crosses, what each sends, how long it takes.

A group that does not fit the domain of the fast links works in two tiers: among the ranks of a domain, and
between domains, where every device has a link of its own and carries its share of the message.
"""

from __future__ import annotations

from kvroof.cost.formulas import reached_ranks
from kvroof.cost.op import Op
from kvroof.ground.errors import Unsupported
from kvroof.ground.numeric import ceil_div, maximum
from kvroof.ground.record import record, static
from kvroof.ground.units import format_decimal
from kvroof.roofline.efficiency import Wire
from kvroof.spec.hardware import Hardware, Link

PCIE_DEVICES = 8
"""Devices of one host that reach each other over PCIe where there is no other link."""


@record
class Tier:
    """`ranks` that reach each other over one link."""

    link: Link
    ranks: int = static()


def ring_passes(collective: str) -> int:
    """Return how often a ring of two or more carries the message round, a whole message counting as two.

    An all-reduce scatters, then gathers; a message to a neighbour crosses once, as half of a ring of two.
    """
    return 2 if collective in ("all_reduce", "send") else 1


def ring_bytes(collective: str, message_bytes: float, ranks: float) -> float:
    """Return the bytes each rank sends in a ring.

    An all-reduce of m bytes over n ranks sends `2 (n - 1) / n m`, an all-gather `(n - 1) / n m` where
    m is the gathered size, as a reduce-scatter and an all-to-all of m bytes a rank do.
    Source: Patarasuk and Yuan 2009; the scaling book's collectives.
    """
    return ring_passes(collective) * (ranks - 1) / ranks * message_bytes


def tiers(hardware: Hardware, ranks: int, stride: int = 1) -> tuple[Tier, ...]:
    """Return the tiers that `ranks` devices, `stride` apart, cross: the fast links first.

    Raises:
        Unsupported: No link among that many devices is known; a rate is not guessed.
    """
    up, out, span = hardware.scale_up, hardware.scale_out, ranks * stride
    if up is None and hardware.host is not None and span <= PCIE_DEVICES:
        return (Tier(link=hardware.host, ranks=ranks),)
    if up is not None and (up.domain is None or span <= up.domain):
        return (Tier(link=up, ranks=ranks),)
    if out is None:
        domain = f"; its {up.name} joins {up.domain}" if up is not None else ""
        raise Unsupported(
            f"no link among {span} devices is known for {hardware.name}{domain}",
            where="--tp",
            way_out="use fewer ranks, or a profile of your own with [scale_up] or [scale_out]",
        )
    near = 1 if up is None else min(ranks, (up.domain or 1) // stride)
    if up is None or near <= 1:
        return (Tier(link=out, ranks=ranks),)
    return Tier(link=up, ranks=near), Tier(link=out, ranks=ceil_div(ranks, near))


def has_link(hardware: Hardware, ranks: int) -> bool:
    """Return whether a link among so many devices is known."""
    try:
        tiers(hardware, ranks)
    except Unsupported:
        return False
    return True


def parts(op: Op, hardware: Hardware) -> tuple[tuple[Tier, float], ...]:
    """Return the message that a collective carries on each tier it crosses.

    A row with several destinations in another domain goes there once and is handed on inside.
    Source: DeepEP's kernels, which forward from RDMA to NVLink.
    """
    crossed, message = tiers(hardware, op.ranks, op.stride), op.message_bytes
    if len(crossed) == 1:
        return ((crossed[0], message),)
    near, far = crossed
    if op.collective == "send":
        return ((far, message),)
    if op.collective == "all_to_all":
        once = 1.0
        if op.choices:
            once = reached_ranks(far.ranks, op.choices) / reached_ranks(op.ranks, op.choices)
        return (near, message * near.ranks / op.ranks), (far, message * once)
    return (near, message), (far, message / near.ranks)


def sent_bytes(op: Op, hardware: Hardware) -> float:
    """Return the bytes each rank sends in one execution of a ring on every tier; 0 for other operations."""
    if op.collective is None:
        return 0
    return sum(ring_bytes(op.collective, size, tier.ranks) for tier, size in parts(op, hardware))


def collective_s(op: Op, hardware: Hardware, wire: Wire) -> float:
    """Return the seconds of one collective: tier after tier, an all-to-all on both at once."""
    assert op.collective is not None
    passes = ring_passes(op.collective)
    each = [
        wire.seconds(
            size,
            tier.ranks,
            tier.link.bytes_per_s,
            passes,
            in_switch=tier.link.reduces_in_switch and op.collective == "all_reduce",
        )
        for tier, size in parts(op, hardware)
    ]
    if len(each) == 2 and op.collective == "all_to_all":
        return maximum(each[0], each[1])
    return sum(each)


def links_used(hardware: Hardware, ranks: int, stride: int = 1) -> str:
    """Return the names and rates of the links that a group crosses, for people.

    Raises:
        Unsupported: No link among that many devices is known.
    """
    return " and ".join(
        f"{tier.link.name} at {format_decimal(tier.link.bytes_per_s, 'B/s')}"
        for tier in tiers(hardware, ranks, stride)
    )
