"""Every discrete choice of a search: machines, layouts and dtypes as plans, and their room for sequences."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import NoReturn

from kvroof.ground.errors import BadInput, KvroofError
from kvroof.ground.numeric import largest
from kvroof.ground.record import record, static
from kvroof.memory.budget import max_seqs, max_tokens
from kvroof.memory.demand import equal_lengths
from kvroof.roofline.efficiency import IDENTITY, Efficiency
from kvroof.roofline.plan import Plan
from kvroof.serving.room import Stages, budgets
from kvroof.serving.step_times import check_not_crossing
from kvroof.spec.architecture import Architecture
from kvroof.spec.ffn import MoE
from kvroof.spec.hardware import Hardware
from kvroof.spec.parallel import Layout, check_layout

MANY = 64
"""Sequences of a replica from which the bytes of one are taken."""


@record
class Axes:
    """Ranks along each axis of parallelism; None leaves an axis free, up to `most_devices` in all.

    `dcp` ranks share the tokens of each KV head in decode.
    """

    tp: int | None = static(default=None)
    pp: int | None = static(default=None)
    dp: int | None = static(default=None)
    ep: int | None = static(default=None)
    dcp: int = static(default=1)
    most_devices: int = static(default=8)


@record
class Stores:
    """The dtypes to choose among, as the command line spells them, and the tokens of a KV block."""

    kv: tuple[str, ...] = static(default=("auto",))
    weights: tuple[str, ...] = static(default=("auto",))
    block_size: int = static(default=16)


def layouts(model: Architecture, axes: Axes) -> Iterator[Layout]:
    """Yield the layouts that an engine could run: free axes take powers of two.

    Replicas of attention (`dp`) are only told apart from separate instances where they share experts, which
    are then dealt whole over all of them; without replicas experts are dealt whole or split by columns. A
    free `dp` is not combined with pipelines.
    """
    routed = any(isinstance(ffn, MoE) for group in model.layers for ffn in group.layer.ffns)
    most = axes.most_devices
    for tp, pp, dp in product(_free(axes.tp, most), _free(axes.pp, most), _free(axes.dp, most)):
        if tp * pp * dp > most or (dp > 1 and axes.dp is None and (pp > 1 or not routed)):
            continue
        for ep in (axes.ep,) if axes.ep is not None else _parts(tp, dp, routed):
            layout = Layout(tp=tp, pp=pp, dp=dp, ep=ep, dcp=axes.dcp)
            try:
                check_layout(model, layout)
            except KvroofError:
                continue
            yield layout


def _refuse(model: Architecture, axes: Axes) -> NoReturn:
    """Say why not even the smallest layout along the given axes is valid."""
    layout = Layout(tp=axes.tp or 1, pp=axes.pp or 1, dp=axes.dp or 1, ep=axes.ep or 1, dcp=axes.dcp)
    if layout.devices > axes.most_devices:
        raise BadInput(
            f"{layout.devices} devices of the layout are more than {axes.most_devices}",
            where="--max-devices",
            way_out=f"give --max-devices {layout.devices}, or fewer ranks",
        )
    check_layout(model, layout)
    raise BadInput(
        "no layout is valid", where="layouts", way_out="leave --tp, --pp, --dp, --ep or --dcp free"
    )


def _parts(tp: int, dp: int, routed: bool) -> tuple[int, ...]:
    """Return the parts that experts are dealt into."""
    if not routed or tp * dp == 1:
        return (1,)
    return (tp * dp,) if dp > 1 else (1, tp)


def _free(fixed: int | None, most: int) -> tuple[int, ...]:
    return (fixed,) if fixed is not None else tuple(2**k for k in range(most.bit_length()) if 2**k <= most)


def plans(
    model: Architecture,
    machines: Sequence[Hardware],
    axes: Axes,
    stores: Stores,
    efficiency_of: Callable[[Hardware], Efficiency] = lambda machine: IDENTITY,
) -> Iterator[Plan]:
    """Yield a plan for every machine, layout and pair of dtypes.

    Raises:
        BadInput: No layout is valid.
        Unsupported: A model with cross-attention.
    """
    check_not_crossing(model)
    laid = tuple(layouts(model, axes))
    if not laid:
        _refuse(model, axes)
    for machine in machines:
        efficiency = efficiency_of(machine)
        for layout, kv, weights in product(laid, stores.kv, stores.weights):
            yield Plan.of(
                model,
                machine,
                layout=layout,
                block_size=stores.block_size,
                kv_dtype=kv,
                weights_dtype=weights,
                efficiency=efficiency,
            )


class Room:
    """What the memory of a plan's devices holds beside the weights, over all stages of a pipeline.

    Args:
        plan: The deployment.
        stages: Its stages, where they are known already.
        utilization: Share of the memory that may be used.
        reserve_bytes: Memory that is neither weights nor cache.
    """

    def __init__(
        self, plan: Plan, stages: Stages | None = None, utilization: float = 0.9, reserve_bytes: int = 0
    ) -> None:
        self._groups = plan.layout.dp
        self._budgets = budgets(plan, stages, utilization, reserve_bytes)

    @property
    def short_bytes(self) -> int:
        """What the weights alone lack on the fullest device; 0 or less where they fit."""
        return -min(budget.available_bytes for budget in self._budgets)

    def over(self, tokens: int, seqs: int) -> float:
        """Return by what share of the budget the fullest device exceeds it; 0 or less where all fits."""
        demand = equal_lengths(tokens, seqs)
        needed = (
            (b.stored_weights_bytes + b.reserved_bytes + b.kv_bytes(demand)) / b.budget_bytes
            for b in self._budgets
        )
        return max(needed) - 1

    def holds(self, tokens: int, seqs: int) -> bool:
        """Return whether `seqs` sequences of `tokens` fit."""
        demand = equal_lengths(tokens, seqs)
        return all(budget.holds(demand) for budget in self._budgets)

    def most_seqs(self, tokens: int) -> int:
        """Return the most sequences of `tokens` that fit, exactly."""
        return min(max_seqs(budget, tokens) for budget in self._budgets)

    def most_tokens(self, seqs: int) -> int:
        """Return the longest `seqs` equal sequences that fit, exactly."""
        return min(max_tokens(budget, seqs) for budget in self._budgets)

    def most_spread(self, tokens: Callable[[int], int], limit: int, guess: int) -> int:
        """Return the most sequences that fit where n of them hold `n x tokens(n)`; `guess` is about that."""
        return largest(lambda n: self.holds(tokens(n), n), limit, guess)

    def real_seqs(self, tokens: int, extra_bytes: float = 0.0) -> float:
        """Return how many sequences of `tokens` fit as a real number, with so many bytes more per device."""
        many = MANY * self._groups
        return min(
            many * max(budget.available_bytes + extra_bytes, 0.0) / size
            if (size := budget.kv_bytes(equal_lengths(tokens, many)))
            else math.inf
            for budget in self._budgets
        )

    def real_tokens(self, seqs: int, near: int, extra_bytes: float = 0.0) -> float:
        """Return how long `seqs` sequences can be as a real number, growing as they do around `near`."""
        step = max(near // 64, 1)
        found = math.inf
        for budget in self._budgets:
            low, high = (budget.kv_bytes(equal_lengths(n, seqs)) for n in (max(near - step, 0), near + step))
            slope = (high - low) / (near + step - max(near - step, 0))
            left = budget.available_bytes + extra_bytes - (low + high) / 2
            found = min(found, near + left / slope if slope else math.inf)
        return found
