"""What is asked of a deployment over time: requests with their arrivals."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from kvroof.ground.errors import BadInput
from kvroof.ground.record import record, static


@record
class Request:
    """One request: when it arrives, its prompt and its output.

    `block_hashes` names the prompt's blocks of `hash_block_size` tokens, the last one perhaps partial, as
    traces give them: two requests share exactly the blocks of their longest common run of leading names.
    None means that nothing is known of its content, so that nothing is shared. Where the names go on over the
    output (`names_output`), later prompts that hold it share its blocks too.
    """

    arrival_s: float
    input_tokens: int
    output_tokens: int
    block_hashes: tuple[int, ...] | None = static(default=None)
    hash_block_size: int = 512
    names_output: bool = static(default=False)

    @property
    def named_tokens(self) -> int:
        """Tokens whose blocks are named once they are full: the last output token is never run."""
        return self.input_tokens + (self.output_tokens - 1 if self.names_output else 0)


def poisson(
    rate_per_s: float,
    requests: int,
    *,
    input_tokens: int | Sequence[int],
    output_tokens: int | Sequence[int],
    seed: int = 0,
) -> tuple[Request, ...]:
    """Return requests with exponential gaps between arrivals, the first one gap after time 0.

    The same seed gives the same arrivals whatever the lengths are, and arrivals at another rate are the
    same ones on another scale of time.

    Args:
        rate_per_s: Mean arrivals per second.
        requests: How many.
        input_tokens: Prompt tokens: of every request, or one number for each.
        output_tokens: Output tokens, likewise.
        seed: Of the arrivals.

    Raises:
        BadInput: A rate or a length that is not positive, or lengths that are not one per request.
    """
    check_arrival_rate(rate_per_s, burst=True)
    inputs, outputs = _each(input_tokens, requests, "--isl"), _each(output_tokens, requests, "--osl")
    source, now, made = random.Random(seed), 0.0, []
    for isl, osl in zip(inputs, outputs, strict=True):
        now += source.expovariate(1.0)
        made.append(Request(arrival_s=now / rate_per_s, input_tokens=isl, output_tokens=osl))
    return tuple(made)


def check_arrival_rate(rate_per_s: float, *, burst: bool = False) -> None:
    """Check that requests can arrive at a rate, with `burst` at an infinite one too: all at once.

    Raises:
        BadInput: A rate that is not positive.
    """
    if not (0 < rate_per_s < math.inf or (burst and rate_per_s == math.inf)):
        raise BadInput(f"{rate_per_s} is not a positive rate", where="--rate", way_out="requests per second")


def arrival_rate(requests: Sequence[Request]) -> float | None:
    """Return the mean rate of arrivals, one over the mean gap; None where all come at once."""
    times = [r.arrival_s for r in requests]
    span = max(times, default=0.0) - min(times, default=0.0)
    return (len(times) - 1) / span if span else None


def check_length(tokens: int, where: str) -> None:
    """Check that a prompt or an output can be so long.

    Raises:
        BadInput: Not a token.
    """
    if tokens < 1:
        raise BadInput(f"{tokens} is not a positive number of tokens", where=where)


def check_requests(requests: Sequence[Request]) -> None:
    """Check that every request can be asked.

    Raises:
        BadInput: A time or a length that cannot be, or fewer block hashes than whole blocks.
    """
    for number, r in enumerate(requests):
        where = f"request {number}"
        if not 0 <= r.arrival_s < float("inf"):
            raise BadInput(f"{r.arrival_s} is not a time", where=where, key="arrival_s")
        if r.input_tokens < 1 or r.output_tokens < 1:
            raise BadInput(
                f"{r.input_tokens} prompt and {r.output_tokens} output tokens",
                where=where,
                way_out="both are at least 1",
            )
        if r.block_hashes is not None and len(r.block_hashes) < r.named_tokens // r.hash_block_size:
            raise BadInput(
                f"{len(r.block_hashes)} hashes for {r.named_tokens} tokens",
                where=where,
                key="block_hashes",
                way_out=f"give one for each block of {r.hash_block_size} tokens",
            )


def _each(length: int | Sequence[int], requests: int, where: str) -> Sequence[int]:
    if isinstance(length, int):
        check_length(length, where)
        return [length] * requests
    if len(length) != requests:
        raise BadInput(f"{len(length)} lengths for {requests} requests", where=where)
    return length
