"""The ledger of a pipeline: every stage has its own, and the fullest one decides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvroof.memory.ledger import Ledger
    from kvroof.memory.ways_out import WayOut


STAGE_FLAGS = {
    "vllm": "--pipeline-parallel-size",
    "sglang": "--pp-size",
    "tensorrt-llm": "--pp_size",
}


def fullest(ledgers: Sequence[Ledger], model: str, devices: int) -> Ledger:
    """Return the ledger of the stage with the least headroom, with what all stages together allow."""
    decides = min(ledgers, key=lambda ledger: ledger.headroom_bytes)
    stage = ledgers.index(decides) + 1
    said = f"the ledger is stage {stage} of {len(ledgers)}, the fullest; limits are the least of all stages"
    return replace(
        decides,
        model=model,
        devices=devices,
        fits=all(ledger.fits for ledger in ledgers),
        host_bytes=sum(ledger.host_bytes for ledger in ledgers),
        max_seqs=min(ledger.max_seqs for ledger in ledgers),
        max_tokens=min(ledger.max_tokens for ledger in ledgers),
        kv_capacity_tokens=min(ledger.kv_capacity_tokens for ledger in ledgers),
        admitted_seqs=min(ledger.admitted_seqs for ledger in ledgers),
        ways_out=tuple(_common(ledgers)),
        assumptions=(*decides.assumptions, said),
    )


def _common(ledgers: Sequence[Ledger]) -> Iterator[WayOut]:
    """Yield the ways out that mend every stage that does not fit; of numbers, the one that mends all."""
    failing = [ledger.ways_out for ledger in ledgers if not ledger.fits]
    if not failing:
        return
    for way in failing[0]:
        same = [other for ways in failing for other in ways if other.change == way.change]
        if len(same) < len(failing):
            continue
        if way.change in ("seqs", "tokens"):
            yield min(same, key=lambda other: int(other.to))
        elif way.change == "capacity_bytes":
            yield max(same, key=lambda other: int(other.to))
        elif all(other.to == way.to for other in same):
            yield way
