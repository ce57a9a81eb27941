"""KV that moves from where a prompt was run to where it is decoded: its bytes, its time, what of it is seen.

A transfer takes `start_s + pieces x descriptor_s + bytes / bytes_per_s`. Sent layer by layer it runs
while the prompt still does, and only its end is seen: `max(t / L, t - S (L - 1) / L)` for L layers and a
prefill of S. Transfers of many requests share the link and queue for it.
"""

from __future__ import annotations

import math

from kvroof.ground.errors import BadInput
from kvroof.ground.record import record, static
from kvroof.memory.allocators import Allocator
from kvroof.memory.demand import equal_lengths
from kvroof.memory.kv import PAYLOAD, cache_bytes, caches
from kvroof.roofline.plan import Plan
from kvroof.serving.steady.queueing import NoSteadyState, mean_wait_s, service
from kvroof.spec.hardware import Hardware
from kvroof.spec.parallel import Layout
from kvroof.spec.stages import stage_models


@record
class KVLink:
    """What carries KV between two instances, one way.

    `bytes_per_s` is per device: instances of n devices send over n of them at once, at a share `efficiency`
    of that rate. `start_s` is paid by every transfer, and `descriptor_s` by every piece of `piece_bytes` that
    a device posts apart: engines that send block by block and layer by layer post many.
    """

    name: str = static()
    bytes_per_s: float
    efficiency: float = 1.0
    start_s: float = 0.0
    descriptor_s: float = 0.0
    piece_bytes: float = math.inf
    layerwise: bool = static(default=True)

    def seconds(self, size: float, devices: int) -> float:
        """Return the time of one transfer that has the link for itself, over `devices` of them."""
        each = size / devices
        pieces = math.ceil(each / self.piece_bytes) if self.descriptor_s else 0
        return self.start_s + pieces * self.descriptor_s + each / (self.bytes_per_s * self.efficiency)


def kv_link(
    name: str,
    bytes_per_s: float,
    *,
    efficiency: float = 1.0,
    start_s: float = 0.0,
    descriptor_s: float = 0.0,
    piece_bytes: float = math.inf,
    layerwise: bool = True,
) -> KVLink:
    """Return a link, checked.

    Raises:
        BadInput: A rate or size that is not positive, a negative time, or an efficiency outside (0, 1].
    """
    if not 0 < bytes_per_s < math.inf:
        raise BadInput(f"{bytes_per_s} B/s is not a rate", where="--link", way_out="write it like 400Gb/s")
    if not (0 <= start_s < math.inf and 0 <= descriptor_s < math.inf and piece_bytes > 0):
        raise BadInput("times are not negative and pieces are not empty", where="--link")
    if not 0 < efficiency <= 1:
        raise BadInput(f"{efficiency} is not a share above 0 and up to 1", where="--link")
    return KVLink(
        name=name,
        bytes_per_s=bytes_per_s,
        efficiency=efficiency,
        start_s=start_s,
        descriptor_s=descriptor_s,
        piece_bytes=piece_bytes,
        layerwise=layerwise,
    )


def scale_out_link(hardware: Hardware) -> KVLink:
    """Return the link by which a machine reaches another, at its full rate.

    Raises:
        BadInput: The profile names none.
    """
    link = hardware.scale_out
    if link is None:
        reason = f"no link from {hardware.name} to other machines is known"
        raise BadInput(reason, where="--link", way_out="--link 400Gb/s")
    return KVLink(name=link.name, bytes_per_s=link.bytes_per_s)


def transferred_bytes(plan: Plan, tokens: float, whole_blocks: bool = True) -> float:
    """Return the bytes that fill the cache of the plan's ranks with a sequence's last `tokens`.

    Every rank gets what it holds: with more ranks than KV heads each head is sent more than once. Windows
    keep only their last tokens; a fixed state is sent whole. With `whole_blocks` what is sent are blocks.
    """
    if tokens <= 0:
        return 0.0
    allocator = plan.allocator if whole_blocks and plan.allocator.engine is None else PAYLOAD
    return float(_ranks_bytes(plan, math.ceil(tokens), allocator))


def _ranks_bytes(plan: Plan, tokens: int, allocator: Allocator) -> int:
    layout = Layout(tp=plan.layout.tp, dcp=plan.layout.dcp)
    demand = equal_lengths(tokens, 1)
    return layout.tp * sum(
        cache_bytes(stage, demand, allocator, plan.kv_format, layout=layout)
        for stage in stage_models(plan.model, plan.layout.pp)
    )


def layers_sent(plan: Plan) -> int:
    """Return the layers that have something to send, at least one."""
    return max(sum(layers for _, layers in caches(plan.model)), 1)


def seen_s(transfer_s: float, prefill_s: float, layers: int) -> float:
    """Return what a layer-wise transfer adds after a prefill: `max(t / L, t - S (L - 1) / L)`."""
    return max(transfer_s / layers, transfer_s - prefill_s * (layers - 1) / layers)


def link_wait_s(rate_per_s: float, transfer_s: float) -> float | NoSteadyState:
    """Return the mean wait for a link that carries `rate_per_s` transfers, M/D/1."""
    if transfer_s <= 0:
        return 0.0
    found = mean_wait_s(rate_per_s, service(transfer_s))
    return NoSteadyState(what="the link", load=found.load) if isinstance(found, NoSteadyState) else found
