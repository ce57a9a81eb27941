"""A whole machine under a framework: every family fitted, and the profile that says so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np

import kvroof
from kvroof.calibration.fit import POINTS, Fitted, fit_family
from kvroof.calibration.points import Points, thinned
from kvroof.calibration.priors import Prior
from kvroof.calibration.profile import Calibration, Host, KernelTable, WireTable
from kvroof.calibration.sources import Source
from kvroof.calibration.wires import FittedWire, Messages, fit_wire
from kvroof.ground.errors import BadInput
from kvroof.ground.record import record, static
from kvroof.spec.hardware import Hardware

MOST = 4000
"""Points per family that are read: enough to judge by, few enough to be quick."""
HOST = Host(
    step_s=0.5e-3,
    seq_s=10e-6,
    source="stated: 0.5 ms per step and 10 us per sequence, from a study of served points; not fitted here",
)
ELEMENTWISE = KernelTable(
    t0_s=3e-6,
    hbm=0.8,
    sigma=0.5,
    stated="not measured: a launch of 3 us and 0.8 of the bandwidth",
)
SLOW = 0.25
"""Share of the bandwidth below which experts are a fallback that nobody would serve with."""
UNLIKE = 0.35
"""Held-out error beyond which a family is left to its relatives."""
LENDERS = ("tensorrt-llm", "sglang", "vllm")
"""Whose kernels stand in where a framework has none on a machine; TensorRT-LLM's latent attention is expanded
in prefill, as vLLM's is, and SGLang's on Hopper is not."""


@record
class Fitting:
    """How families are fitted: to a `share` of their points, or else to `count` of them; the rest judge.

    `prior` gives what is believed of a family; None takes the accelerators'. A family that is off by more
    than `unlike` is left out.
    """

    count: int = POINTS
    share: float | None = None
    prior: Callable[[str], Prior] | None = static(default=None)
    unlike: float = UNLIKE

    def of(self, points: Points) -> int:
        """Return how many of these points are fitted."""
        return self.count if self.share is None else max(round(self.share * len(points)), 1)

    def believed(self, family: str) -> Prior | None:
        """Return the prior of a family, None for the accelerators'."""
        return None if self.prior is None else self.prior(family)


class WithMessages(Protocol):
    """A source that also has collectives."""

    def messages(self, hardware: Hardware, framework: str) -> Iterable[Messages]:
        """Yield the collectives measured on a machine under a framework."""
        ...


def build(
    source: Source,
    hardware: Hardware,
    framework: str,
    *,
    fitting: Fitting = Fitting(),  # noqa: B008 - a frozen record
    collectives: WithMessages | None = None,
    others: tuple[str, ...] = (),
    host: Host = HOST,
) -> Calibration:
    """Return the profile of a machine under a framework, fitted from some points of each family.

    Args:
        source: Where the measured kernels are.
        hardware: The machine they were measured on.
        framework: The framework they were measured under.
        fitting: How many points of a family are fitted, and to what.
        collectives: Where measured collectives are, if anywhere.
        others: Frameworks to borrow families from that this one lacks, measured on the same machine.
        host: The host's own times.

    Raises:
        BadInput: No family has enough points.
    """
    fitted, notes = _fit_all(source, hardware, framework, fitting)
    kernels = {one.family: _table(one) for one in fitted}
    for other in others:
        for one in _fit_all(source, hardware, other, fitting)[0]:
            if one.family not in kernels:
                kernels[one.family] = _table(one, borrowed=other)
    if not kernels:
        raise BadInput(f"has no points of {hardware.name} under {framework}", where="calibrate")
    kernels.setdefault("elementwise", ELEMENTWISE)
    wires = [fit_wire(m) for m in collectives.messages(hardware, framework)] if collectives else []
    return Calibration(
        name=f"{hardware.name}-{framework}",
        hardware=hardware.name,
        framework=framework,
        source=f"{source.provenance}; fitted to {_said(fitting)}, collectives to every second one",
        made_with=f"kvroof {kvroof.__version__}",
        notes=(*source.scope, *notes),
        host=host,
        kernels=dict(sorted(kernels.items())),
        wires={wire.collective: _wire_table(wire) for wire in wires},
    )


def _said(fitting: Fitting) -> str:
    return f"{fitting.count if fitting.share is None else f'{fitting.share:.0%} of the'} points per family"


