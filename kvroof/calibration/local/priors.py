"""What is believed of a kernel on a device of which nothing is known: little, so that its points decide."""

from __future__ import annotations

from kvroof.calibration.priors import Prior
from kvroof.roofline.efficiency import Kernel

_LOOSE = {"t0_s": 1.5, "hbm": 1.2, "compute": 0.8, "sharpness": 0.4, "item_s": 1.5, "depth_s": 1.0}
_PRODUCT = Prior(
    mean=Kernel(t0_s=4e-6, hbm=0.5, compute=0.7, sharpness=2.0, item_s=1e-7, depth_s=2e-6),
    loose=_LOOSE,
)
_ATTENTION = Prior(
    mean=Kernel(t0_s=15e-6, hbm=0.4, compute=0.3, sharpness=2.0, item_s=2e-6, depth_s=4e-6, score_s=1e-9),
    loose=_LOOSE | {"score_s": 1.5},
)
_PREFILL = Prior(mean=_ATTENTION.mean, loose=_ATTENTION.loose | {"hbm": 0.2})
"""A prompt is bound by what it computes: its bytes are few."""
_ELEMENTWISE = Prior(
    mean=Kernel(t0_s=4e-6, hbm=0.3, sharpness=2.0), loose={"t0_s": 1.5, "hbm": 1.5, "sharpness": 0.4}
)


def local_prior(family: str) -> Prior:
    """Return the prior of a family on any device; its caches are not modelled, programs read past them."""
    if family.startswith("attention.prefill"):
        return _PREFILL
    return {"attention": _ATTENTION, "elementwise": _ELEMENTWISE}.get(family.partition(".")[0], _PRODUCT)
