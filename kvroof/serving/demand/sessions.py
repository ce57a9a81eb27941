"""Conversations: sessions of several turns, each of which asks all that was said before and something new."""

from __future__ import annotations

import random

from kvroof.ground.errors import BadInput
from kvroof.ground.numeric import ceil_div
from kvroof.serving.demand.requests import Request, check_arrival_rate, check_length

MAX_TURNS = 1000


def sessions(
    rate_per_s: float,
    requests: int,
    *,
    turns: int,
    think_s: float,
    input_tokens: int,
    output_tokens: int,
    block_size: int = 16,
    seed: int = 0,
) -> tuple[Request, ...]:
    """Return the first requests, in order of arrival, of sessions that begin at random moments.

    A turn comes an exponential time of mean `think_s` after the one before it came, whether that has been
    answered or not. Its prompt is the prompt and the output of the turn before and `input_tokens` more. The
    blocks of a session are named, those of its outputs too, so that a cache that still has them is hit.

    Args:
        rate_per_s: Mean requests per second, turns of all sessions together, once sessions of every age run.
        requests: How many; sessions that have begun are cut off there.
        turns: Turns of a session.
        think_s: Mean seconds from the arrival of a turn to that of the next.
        input_tokens: New prompt tokens of a turn.
        output_tokens: Output tokens of a turn.
        block_size: Tokens in a named block.
        seed: Of the arrivals.

    Raises:
        BadInput: A rate, a time or a number that cannot be.
    """
    check_arrival_rate(rate_per_s, burst=True)
    check_length(input_tokens, "--isl")
    check_length(output_tokens, "--osl")
    if not 1 <= turns <= MAX_TURNS:
        raise BadInput(f"{turns} is not between 1 and {MAX_TURNS}", where="--turns")
    if not 0 < think_s < float("inf"):
        raise BadInput(f"{think_s} s is not a time to think", where="--think")
    source, begins, made = random.Random(seed), 0.0, []
    for session in range(requests):
        begins += source.expovariate(rate_per_s / turns)
        now = begins
        for turn in range(turns):
            made.append((now, session, turn))
            now += source.expovariate(1 / think_s)
    made.sort()
    return tuple(
        _turn(now, session, turn, input_tokens, output_tokens, block_size)
        for now, session, turn in made[:requests]
    )


def turn_tokens(turn: int, input_tokens: float, output_tokens: float) -> float:
    """Return the prompt tokens of a turn, counted from 0."""
    return (turn + 1) * input_tokens + turn * output_tokens


def _turn(now: float, session: int, turn: int, isl: int, osl: int, block_size: int) -> Request:
    prompt = int(turn_tokens(turn, isl, osl))
    first = session << 32
    return Request(
        arrival_s=now,
        input_tokens=prompt,
        output_tokens=osl,
        block_hashes=tuple(range(first, first + ceil_div(prompt + osl, block_size))),
        hash_block_size=block_size,
        names_output=True,
    )
