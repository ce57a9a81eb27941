"""What is believed of a kernel before it is measured, and how firmly.

Means are the medians over accelerators, frameworks and dtypes of fits to the tables of aiconfigurator-core
0.12.0; `loose` is the standard deviation of the log that the fit may move a parameter by, 0 to leave it out
of the fit. What a few points cannot tell stays here.

The means, and the form itself, were settled with those tables in view, all chips among them: the held-out
errors of the shipped profiles are of points that were not fitted, not of a form chosen blind.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from kvroof.ground.record import record, static
from kvroof.roofline.efficiency import Kernel

Loose: TypeAlias = dict[str, float]

LLC_SHARE = 0.62
"""Share of a last-level cache that a swept working set finds usable: two partitions, ways, other data."""
LLC_UNKNOWN = 126 * 2**20
"""Cache of a chip whose own is not known: a Blackwell GPU's."""


@record
class Prior:
    """A kernel believed in, and how far each parameter may move; what `loose` leaves out is fixed."""

    mean: Kernel
    loose: Loose = static()


_GEMM = Prior(
    mean=Kernel(t0_s=5e-6, hbm=0.82, compute=0.65, sharpness=2.0, item_s=6e-9, depth_s=0.45e-6, llc_gain=1.5),
    loose={
        "t0_s": 0.5, "hbm": 0.12, "compute": 0.3, "sharpness": 0.35, "item_s": 0.6, "depth_s": 0.6,
        "llc_bytes": 0.4, "llc_gain": 0.3,
    },
)  # fmt: skip
_DECODE = Prior(
    mean=Kernel(
        t0_s=10.5e-6, hbm=0.89, compute=0.6, sharpness=1.55, item_s=9e-9, depth_s=1.55e-6, llc_gain=2.9,
        depth_power=0.5,
    ),
    loose={
        "t0_s": 0.3, "hbm": 0.12, "sharpness": 0.25, "item_s": 0.6, "depth_s": 0.4, "llc_bytes": 0.25,
        "llc_gain": 0.3,
    },
)  # fmt: skip
_PREFILL = Prior(
    mean=Kernel(
        t0_s=12e-6, hbm=0.67, compute=0.7, sharpness=1.3, item_s=22e-9, depth_s=9.5e-6, score_s=0.17e-12,
    ),
    loose={
        "t0_s": 0.35, "hbm": 0.4, "compute": 0.25, "sharpness": 0.2, "item_s": 0.6, "depth_s": 0.5,
        "score_s": 0.4,
    },
)  # fmt: skip
_MLA_DECODE = Prior(
    mean=replace(_DECODE.mean, t0_s=12e-6, hbm=0.75, compute=0.65, item_s=20e-9),
    loose=_DECODE.loose | {"hbm": 0.25, "compute": 0.5, "item_s": 0.8},
)
_MLA_PREFILL = Prior(mean=replace(_PREFILL.mean, t0_s=18e-6), loose=_PREFILL.loose)
_MOE = Prior(
    mean=Kernel(t0_s=30e-6, hbm=0.8, compute=0.4, sharpness=2.0, item_s=0.1e-6),
    loose={"t0_s": 0.4, "hbm": 0.25, "compute": 0.5, "sharpness": 0.4, "item_s": 0.8},
)
_PRIORS = {
    "gemm": _GEMM,
    "gemm.fp8": replace(_GEMM, mean=replace(_GEMM.mean, t0_s=6e-6, compute=0.55, depth_s=0.7e-6)),
    "gemm.fp8_block": replace(_GEMM, mean=replace(_GEMM.mean, t0_s=6e-6, compute=0.6, depth_s=0.85e-6)),
    "gemm.nvfp4": replace(_GEMM, mean=replace(_GEMM.mean, t0_s=6e-6, compute=0.44, depth_s=0.7e-6)),
    "attention.decode": _DECODE,
    "attention.prefill": _PREFILL,
    "mla.decode": _MLA_DECODE,
    "mla.prefill": _MLA_PREFILL,
    "moe": _MOE,
}


def prior_of(family: str, llc_bytes: float | None) -> Prior:
    """Return the prior of a family on a machine with that last-level cache (None: not known)."""
    head = family.partition(".")[0]
    found = next(
        (_PRIORS[name] for name in (family, family.rpartition(".")[0], head) if name in _PRIORS), _GEMM
    )
    if "llc_bytes" not in found.loose:
        return found
    usable = LLC_SHARE * (llc_bytes or LLC_UNKNOWN)
    return replace(found, mean=replace(found.mean, llc_bytes=usable))
