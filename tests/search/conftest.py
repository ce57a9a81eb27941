"""Deployments and questions that the tests of the search share."""

import pytest

from kvroof.calibration.load import load_calibration
from kvroof.catalog.models import load_model
from kvroof.catalog.profiles import load_hardware
from kvroof.roofline.efficiency import IDENTITY
from kvroof.search.choices import Axes, Stores, plans
from kvroof.search.question import Question
from kvroof.serving.demand.lengths import fixed
from kvroof.serving.pools.goodput import limits


@pytest.fixture(scope="session")
def choose():
    """Return a function that lists plans of a model on machines."""

    def listed(model="qwen3-32b", *machines, calibrated=True, **axes):
        found = [load_hardware(name) for name in machines or ("h200-sxm",)]
        efficiency = {m.name: calibrated and load_calibration("auto", m.name) for m in found}
        return list(
            plans(load_model(model), found, Axes(**axes), Stores(), lambda m: efficiency[m.name] or IDENTITY)
        )

    return listed


@pytest.fixture(scope="session")
def ask():
    """Return a function that makes a question of equal requests."""

    def question(isl=4000, osl=1000, ttft=1.0, tpot=0.02, **rest):
        return Question(isl=fixed(isl), osl=fixed(osl), limits=limits(ttft, tpot), **rest)

    return question
