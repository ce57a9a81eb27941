"""How a model is laid over devices, and which layouts are valid: decided here and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from kvroof.ground.errors import BadInput
from kvroof.ground.numeric import ceil_div
from kvroof.ground.record import record, static
from kvroof.spec.architecture import Architecture
from kvroof.spec.attention import GroupedAttention
from kvroof.spec.cache import Cache
from kvroof.spec.ffn import MoE
from kvroof.spec.recurrent import Recurrent
from kvroof.spec.weights import Format, Weight


@record
class Layout:
    """Ranks along each axis of parallelism: `tp x dp` of them hold a stage, and `pp` stages the model.

    `tp` splits every layer, `pp` the stack of layers. Each of `dp` groups of `tp` ranks runs attention and
    dense MLPs for sequences of its own. Routed experts are dealt over all `tp x dp` ranks: into `ep` parts
    whole, within a part by columns; `redundant_experts` are second copies of busy ones, dealt with the
    rest. `dcp` of the ranks that would hold copies of one KV head share its tokens instead.
    """

    tp: int = static(default=1)
    pp: int = static(default=1)
    dp: int = static(default=1)
    ep: int = static(default=1)
    dcp: int = static(default=1)
    redundant_experts: int = static(default=0)

    @property
    def stage_ranks(self) -> int:
        """Ranks that hold one stage."""
        return self.tp * self.dp

    @property
    def devices(self) -> int:
        """Devices that hold the model together."""
        return self.stage_ranks * self.pp

    @property
    def expert_tp(self) -> int:
        """Ranks that split the columns of one expert."""
        return self.stage_ranks // self.ep

    @property
    def stage(self) -> Layout:
        """The layout within one stage."""
        return replace(self, pp=1)

    def share(self, weight: Weight) -> tuple[Weight, int]:
        """Return what of `weight` a group of ranks holds, and how many ranks divide that by columns."""
        if not weight.routed:
            return weight, self.tp
        dealt = ceil_div(weight.count + self.redundant_experts, self.ep)
        return replace(weight, count=dealt), self.expert_tp

    def stored_bytes(self, weight: Weight, stored: Format) -> int:
        """Return the bytes of `weight` on the fullest rank."""
        part, ranks = self.share(weight)
        return stored.stored_bytes(part, ranks)


AXES = ("tp", "pp", "dp", "ep", "dcp")


def shared_axes(held: Any) -> dict[str, int]:
    """Return the axes with more than one rank, of a layout or of a record with its axes."""
    return {axis: getattr(held, axis) for axis in AXES if getattr(held, axis) > 1}


MOST_TRIED = 128
"""Tensor-parallel ranks that are tried when others are to be named."""
ALONE = Layout()
"""One device holds everything."""


def check_layout(model: Architecture, layout: Layout) -> None:
    """Refuse a layout that no engine could run.

    KV heads shard over ranks; when there are fewer heads than ranks each head is replicated.

    Raises:
        BadInput: A count that is not positive, or that does not divide heads, experts or MLP widths.
    """
    axes = (("--tp", layout.tp), ("--pp", layout.pp), ("--dp", layout.dp), ("--ep", layout.ep))
    for axis, ranks in (*axes, ("--dcp", layout.dcp)):
        if ranks < 1:
            raise BadInput(f"{ranks} is not a positive number of ranks", where=axis)
    if layout.redundant_experts < 0:
        raise BadInput(f"{layout.redundant_experts} is negative", where="--redundant-experts")
    if layout.pp > model.num_layers:
        raise BadInput(f"{layout.pp} stages are more than {model.num_layers} layers", where="--pp")
    if layout.dcp > 1 and not any(m.caches for group in model.layers for m in group.layer.mixers):
        raise BadInput("has no cache whose tokens ranks could share", where="--dcp", way_out="leave it out")
    _check_experts(model, layout)
    for fault in _undivided(model, layout):
        even = [str(tp) for tp in range(1, MOST_TRIED + 1) if _is_even(model, replace(layout, tp=tp))]
        way_out = f"try one of {', '.join(even)}" if even else "leave --tp at 1"
        raise BadInput(f"{fault} of {model.name}", where="--tp", way_out=way_out)
    for group in model.layers:
        for mixer in group.layer.mixers:
            for cache in mixer.caches:
                check_dcp(cache, layout.tp, layout.dcp)


def draft_layout(draft: Architecture, layout: Layout) -> Layout:
    """Return how a model that drafts is laid beside a target: over the same ranks, or whole on one of them.

    In one stage, and in each group of ranks for the group's own sequences.

    Raises:
        BadInput: A model that not even one rank can run.

    Source: vLLM's speculative configuration, `draft_tensor_parallel_size`: the target's size or 1.
    """
    beside = Layout(tp=layout.tp, dp=layout.dp)
    try:
        check_layout(draft, beside)
    except BadInput:
        beside = replace(beside, tp=1)
        check_layout(draft, beside)
    return beside


def check_dcp(cache: Cache, tp: int, dcp: int) -> None:
    """Refuse to share a cache's tokens among ranks that do not hold the same heads.

    Raises:
        BadInput: `dcp` does not divide `tp / kv_heads`, or a windowed layer.
    """
    if dcp == 1:
        return
    copies = tp // min(tp, cache.split)
    if copies % dcp or cache.reach.window is not None:
        raise BadInput(
            f"a decode context of {dcp} does not divide the {copies} ranks that hold copies of one head",
            where="--dcp",
            way_out="use a divisor of --tp over KV heads",
        )


def _check_experts(model: Architecture, layout: Layout) -> None:
    """Refuse parts that the routed experts cannot be dealt into."""
    if layout.ep == 1 and not layout.redundant_experts:
        return
    counts = {f.num_experts for g in model.layers for f in g.layer.ffns if isinstance(f, MoE)}
    if not counts:
        raise BadInput(f"{model.name} has no routed experts", where="--ep", way_out="leave it at 1")
    if layout.stage_ranks % layout.ep:
        raise BadInput(
            f"{layout.ep} parts do not divide the {layout.stage_ranks} ranks of --tp x --dp",
            where="--ep",
            way_out=f"use a divisor of {layout.stage_ranks}",
        )
    for count in sorted(counts):
        if (count + layout.redundant_experts) % layout.ep:
            raise BadInput(
                f"{layout.ep} parts do not divide {count} experts of {model.name} and"
                f" {layout.redundant_experts} redundant ones",
                where="--ep",
                way_out=f"add {-(count + layout.redundant_experts) % layout.ep} with --redundant-experts",
            )


def _undivided(model: Architecture, layout: Layout) -> Iterator[str]:
    """Yield what the ranks of a layout do not divide, layer by layer."""
    tp = layout.tp
    for group in model.layers:
        for mixer in group.layer.mixers:
            if isinstance(mixer, Recurrent):
                if mixer.held.split % tp:
                    yield f"{tp} ranks do not divide {mixer.held.split} heads of {mixer.kind}"
                continue
            if mixer.num_heads % tp:
                yield f"{tp} ranks do not divide {mixer.num_heads} attention heads"
            if isinstance(mixer, GroupedAttention):
                heads = mixer.num_kv_heads
                if max(heads, tp) % min(heads, tp):
                    yield f"{tp} ranks neither divide nor are a multiple of {heads} KV heads"
        for ffn in group.layer.ffns:
            for weight in ffn.weights:
                part, ranks = layout.share(weight)
                if part.split > 1 and part.split % ranks:
                    yield f"{ranks} ranks do not divide {part.split} columns of {part.name}"


def _is_even(model: Architecture, layout: Layout) -> bool:
    """Return whether nothing is left over on any rank."""
    dealt = layout.stage_ranks % layout.ep == 0
    return dealt and next(_undivided(model, layout), None) is None