def _fit_all(
    source: Source, hardware: Hardware, framework: str, fitting: Fitting
) -> tuple[list[Fitted], list[str]]:
    """Return the families worth keeping, and why others were left out."""
    kept, notes = [], []
    for points in source.points(hardware, framework):
        points = thinned(points, MOST)
        prior = fitting.believed(points.family)
        one = fit_family(points, hardware.llc_bytes, fitting.of(points), prior)
        who = f"{one.family} ({one.implementation}) left out: "
        if one.eager:
            notes.append(who + "measured with the host launching every kernel, which hides the kernel's time")
        elif one.family.startswith("moe") and one.kernel.hbm < SLOW:
            notes.append(
                who + f"a fallback that reaches {one.kernel.hbm:.0%} of the bandwidth, not for serving"
            )
        elif one.held_out and one.mape > fitting.unlike:
            notes.append(who + f"no few parameters describe it ({one.mape:.0%} off)")
        else:
            kept.append(one)
    return kept, notes


def pooled(profiles: Sequence[Calibration], name: str, hardware: str = "") -> Calibration:
    """Return the profile of a typical machine: the median of each parameter over measured profiles.

    What belongs to one chip or was borrowed stays out: cache terms and collectives. Its errors have to be
    judged on machines that are not among `profiles`; until then they are the fits' own medians.

    Raises:
        BadInput: No profiles.
    """
    own: dict[str, list[KernelTable]] = {}
    for profile in profiles:
        for family, table in profile.kernels.items():
            if table.held_out and table.borrowed is None:
                own.setdefault(family, []).append(table)
    if not own:
        raise BadInput("there are no profiles to pool", where=name)
    kernels = {family: _median(tables) for family, tables in sorted(own.items())}
    return Calibration(
        name=name,
        hardware=hardware,
        framework="any",
        source=f"medians of {len(profiles)} profiles fitted to aiconfigurator-core (Apache-2.0, NVIDIA)",
        made_with=f"kvroof {kvroof.__version__}",
        notes=("a typical machine of the shipped profiles, not a measured one",),
        host=HOST,
        kernels=kernels | {"elementwise": ELEMENTWISE},
    )


def _median(tables: Sequence[KernelTable]) -> KernelTable:
    names = ("t0_s", "hbm", "compute", "sharpness", "item_s", "depth_s", "score_s")
    mid = {name: float(np.median([getattr(table, name) for table in tables])) for name in names}
    errors = [table.held_out_mape or 0.0 for table in tables]
    return KernelTable(
        t0_s=mid["t0_s"],
        hbm=mid["hbm"],
        compute=mid["compute"],
        sharpness=mid["sharpness"],
        item_s=mid["item_s"],
        depth_s=mid["depth_s"],
        depth_power=tables[0].depth_power,
        score_s=mid["score_s"],
        sigma=float(np.median([table.sigma for table in tables])),
        held_out_mape=float(np.median(errors)),
        stated=f"medians of {len(tables)} fits",
    )


def _table(one: Fitted, borrowed: str | None = None) -> KernelTable:
    k = one.kernel
    judged = one.held_out > 0
    return KernelTable(
        t0_s=k.t0_s,
        hbm=k.hbm,
        compute=k.compute,
        sharpness=k.sharpness,
        item_s=k.item_s,
        depth_s=k.depth_s,
        depth_power=k.depth_power,
        score_s=k.score_s,
        llc_bytes=k.llc_bytes,
        llc_gain=k.llc_gain,
        sigma=one.sigma if judged else 0.5,
        held_out_mape=one.mape if judged else None,
        held_out_median=one.median if judged else None,
        bias=one.bias if judged else None,
        points=one.points,
        held_out=one.held_out,
        kernel=one.implementation,
        version=one.version,
        at_prior=one.at_prior,
        borrowed=borrowed,
    )


def _wire_table(one: FittedWire) -> WireTable:
    return WireTable(
        ring_s=one.wire.ring_s,
        per_rank=one.wire.per_rank,
        net=one.wire.net,
        crowding=one.wire.crowding,
        start_s=one.wire.start_s,
        sigma=one.sigma,
        held_out_mape=one.mape,
        points=one.points,
        held_out=one.held_out,
        version=one.version,
    )
