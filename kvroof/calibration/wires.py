"""Measured collectives -> a wire: latency and bandwidth of the algorithms a message may take."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from kvroof.calibration.points import Column
from kvroof.ground.record import record, static
from kvroof.roofline.collectives import ring_passes
from kvroof.roofline.efficiency import Wire

SERVED_BYTES = (4096, 2**28)
"""Messages of serving: a token's hidden state of a small model, to a large prefill's."""
NOISE = 0.1
_MEAN = Wire(ring_s=9e-6, per_rank=0.1, net=0.75, crowding=0.05, start_s=4.5e-6)
_LOOSE = {"ring_s": 0.7, "per_rank": 0.7, "net": 0.3, "crowding": 2.0, "start_s": 0.5}
_LIMITS = {"net": (0.01, 1.0), "crowding": (1e-3, 3.0), "per_rank": (1e-3, 3.0)}


@record
class Messages:
    """Measurements of one collective: `message_bytes` is the gathered size, links are one way."""

    collective: str = static()
    ranks: Column
    message_bytes: Column
    seconds: Column
    link_bytes_per_s: Column
    version: str = static(default="")

    @property
    def passes(self) -> int:
        """How often a ring carries the message round."""
        return ring_passes(self.collective)

    def take(self, chosen: Column) -> Messages:
        """Return the chosen measurements."""
        return replace(
            self,
            ranks=self.ranks[chosen],
            message_bytes=self.message_bytes[chosen],
            seconds=self.seconds[chosen],
            link_bytes_per_s=self.link_bytes_per_s[chosen],
        )

    def predict(self, wire: Wire) -> Column:
        """Return the seconds `wire` predicts."""
        return wire.seconds(self.message_bytes, self.ranks, self.link_bytes_per_s, self.passes)  # type: ignore[no-any-return, unused-ignore]


@record
class FittedWire:
    """A wire with its error on the messages that were not fitted: shares, as in `fit.Fitted`."""

    collective: str = static()
    wire: Wire
    points: int = static()
    held_out: int = static()
    mape: float
    sigma: float
    version: str = static(default="")


def fit_wire(messages: Messages) -> FittedWire:
    """Return the wire fitted to every second message of each number of ranks, judged on the others."""
    from scipy.optimize import least_squares  # type: ignore[import-untyped, unused-ignore]

    low, high = SERVED_BYTES
    messages = messages.take((messages.message_bytes >= low) & (messages.message_bytes <= high))
    order = np.lexsort((messages.message_bytes, messages.ranks))
    fitted, rest = messages.take(order[::2]), messages.take(order[1::2])
    prior = _MEAN if messages.collective == "all_reduce" else replace(_MEAN, start_s=None)
    free = tuple(name for name in _LOOSE if getattr(prior, name) is not None)
    mean = np.log([getattr(prior, name) for name in free])
    bounds = np.log([_LIMITS.get(name, (1e-9, 1.0)) for name in free]).T

    def made(theta: Any) -> Wire:
        moved: dict[str, Any] = {n: float(v) for n, v in zip(free, np.exp(theta), strict=True)}
        return replace(prior, **moved)

    def misfit(theta: Any) -> Any:
        off = (np.log(fitted.predict(made(theta))) - np.log(fitted.seconds)) / NOISE
        gentle = np.sign(off) * np.sqrt(2 * (np.sqrt(1 + off * off) - 1))
        return np.concatenate([gentle, (theta - mean) / np.array([_LOOSE[name] for name in free])])

    wire = made(least_squares(misfit, mean, bounds=bounds, max_nfev=200).x)
    ratio = rest.predict(wire) / rest.seconds
    return FittedWire(
        collective=messages.collective,
        wire=wire,
        points=len(fitted.seconds),
        held_out=len(rest.seconds),
        mape=float(np.abs(ratio - 1).mean()),
        sigma=float(np.log(ratio).std()),
        version=messages.version,
    )
