"""Two pools, one for prefill and one for decode: what they serve together at a rate.

Prefill instances run whole prompts and nothing else; the KV then moves to a decode instance over a link.
Weights are resident in both pools. Requests are dealt in turn to the instances of a pool.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from kvroof.ground.record import record
from kvroof.schedule.policies import Policy
from kvroof.serving.demand.traffic import Traffic
from kvroof.serving.pools.goodput import MAX_SEQS, Replica
from kvroof.serving.pools.transfer import KVLink, link_wait_s, seen_s
from kvroof.serving.steady.batching import decode_times, token_times
from kvroof.serving.steady.distribution import Distribution, certain, pieces
from kvroof.serving.steady.occupancy import Occupancy, occupancy
from kvroof.serving.steady.prefill_first import continuous
from kvroof.serving.steady.prefilling import Prefilling
from kvroof.serving.steady.queueing import NoSteadyState

Part: TypeAlias = Literal["prefill", "decode", "link"]
PREFILL = Policy(name="continuous", max_num_seqs=MAX_SEQS, max_num_batched_tokens=8192)
"""Several short prompts share a step of a prefill instance."""


@record
class TwoPools:
    """What stands on each side: instances of a replica, and the link between them.

    `decode_hit` is the share of a prompt whose KV the decode instance has already, which is not sent.
    """

    prefill: Replica
    prefill_instances: int
    decode: Replica
    decode_instances: int
    link: KVLink
    decode_hit: float = 0.0

    @property
    def devices(self) -> int:
        """Devices of both pools."""
        return self.prefill_devices + self.decode_instances * self.decode.devices

    @property
    def prefill_devices(self) -> int:
        """Devices of the prefill pool."""
        return self.prefill_instances * self.prefill.devices

    def sent_bytes(self, asked: Traffic) -> float:
        """Return the bytes of a mean request."""
        return self.decode.kv_bytes(asked.isl.mean * (1 - self.decode_hit))

    def transfer_s(self, asked: Traffic) -> float:
        """Return the seconds of a mean request's transfer alone on the link."""
        width = min(self.prefill.devices, self.decode.devices)
        return self.link.seconds(self.sent_bytes(asked), width)


@record
class Split:
    """Two pools at a rate. `loads` are the shares of what prefill, decode and the link can do.

    TTFT ends when the decode side has the KV and a slot: the wait for prefill, prefill, what is seen of the
    transfer, the wait for the link and for a slot.
    """

    requests_per_s: float
    tokens_per_s: float
    ttft_s: Distribution
    tpot_s: Distribution
    itl_s: Distribution
    kv_bytes: float
    transfer_s: float
    seen_s: float
    seqs: float
    loads: dict[Part, float]

    @property
    def limit(self) -> Part:
        """The part that is loaded most."""
        return max(self.loads, key=lambda part: self.loads[part])


def split(pools: TwoPools, asked: Traffic, rate_per_s: float) -> Split | NoSteadyState:
    """Return how two pools serve requests that arrive at a rate, or that they reach no steady state."""
    count = pools.prefill_instances
    first = prefill_instance(pools.prefill, asked.dealt(count), rate_per_s / count)
    if isinstance(first, NoSteadyState):
        return first
    count = pools.decode_instances
    later = decode_instance(pools.decode, asked.dealt(count), rate_per_s / count)
    if isinstance(later, NoSteadyState):
        return later
    pool, decode_s, tpot = later
    moving = pools.transfer_s(asked)
    shared = rate_per_s / min(pools.prefill_instances, pools.decode_instances)
    wait = link_wait_s(shared, moving)
    if isinstance(wait, NoSteadyState):
        return wait
    seen = seen_s(moving, first.own_s, pools.prefill.layers) if pools.link.layerwise else moving
    kept = pool.seen > 1e-9
    loads: dict[Part, float] = {"prefill": first.busy, "decode": pool.load, "link": shared * moving}
    return Split(
        requests_per_s=rate_per_s,
        tokens_per_s=rate_per_s * asked.osl.mean,
        ttft_s=first.response().plus(certain(seen + wait)).plus(pool.wait_s),
        tpot_s=tpot,
        itl_s=pieces(decode_s[kept], 0.0, pool.seen[kept]),
        kv_bytes=pools.sent_bytes(asked),
        transfer_s=moving,
        seen_s=seen,
        seqs=pool.seqs,
        loads=loads,
    )


def prefill_instance(server: Replica, asked: Traffic, rate: float) -> Prefilling | NoSteadyState:
    """Return an instance that only prefills, at its share of the rate."""
    return continuous(server.times, asked, rate, PREFILL, 0.0, 0.0)


def decode_instance(
    server: Replica, asked: Traffic, rate: float
) -> tuple[Occupancy, Any, Distribution] | NoSteadyState:
    """Return an instance that only decodes: its occupancy, its steps by sequences, and TPOT."""
    decode_s = decode_times(server.times, asked, server.max_seqs)
    pool = occupancy(rate, asked.decode_tokens, decode_s, asked.decode_cv2, asked.crowding)
    if isinstance(pool, NoSteadyState):
        return pool
    return pool, decode_s, token_times(asked, rate, decode_s, pool)
