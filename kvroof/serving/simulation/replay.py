"""A deployment in the simulator: its step times as a table, its memory as blocks, its link as a queue."""

from __future__ import annotations

from collections.abc import Sequence

from kvroof.ground.errors import BadInput, Unsupported
from kvroof.ground.numeric import ceil_div
from kvroof.ground.record import record, static
from kvroof.ground.units import GIB
from kvroof.memory.ledger import Ledger
from kvroof.roofline.plan import Plan
from kvroof.schedule.policies import Policy
from kvroof.serving.demand.requests import Request
from kvroof.serving.pools.transfer import KVLink, layers_sent, scale_out_link, transferred_bytes
from kvroof.serving.room import room
from kvroof.serving.simulation.instances import Link, Pool, Router
from kvroof.serving.simulation.simulator import Simulation, simulate
from kvroof.serving.simulation.step_table import StepTable
from kvroof.serving.step_times import PlanTimes

MAX_BLOCK = 2**20
SWAP_SPACE_BYTES = 4 * GIB
"""Host memory of a device for what is swapped out. Source: vLLM v0's default of `--swap-space`."""


@record
class Deployed:
    """`instances` of a plan behind one router, each with a schedule of its own.

    `block_size` is that of the plan's allocator where None. A schedule that swaps has `swap_space_bytes` of
    host memory for each device.
    """

    plan: Plan
    instances: int = 1
    policy: Policy = Policy()
    prefix_cache: bool = static(default=False)
    block_size: int | None = None
    router: Router = static(default="least_requests")
    utilization: float = 0.9
    reserve_bytes: int = 0
    swap_space_bytes: int = SWAP_SPACE_BYTES

    @property
    def devices(self) -> int:
        """Devices of all instances."""
        return self.instances * self.plan.layout.devices

    @property
    def swaps(self) -> bool:
        """Whether what is preempted goes to host memory."""
        return self.policy.preemption == "swap"


def replay(
    requests: Sequence[Request],
    serving: Deployed,
    *,
    decode: Deployed | None = None,
    link: KVLink | None = None,
    concurrency: int | None = None,
    trace: bool = False,
) -> Simulation:
    """Return how a deployment serves requests, one by one.

    Args:
        requests: What is asked.
        serving: What serves it; the prefill pool where `decode` is given.
        decode: The decode pool; it never samples a first token.
        link: What carries the KV between the two; the prefill machine's scale-out link where None.
        concurrency: Requests in the system at a time, a closed loop; None takes their arrivals.
        trace: Whether to keep the schedule.

    Raises:
        BadInput: No requests, a model that does not fit, groups of ranks within an instance, or a request or
            link that cannot be.
    """
    if not requests:
        raise BadInput("there are no requests", where="--requests", way_out="ask for at least one")
    first = pool_of(serving, requests)
    if decode is None:
        return simulate(requests, first, concurrency=concurrency, trace=trace)
    carried = link or scale_out_link(serving.plan.hardware)
    return simulate(
        requests,
        first,
        decode=pool_of(decode, requests),
        link=_link(carried, serving.plan, decode.plan, serving.instances),
        concurrency=concurrency,
        trace=trace,
    )


def pool_of(serving: Deployed, requests: Sequence[Request]) -> Pool:
    """Return the pool that a deployment makes: blocks of what its memory holds beside the weights.

    Raises:
        BadInput: A model that does not fit, or groups of ranks within an instance.
        Unsupported: A model with cross-attention, or a schedule that swaps where no host link is known.
    """
    plan = serving.plan
    if plan.layout.dp > 1:
        raise BadInput(
            f"{plan.layout.dp} groups of ranks are as many queues", where="--dp", way_out="use --instances"
        )
    longest = max(r.input_tokens + r.output_tokens for r in requests)
    mean = sum(r.input_tokens + r.output_tokens for r in requests) // len(requests)
    ledger = room(plan, mean, utilization=serving.utilization, reserve_bytes=serving.reserve_bytes)
    size = serving.block_size or plan.allocator.block_size
    if not 1 <= size <= MAX_BLOCK:
        raise BadInput(f"{size} is not between 1 and {MAX_BLOCK}", where="--block-size")
    blocks = ledger.kv_capacity_tokens // size
    if not blocks:
        raise BadInput(
            f"{plan.model.name} leaves no room for a cache on {plan.layout.devices} x {plan.hardware.name}",
            where="--tp",
            way_out="use more ranks, or a narrower --weights-dtype",
        )
    prompts = max(r.input_tokens for r in requests)
    host_blocks, swap_block_s = _swapping(serving, ledger, size) if serving.swaps else (0, 0.0)
    table = StepTable(
        PlanTimes(plan),
        most_tokens=longest,
        most_query_tokens=max(prompts, serving.policy.max_num_batched_tokens),
        swap_block_s=swap_block_s,
    )
    return Pool(
        step_s=table,
        num_blocks=blocks,
        block_size=size,
        instances=serving.instances,
        policy=serving.policy,
        prefix_cache=serving.prefix_cache,
        host_blocks=host_blocks,
        router=serving.router,
    )


def _swapping(serving: Deployed, ledger: Ledger, block_size: int) -> tuple[int, float]:
    """Return the blocks that the host has room for, and the seconds that copying one takes.

    Devices copy their parts at once, each over its own link. A block is its share of what the ledger's
    sequence holds on the fullest device.

    Raises:
        BadInput: A room that cannot be.
        Unsupported: No link to host memory is known.
    """
    machine = serving.plan.hardware
    if serving.swap_space_bytes < 1:
        raise BadInput(f"{serving.swap_space_bytes} B hold no block", where="--swap-space")
    if machine.host is None or machine.unified_memory:
        raise Unsupported(
            f"no link from {machine.name} to host memory is known",
            where="--preemption swap",
            way_out="use --preemption recompute",
        )
    unit = serving.plan.allocator.block_size
    held = ceil_div(ledger.tokens, unit) * unit
    block_bytes = ceil_div(ledger.kv_bytes * block_size, held)
    return serving.swap_space_bytes // block_bytes, block_bytes / machine.host.bytes_per_s


def _link(link: KVLink, prefill: Plan, decode: Plan, channels: int) -> Link:
    """Return the link between two pools: each prefill instance sends over its own devices' ports."""
    devices = min(prefill.layout.devices, decode.layout.devices)
    return Link(
        transfer_s=lambda tokens: link.seconds(transferred_bytes(decode, tokens), devices),
        channels=channels,
        layers=layers_sent(decode) if link.layerwise else None,
    )
