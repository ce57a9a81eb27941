"""KV that is kept beyond HBM: how much each tier holds, and from which length on loading beats recomputing.

Loading `n` cached tokens of a prompt takes `start_s + bytes(n) / bytes_per_s`; computing them takes what the
prefill takes longer without them. Computing grows faster than the length, loading does not: beyond some
length loading wins, unless the tier is slower than `bytes per token x tokens per second` of prefill at every
length that is asked about.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from kvroof.ground.errors import BadInput
from kvroof.ground.numeric import largest
from kvroof.ground.record import record, static
from kvroof.memory.demand import equal_lengths
from kvroof.memory.kv import cache_bytes
from kvroof.roofline.plan import Plan
from kvroof.serving.pools.transfer import layers_sent, seen_s, transferred_bytes
from kvroof.serving.room import room
from kvroof.serving.step_times import PlanTimes, StepTimes
from kvroof.spec.hardware import Hardware


@record
class Tier:
    """A place that keeps KV: its room, and how fast the devices of one replica read it all together."""

    name: str = static()
    capacity_bytes: int
    bytes_per_s: float
    start_s: float = 0.0


@record
class TierAnswer:
    """What a tier does for one model.

    `tokens` of one sequence fit, or `prompts` of the asked length: one copy of each. Loading fills every
    rank, with more ranks than KV heads more than once. `load_s` and `recompute_s` are for the asked length,
    what is seen of the loading beside the suffix. `break_even_tokens` is the shortest prefix from which on
    loading is faster, None where it is not at the asked length; `break_even_bytes_per_s` is the rate at which
    the asked length takes the same, without that overlap.
    """

    tier: Tier
    tokens: int
    prompts: int
    load_s: float
    recompute_s: float
    break_even_tokens: int | None
    break_even_bytes_per_s: float | None


def tier(name: str, capacity_bytes: int, bytes_per_s: float, start_s: float = 0.0) -> Tier:
    """Return a tier, checked.

    Raises:
        BadInput: A room, rate or time that cannot be.
    """
    if capacity_bytes < 0 or not 0 < bytes_per_s < math.inf or not 0 <= start_s < math.inf:
        raise BadInput("a tier has room, a rate and a time to its first byte", where=name)
    return Tier(name=name, capacity_bytes=capacity_bytes, bytes_per_s=bytes_per_s, start_s=start_s)


def hbm_tier(plan: Plan, prefix: int, *, utilization: float = 0.9, reserve_bytes: int = 0) -> Tier:
    """Return the memory beside the weights as a tier: nothing has to be loaded from it.

    Its room is that of the prompts of `prefix` tokens that the ledger admits, one copy of each.
    """
    ledger = room(plan, prefix, utilization=utilization, reserve_bytes=reserve_bytes)
    return Tier(name="HBM", capacity_bytes=ledger.max_seqs * _stored(plan, prefix), bytes_per_s=math.inf)


def host_tier(hardware: Hardware, devices: int, capacity_bytes: int) -> Tier:
    """Return host memory behind the host links of `devices`, at their full rate.

    Raises:
        BadInput: No link to host memory is known, or the memory is the device's own.
    """
    if hardware.host is None or hardware.unified_memory:
        raise BadInput(f"no link from {hardware.name} to host memory is known", where="--host-bandwidth")
    return tier(f"host over {hardware.host.name}", capacity_bytes, devices * hardware.host.bytes_per_s)


def load_or_recompute(
    plan: Plan, tiers: Sequence[Tier], prefix: int, *, suffix: int = 1, layerwise: bool = True
) -> tuple[TierAnswer, ...]:
    """Return what each tier holds, and whether loading a prefix from it beats computing it.

    Args:
        plan: The deployment of one replica.
        tiers: The tiers.
        prefix: Tokens of the cached prefix that is asked about.
        suffix: Prompt tokens behind it, which are computed either way.
        layerwise: Whether layers are loaded while those before them compute the suffix.

    Raises:
        BadInput: A length that cannot be.
    """
    if prefix < 1 or suffix < 1:
        raise BadInput(
            f"{prefix} cached and {suffix} new tokens", where="--isl", way_out="both are at least 1"
        )
    times, layers = PlanTimes(plan), layers_sent(plan) if layerwise else 1
    return tuple(_answer(one, plan, times, prefix, suffix, layers) for one in tiers)


def recompute_s(times: StepTimes, prefix: int, suffix: int) -> float:
    """Return what a prefill takes longer without the KV of its first `prefix` tokens."""
    without, with_it = times.prefill_s(prefix + suffix, 0), times.prefill_s(suffix, prefix)
    return max(float(without - with_it), 0.0)


def _stored(plan: Plan, tokens: int) -> int:
    """Return the bytes of one copy of a sequence."""
    return cache_bytes(plan.model, equal_lengths(tokens, 1), kv=plan.kv_format)


def _answer(one: Tier, plan: Plan, times: StepTimes, prefix: int, suffix: int, layers: int) -> TierAnswer:
    def load_s(tokens: int) -> float:
        moving = one.start_s + transferred_bytes(plan, tokens, whole_blocks=False) / one.bytes_per_s
        return seen_s(moving, float(times.prefill_s(suffix, tokens)), layers) if layers > 1 else moving

    computed = recompute_s(times, prefix, suffix)
    left = computed - one.start_s
    loaded = transferred_bytes(plan, prefix, whole_blocks=False)
    return TierAnswer(
        tier=one,
        tokens=largest(lambda n: _stored(plan, n) <= one.capacity_bytes, 2**44 - 1),
        prompts=one.capacity_bytes // _stored(plan, prefix),
        load_s=load_s(prefix),
        recompute_s=computed,
        break_even_tokens=_shortest(lambda n: load_s(n) < recompute_s(times, n, suffix), prefix),
        break_even_bytes_per_s=loaded / left if left > 0 and one.bytes_per_s < math.inf else None,
    )


def _shortest(wins: Callable[[int], bool], most: int) -> int | None:
    """Return the shortest length from which on all up to `most` win, None where `most` itself loses.

    It is looked for downward by halves, and then by bisection.
    """
    if not wins(most):
        return None
    low, high = most // 2, most
    while low > 0 and wins(low):
        low, high = low // 2, low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if wins(middle) else (middle, high)
    return high
