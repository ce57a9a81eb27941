"""Single changes that would make a demand fit, each tried before it is offered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from kvroof.ground.dtypes import DTYPES
from kvroof.ground.errors import KvroofError
from kvroof.ground.numeric import largest
from kvroof.ground.record import record, static
from kvroof.memory.budget import Budget, max_seqs, max_tokens
from kvroof.memory.demand import Demand
from kvroof.spec.architecture import Architecture, Mixer
from kvroof.spec.attention import GroupedAttention
from kvroof.spec.parallel import check_layout
from kvroof.spec.precision import KVFormat
from kvroof.spec.weights import stored_as

MAX_CAPACITY = 2**60


@record
class WayOut:
    """One change that makes it fit, by itself: `option` is how to ask for it."""

    change: str = static()
    from_: Any = static()
    to: Any = static()
    option: str = static()


def ways_out(budget: Budget, demand: Demand) -> Iterator[WayOut]:
    """Yield changes each of which, alone, makes `demand` fit; every one is tried before it is offered."""
    (tokens, seqs) = demand.lengths[0]
    fewer = max_seqs(budget, tokens)
    if fewer:
        yield WayOut(change="seqs", from_=seqs, to=fewer, option=f"--seqs {fewer}")
    shorter = max_tokens(budget, seqs)
    if shorter:
        yield WayOut(change="tokens", from_=tokens, to=shorter, option=f"--tokens {shorter}")
    for name in _narrow(budget):
        kv_format = KVFormat(k=DTYPES[name], v=DTYPES[name])
        if _holds(replace(budget, kv_format=kv_format), demand):
            yield WayOut(change="kv_dtype", from_=budget.kv_format.name, to=name, option=f"--kv-dtype {name}")
            break
    if budget.weights_bytes is None:
        stored = (budget.formats or budget.model.formats).name
        for name in ("fp8", "int4"):
            formats = stored_as(DTYPES[name], DTYPES[budget.model.dtype])
            if replace(budget, formats=formats).holds(demand):
                yield WayOut(change="weights_dtype", from_=stored, to=name, option=f"--weights-dtype {name}")
                break
    yield from _fewer_heads(budget, demand)
    if budget.weights_bytes is None:
        yield from _more_ranks(budget, demand)
    fixed = replace(budget, weights_bytes=budget.stored_weights_bytes)
    needs = fixed.stored_weights_bytes + budget.reserved_bytes + budget.kv_bytes(demand)
    short = largest(
        lambda size: not replace(fixed, capacity_bytes=size).holds(demand),
        MAX_CAPACITY,
        int(needs / budget.utilization),
    )
    if short < MAX_CAPACITY:
        needed = short + 1
        yield WayOut(
            change="capacity_bytes", from_=budget.capacity_bytes, to=needed, option=f"--capacity {needed}"
        )


def _narrow(budget: Budget) -> tuple[str, ...]:
    """Return the narrower KV dtypes to try, as the engine has them, the widest first."""
    if budget.allocator.engine is None:
        return "fp8", "q4_0"
    return ("q8_0", "q4_0") if budget.allocator.name == "llama.cpp" else ("fp8",)


def _holds(budget: Budget, demand: Demand) -> bool:
    """Return whether `demand` fits in a variation of the question, which layout or engine may refuse."""
    try:
        check_layout(budget.model, budget.layout)
        return budget.holds(demand)
    except KvroofError:
        return False


def _fewer_heads(budget: Budget, demand: Demand) -> Iterator[WayOut]:
    """Yield the most KV heads that would fit: another model, which researchers may choose."""
    heads = [
        m.num_kv_heads for g in budget.model.layers for m in g.layer.mixers if isinstance(m, GroupedAttention)
    ]
    if not heads or len(set(heads)) > 1:
        return
    for fewer in range(heads[0] - 1, 0, -1):
        if heads[0] % fewer == 0 and _holds(
            replace(budget, model=_with_kv_heads(budget.model, fewer)), demand
        ):
            option = f'"num_key_value_heads": {fewer}'
            yield WayOut(change="num_kv_heads", from_=heads[0], to=fewer, option=option)
            return


def _with_kv_heads(model: Architecture, heads: int) -> Architecture:
    groups = tuple(
        replace(
            group,
            layer=replace(
                group.layer,
                mixers=tuple(_thinner(m, heads) for m in group.layer.mixers),
            ),
        )
        for group in model.layers
    )
    return replace(model, layers=groups)


def _thinner(mixer: Mixer, heads: int) -> Mixer:
    """Return `mixer` with fewer KV heads; biases, whose width would change, are left out."""
    if not isinstance(mixer, GroupedAttention):
        return mixer
    return replace(mixer, num_kv_heads=heads, extras=())


def _more_ranks(budget: Budget, demand: Demand) -> Iterator[WayOut]:
    tp = budget.layout.tp * 2
    while tp <= 64:
        if _holds(replace(budget, layout=replace(budget.layout, tp=tp)), demand):
            yield WayOut(change="tp", from_=budget.layout.tp, to=tp, option=f"--tp {tp}")
            return
        tp *= 2
