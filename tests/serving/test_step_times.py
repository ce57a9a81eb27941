"""Seconds of a step: what cannot be asked over time is refused, wherever it is asked."""

import pytest

from kvroof.calibration.deployments import Deployments
from kvroof.calibration.served import ServedPoint
from kvroof.ground.errors import Unsupported
from kvroof.roofline.plan import Plan
from kvroof.search.sweep import StepSweep
from kvroof.serving.demand.lengths import fixed
from kvroof.serving.demand.requests import poisson
from kvroof.serving.demand.traffic import traffic
from kvroof.serving.pools.goodput import replica
from kvroof.serving.simulation.replay import Deployed, replay
from kvroof.serving.step_times import PlanTimes

CROSSING = Plan.of("t5-11b", "h100-sxm")
REQUESTS = poisson(1.0, 2, input_tokens=64, output_tokens=8)


@pytest.mark.parametrize(
    "ask",
    [
        PlanTimes,
        StepSweep,
        lambda plan: replica(plan, traffic(fixed(64), fixed(8))),
        lambda plan: replay(REQUESTS, Deployed(plan=plan)),
        lambda plan: Deployments("none").steps(_point(plan)),
    ],
    ids=["step times", "sweep", "replica", "replay", "served points"],
)
def test_requests_over_time_have_no_encoder_and_say_so(ask):
    with pytest.raises(Unsupported, match="--encoder-tokens"):
        ask(CROSSING)


def _point(plan):
    return ServedPoint(
        model=plan.model.name, hardware=plan.hardware.name, isl=64, osl=8, concurrency=1, tpot_s=1.0
    )
