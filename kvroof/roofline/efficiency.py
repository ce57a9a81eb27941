"""How much of a machine's peaks is reached. Identity by default: an uncalibrated time is a bound."""

from __future__ import annotations

from kvroof.ground.record import record, static


@record
class Efficiency:
    """Shares of the peaks that are reached, and the seconds a launch costs.

    The identity reaches every peak and launches for free. `name` and `held_out_mape` are set by a
    calibration; without one there is no error to state, because the answer is a bound.
    """

    name: str | None = static(default=None)
    compute: float = 1.0
    hbm: float = 1.0
    net: float = 1.0
    launch_s: float = 0.0
    held_out_mape: float | None = None


IDENTITY = Efficiency()
