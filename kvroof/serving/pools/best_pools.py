"""The best single pool and the best two pools for the same requests, limits and devices.

Goodput is the highest rate that keeps the limits. All devices asked for count, those of both pools and those
that a layout leaves idle. The search is over whole instances of the candidates given, and over schedules.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from kvroof.ground.errors import BadInput
from kvroof.ground.record import record
from kvroof.roofline.plan import Plan
from kvroof.schedule.policies import Policy
from kvroof.serving.demand.traffic import Traffic
from kvroof.serving.pools.disaggregation import Split, TwoPools, decode_instance, prefill_instance, split
from kvroof.serving.pools.goodput import (
    Limits,
    Replica,
    highest_rate,
    one_pool_policies,
    one_pool_rate,
    replica,
    start_rate,
)
from kvroof.serving.pools.transfer import KVLink, link_wait_s, seen_s
from kvroof.serving.steady.batching import one_pool
from kvroof.serving.steady.distribution import certain
from kvroof.serving.steady.queueing import NoSteadyState

ALMOST_IDLE = 0.02
"""Share of a first guess of a rate at which nothing waits."""
CHECKED = 4
"""Combinations of instances that are solved as a whole, best first."""


@record
class OnePool:
    """`instances` of a replica that prefill and decode, and the highest rate of all together."""

    server: Replica
    instances: int
    policy: Policy
    goodput_rps: float


@record
class BestSplit:
    """Two pools and the highest rate they serve within the limits."""

    pools: TwoPools
    goodput_rps: float


@record
class Question:
    """What is compared: candidates and `policies` of one pool, candidates for two, and what they are asked.

    With a `budget` one pool has that many devices of each chip instead of `devices`.
    """

    aggregated: tuple[Replica, ...]
    prefill: tuple[Replica, ...]
    decode: tuple[Replica, ...]
    asked: Traffic
    limits: Limits
    link: KVLink
    devices: int
    decode_hit: float = 0.0
    policies: tuple[Policy, ...] = one_pool_policies()
    budget: dict[str, int] | None = None

    def pool_devices(self, hardware: str) -> int:
        """Return the devices of one pool of a chip: all, or what a budget pays for."""
        return self.devices if self.budget is None else self.budget[hardware]


def question_of(
    aggregated: Sequence[Plan],
    prefill: Sequence[Plan],
    decode: Sequence[Plan],
    asked: Traffic,
    kept: Limits,
    link: KVLink,
    devices: int,
    *,
    utilization: float = 0.9,
    reserve_bytes: int = 0,
    decode_hit: float = 0.0,
) -> Question:
    """Return the question for candidate deployments; those whose weights do not fit are left out.

    Args:
        aggregated: Plans of one replica that does both, on any chip that may be used.
        prefill: Plans of a prefill instance.
        decode: Plans of a decode instance.
        asked: The requests.
        kept: The limits.
        link: What carries the KV.
        devices: Devices of either way.
        utilization: Share of the memory that may be used.
        reserve_bytes: Memory that is neither weights nor cache.
        decode_hit: Share of a prompt that the decode instance has already.

    Raises:
        BadInput: No candidate holds the model and a request.
    """
    sides = []
    for plans in (aggregated, prefill, decode):
        held = (replica(p, asked, utilization=utilization, reserve_bytes=reserve_bytes) for p in plans)
        sides.append(tuple(server for server in held if server.max_seqs >= 1))
    if not all(sides):
        raise BadInput("the model does not fit", where="--prefill/--decode", way_out="use more ranks (--tp)")
    return Question(
        aggregated=sides[0],
        prefill=sides[1],
        decode=sides[2],
        asked=asked,
        limits=kept,
        link=link,
        devices=devices,
        decode_hit=decode_hit,
    )


def best_one_pool(question: Question, likely: OnePool | None = None) -> OnePool | None:
    """Return the replicas and schedule of one pool with the highest goodput, None where none keeps limits.

    What is `likely` is tried first: others are then only looked at beyond its rate.
    """
    tried = [(server, policy) for server in question.aggregated for policy in question.policies]
    if likely is not None:
        tried.sort(key=lambda pair: (pair[0].name, pair[1]) != (likely.server.name, likely.policy))
    best: OnePool | None = None
    for server, policy in tried:
        instances = question.pool_devices(server.hardware) // server.devices
        if not instances:
            continue
        least = 0.0 if best is None else best.goodput_rps / instances
        guess = None if likely is None else likely.goodput_rps / instances
        asked = question.asked.dealt(instances)
        rate = one_pool_rate(server, asked, question.limits, policy, least, guess)
        if rate > least:
            best = OnePool(server=server, instances=instances, policy=policy, goodput_rps=instances * rate)
    return best


def nearest_one_pool(question: Question) -> tuple[OnePool, float]:
    """Return the pool whose limits are exceeded least when it is almost idle, and that rate: no goodput."""
    best: tuple[float, OnePool, float] | None = None
    for server in question.aggregated:
        instances = question.pool_devices(server.hardware) // server.devices
        rate = ALMOST_IDLE * start_rate(server, question.asked)
        for policy in question.policies if instances else ():
            own = replace(policy, max_num_seqs=min(policy.max_num_seqs, server.max_seqs))
            found = one_pool(server.times, question.asked.dealt(instances), rate, own)
            if isinstance(found, NoSteadyState):
                continue
            excess = question.limits.excess(found.ttft_s, found.tpot_s)
            if best is None or excess < best[0]:
                pool = OnePool(server=server, instances=instances, policy=policy, goodput_rps=0.0)
                best = excess, pool, rate * instances
    if best is None:
        raise BadInput("no instance fits the devices", where="--max-devices", way_out="allow more devices")
    return best[1:]


def solved_exactly(question: Question, found: OnePool) -> OnePool:
    """Return the pool with its goodput from step times of which none is interpolated."""
    server, guess = found.server.exactly(), found.goodput_rps / found.instances
    rate = one_pool_rate(
        server, question.asked.dealt(found.instances), question.limits, found.policy, guess=guess
    )
    return replace(found, server=server, goodput_rps=rate * found.instances)


def best_split(question: Question) -> BestSplit | None:
    """Return the two pools with the highest goodput, in whole instances; None where none keeps the limits.

    An instance of either kind has its own highest rate; the pool that is reached first bounds the whole.
    The best combinations by that are then solved as a whole.
    """
    first = [(p, prefill_rate(p, question)) for p in question.prefill if p.devices < question.devices]
    later = [(d, decode_rate(d, question)) for d in question.decode if d.devices < question.devices]
    found: list[BestSplit] = []
    for server, rate in first:
        for decoder, other in later:
            found += _combined(question, server, rate, decoder, other)
    found.sort(key=lambda one: (-one.goodput_rps, one.pools.devices))
    best: BestSplit | None = None
    for one in found[:CHECKED]:
        if best is not None and best.goodput_rps >= one.goodput_rps:
            break
        solved = solved_rate(one.pools, question, one.goodput_rps)
        if solved > 0 and (best is None or solved > best.goodput_rps):
            best = BestSplit(pools=one.pools, goodput_rps=solved)
    return best


def _combined(
    question: Question, server: Replica, rate: float, decoder: Replica, other: float
) -> list[BestSplit]:
    """Return every whole number of prefill instances with as many decode instances as are left."""
    found = []
    for instances in range(1, (question.devices - decoder.devices) // server.devices + 1):
        decoders = (question.devices - instances * server.devices) // decoder.devices
        least = min(instances * rate, decoders * other)
        if least > 0:
            pools = TwoPools(
                prefill=server,
                prefill_instances=instances,
                decode=decoder,
                decode_instances=decoders,
                link=question.link,
                decode_hit=question.decode_hit,
            )
            found.append(BestSplit(pools=pools, goodput_rps=least))
    return found


def prefill_rate(server: Replica, question: Question) -> float:
    """Return the highest rate of one prefill instance, with the transfer to its like.

    It is one of as many as there may be: with fewer it sees requests come less evenly, and serves no more.
    """
    asked, link = _most_even(server, question), question.link
    moving = link.seconds(server.kv_bytes(asked.isl.mean * (1 - question.decode_hit)), server.devices)

    def kept(rate: float) -> bool:
        found, wait = prefill_instance(server, asked, rate), link_wait_s(rate, moving)
        if isinstance(found, NoSteadyState) or isinstance(wait, NoSteadyState):
            return False
        seen = seen_s(moving, found.own_s, server.layers) if link.layerwise else moving
        return question.limits.first_kept(found.response().plus(certain(seen + wait)))

    return highest_rate(kept, start_rate(server, asked)) if server.max_seqs else 0.0


def decode_rate(server: Replica, question: Question) -> float:
    """Return the highest rate of one decode instance, of as many as there may be."""
    asked = _most_even(server, question)
    if server.max_seqs < 1:
        return 0.0
    if asked.decode_tokens <= 0:
        return math.inf

    def kept(rate: float) -> bool:
        found = decode_instance(server, asked, rate)
        return not isinstance(found, NoSteadyState) and question.limits.later_kept(found[2])

    alone = float(server.times.decode_s(1.0, asked.context))
    return highest_rate(kept, 1 / (alone * asked.decode_tokens))


def _most_even(server: Replica, question: Question) -> Traffic:
    """Return what an instance is asked that is one of as many as leave a device to the other pool."""
    return question.asked.dealt(max((question.devices - 1) // server.devices, 1))


def solved_rate(pools: TwoPools, question: Question, most: float) -> float:
    """Return the highest rate, up to `most`, at which two pools as a whole keep the limits."""

    def kept(rate: float) -> bool:
        found = split(pools, question.asked, rate)
        return isinstance(found, Split) and question.limits.kept_by(found.ttft_s, found.tpot_s)

    return most if kept(most) else highest_rate(lambda rate: rate < most and kept(rate), most / 2)
