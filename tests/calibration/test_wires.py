"""Collectives: a wire's own seconds are fitted back, and unfitted messages judge it."""

from dataclasses import replace

import numpy as np
import pytest

from kvroof.calibration.wires import Messages, fit_wire
from kvroof.roofline.efficiency import Wire

RANKS, SIZES = np.meshgrid([2.0, 4.0, 8.0], 2.0 ** np.arange(8, 29), indexing="ij")


def messages(wire: Wire, collective: str) -> Messages:
    made = Messages(
        collective=collective,
        ranks=RANKS.ravel(),
        message_bytes=SIZES.ravel(),
        seconds=np.ones(RANKS.size),
        link_bytes_per_s=np.full(RANKS.size, 4.5e11),
    )
    return replace(made, seconds=made.predict(wire))


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather"])
def test_a_wire_is_fitted_back_from_its_own_seconds(collective):
    start = 4e-6 if collective == "all_reduce" else None
    truth = Wire(ring_s=1.5e-5, per_rank=0.15, net=0.65, crowding=0.05, start_s=start)
    fitted = fit_wire(messages(truth, collective))
    assert fitted.mape < 0.02
    assert fitted.wire.net == pytest.approx(0.65, rel=0.1)
    assert fitted.wire.ring_s == pytest.approx(1.5e-5, rel=0.15)
    assert (fitted.wire.start_s is None) == (start is None)


def test_every_second_message_is_held_out():
    fitted = fit_wire(messages(Wire(ring_s=1e-5, net=0.7), "all_gather"))
    assert abs(fitted.points - fitted.held_out) <= 1
