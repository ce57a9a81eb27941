"""What an estimate takes for granted, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kvroof.ground.units import format_decimal
from kvroof.memory.ledger import Ledger
from kvroof.roofline.collectives import links_used
from kvroof.roofline.efficiency import GENERIC
from kvroof.roofline.plan import Plan, arithmetic_used
from kvroof.roofline.roofline import Timed
from kvroof.serving.speculation import Speculation


def assumptions(
    plan: Plan,
    first: Sequence[Timed],
    later: Sequence[Timed],
    batch: int,
    cached: int,
    patches: int,
    memory: Ledger,
    drafting: Speculation | None,
) -> tuple[str, ...]:
    """Return the sentences of an estimate: the times' first, then the memory's.

    Args:
        plan: The deployment.
        first: The operations of the prefill.
        later: The operations of a decode step.
        batch: Requests at once.
        cached: Prompt tokens taken from the prefix cache.
        patches: Patches that towers encode for each prompt.
        memory: The ledger of the same requests.
        drafting: How tokens are drafted, if they are.
    """
    machine = plan.hardware
    said = []
    if plan.efficiency.name is None:
        said.append(
            "a bound, not a prediction: no calibration is applied and engines are slower; only overlapping"
            " operations could come below it, and nothing below the lower bound"
        )
    else:
        said.append(
            f"calibrated with {plan.efficiency.name}: kernels as measured one by one; host time per step is a"
            " stated prior; scheduling and queueing are left out"
        )
    said.append(f"prefill runs the prompts of all {batch} requests in one batch; queueing is left out")
    said.append("the LM head runs on the last position of a prompt only; the embedding is a look-up")
    used = arithmetic_used((*first, *later), machine)
    said.append(f"matrices multiply in {', '.join(used)} at the dense peak of {machine.name}")
    if plan.model.dtype not in used and plan.compute_dtype is None and "bf16" not in machine.peak_flops_per_s:
        said.append(f"{machine.name} has no {plan.model.dtype} peak")
    attention = "keeps scores on chip (FlashAttention)" if plan.io_aware else "writes scores to HBM"
    said.append(f"attention {attention}; norms, rotary and activations are fused into their neighbours")
    if plan.model.towers and patches:
        said.append(f"towers encode {patches} patches a prompt; attention among them is left out")
    elif plan.model.towers:
        said.append("towers and encoders take memory; their own time is left out (--patches)")
    if any(t.op.kind == "moe" for t in later):
        said.append("experts are chosen independently and evenly; the expected distinct ones are read")
    said.extend(_laid_out(plan))
    if drafting is not None:
        said.append(_drafted(drafting))
    if plan.adapters:
        said.append(f"each request has one of {plan.adapters} LoRA adapters of rank {plan.adapter_rank}")
    if any(t.op.place == "host" for t in later):
        said.append(_host_sentence(plan))
    if cached:
        said.append(f"{cached} prompt tokens are taken from the prefix cache, not computed")
    return (*said, *memory.assumptions)


def priced_with(calibrations: Mapping[str, str | None]) -> Iterator[str]:
    """Yield which calibration the times of each machine are from.

    Args:
        calibrations: The calibration's name by machine, None for bounds.
    """
    own = {machine: name for machine, name in calibrations.items() if name not in (None, GENERIC)}
    typical = [machine for machine, name in calibrations.items() if name == GENERIC]
    bounds = [machine for machine, name in calibrations.items() if name is None]
    if len(bounds) == len(calibrations):
        yield "a bound, not a prediction: no calibration is applied and engines are slower"
        return
    if own:
        each = ", ".join(f"{machine} with {name}" for machine, name in own.items())
        yield f"calibrated with {own.popitem()[1]}" if len(calibrations) == 1 else f"calibrated: {each}"
    if typical:
        yield f"{', '.join(typical)}: times of a typical machine, not of this one"
    if bounds:
        yield f"only bounds are known for {', '.join(bounds)}"


def _laid_out(plan: Plan) -> Iterator[str]:
    """Yield what is taken for granted of several ranks."""
    layout = plan.layout
    if layout.devices > 1:
        links = links_used(plan.hardware, layout.devices)
        yield f"{layout.devices} devices, collectives over {links} one way, not overlapped"
    if layout.dp > 1:
        yield f"{layout.dp} groups of ranks share the requests evenly"
    if layout.pp > 1:
        yield f"{layout.pp} stages: decode keeps all busy with a batch each, a prompt has to fill them"
    if layout.ep > 1:
        load = plan.expert_imbalance
        how = f"{load:g} times the mean" if load is not None else "what chance makes of it"
        yield f"experts in {layout.ep} parts; the busiest rank's load is {how} (--expert-imbalance)"


def _drafted(drafting: Speculation) -> str:
    """Return what is taken for granted of speculative decoding."""
    by = drafting.draft.model.name if drafting.draft is not None else "a look-up in the prompt, at no cost"
    return (
        f"{drafting.tokens} tokens a step drafted by {by}; each accepted with probability"
        f" {drafting.acceptance:g}: {drafting.tokens_per_step:.3g} tokens a step"
    )


def _host_sentence(plan: Plan) -> str:
    if plan.host.bytes_per_s is not None:
        rate = format_decimal(plan.host.bytes_per_s, "B/s")
        return f"what is offloaded runs on the host, as fast as its memory is read: {rate}"
    return "what is offloaded is streamed to the device over its host link in every step"
