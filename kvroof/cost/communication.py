"""What ranks send one another, as operations."""

from __future__ import annotations

from kvroof.cost.formulas import reached_ranks
from kvroof.cost.op import Collective, Op


def _collective(
    name: str,
    kind: Collective,
    count: float,
    message_bytes: float,
    ranks: int,
    stride: int = 1,
    choices: float = 0,
) -> Op:
    return Op(
        name=name,
        kind="collective",
        count=count,
        message_bytes=message_bytes,
        collective=kind,
        ranks=ranks,
        stride=stride,
        choices=choices,
    )


def reduced(name: str, count: float, message_bytes: float, ranks: int) -> Op:
    """Return an all-reduce of a message that every rank has its own summand of."""
    return _collective(name, "all_reduce", count, message_bytes, ranks)


def gathered(name: str, count: float, message_bytes: float, ranks: int, stride: int = 1) -> Op:
    """Return an all-gather; `message_bytes` is what every rank has in the end."""
    return _collective(name, "all_gather", count, message_bytes, ranks, stride)


def scattered(name: str, count: float, message_bytes: float, ranks: int, stride: int = 1) -> Op:
    """Return a reduce-scatter; `message_bytes` is what every rank has a summand of."""
    return _collective(name, "reduce_scatter", count, message_bytes, ranks, stride)


def exchanged(name: str, count: float, row_bytes: float, ranks: int, stride: int, choices: float) -> Op:
    """Return an all-to-all of `row_bytes`, each row of which goes to the ranks of its `choices`."""
    message = row_bytes * reached_ranks(ranks, choices)
    return _collective(name, "all_to_all", count, message, ranks, stride, choices)


def passed_on(name: str, count: float, message_bytes: float, stride: int) -> Op:
    """Return a message from one rank to the one `stride` devices further."""
    return _collective(name, "send", count, message_bytes, 2, stride)
