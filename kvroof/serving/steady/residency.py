"""How long a session's prefix stays in a cache that evicts what was used longest ago, and what that is worth.

Every turn makes its session's prefix the newest. It is still there at the next turn if that comes within a
characteristic time T, the time in which as many other tokens are touched as the cache holds. T is one number
for all (Che's approximation): the prefixes touched within T, each counted once, are what the cache holds,

    capacity = sum over turns of  session rate x tokens kept after the turn x E[min(T, time to the next)]

where nothing comes after the last turn. With exponential times between turns E[min(T, X)] is
`think (1 - exp(-T / think))`, and a later turn finds its prefix with probability `1 - exp(-T / think)`.

Source: Che, Tung and Wang, IEEE JSAC 20(7), 2002; Fricker, Robert and Roberts, ITC 24, 2012, on why it is
near even where prefixes differ.
"""

from __future__ import annotations

import math

from kvroof.ground.errors import BadInput
from kvroof.ground.record import record
from kvroof.serving.demand.sessions import turn_tokens

PRECISION = 1e-9


@record
class Residency:
    """A cache of prefixes. `time_s` is how long one stays unused.

    `resident` is the chance that a later turn finds its prefix, `prefix_hit` the share of all prompt tokens
    that are found.
    """

    time_s: float
    resident: float
    prefix_hit: float


def residency(
    capacity_tokens: float,
    rate_per_s: float,
    *,
    turns: int,
    think_s: float,
    input_tokens: float,
    output_tokens: float,
) -> Residency:
    """Return how long prefixes of sessions stay in a cache, and what is found of them.

    Args:
        capacity_tokens: Tokens that the cache holds beside the requests that run.
        rate_per_s: Requests per second, turns of all sessions together.
        turns: Turns of a session.
        think_s: Mean seconds between two turns of it, exponential.
        input_tokens: New prompt tokens of a turn.
        output_tokens: Output tokens of a turn; their KV is kept too.

    Raises:
        BadInput: A capacity, a rate, a time or a number that cannot be.
    """
    for value, where in ((rate_per_s, "--rate"), (think_s, "--think"), (float(turns), "--turns")):
        if not 0 < value < math.inf:
            raise BadInput(f"{value} is not a positive number", where=where)
    if not 0 <= capacity_tokens < math.inf:
        raise BadInput(f"{capacity_tokens} tokens are no capacity", where="capacity_tokens")
    prompts = [turn_tokens(turn, input_tokens, output_tokens) for turn in range(turns)]
    kept = [prompt + output_tokens - 1 for prompt in prompts]
    begun = rate_per_s / turns

    def held(time_s: float) -> float:
        return begun * (sum(kept[:-1]) * think_s * -math.expm1(-time_s / think_s) + kept[-1] * time_s)

    time_s = 0.0
    if capacity_tokens >= 1:  # less than a token holds nothing
        most_s = capacity_tokens / (begun * kept[-1]) * (1 + PRECISION)
        from scipy.optimize import brentq  # type: ignore[import-untyped, unused-ignore]

        time_s = float(brentq(lambda t: held(t) - capacity_tokens, 0.0, most_s, xtol=PRECISION * most_s))
    resident = -math.expm1(-time_s / think_s)
    return Residency(
        time_s=time_s,
        resident=resident,
        prefix_hit=resident * sum(kept[:-1]) / sum(prompts),
    )
