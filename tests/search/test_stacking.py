import numpy as np
import pytest

from kvroof.search.candidates import Candidate, surfaces
from kvroof.search.stacking import structure

MACHINES = ("h100-sxm", "h200-sxm", "b200-sxm", "a100-sxm-80gb", "gb200-nvl72", "l40s", "mi300x", "tpu-v5p")


@pytest.mark.parametrize("calibrated", [True, False])
@pytest.mark.parametrize(
    ("model", "axes"), [("llama-3.1-8b", {"tp": 2}), ("qwen3-30b-a3b", {"dp": 2, "tp": 1})]
)
def test_machines_evaluated_together_are_what_each_is_alone(choose, ask, model, axes, calibrated):
    plans = choose(model, *MACHINES, calibrated=calibrated, pp=1, **axes)
    candidates = [c for plan in plans if (c := Candidate(plan, ask(1000, 200))).possible]
    candidates += [candidate.in_chunks() for candidate in candidates]
    boxes = [candidate.box() for candidate in candidates]
    alone = [surfaces([candidate], [box])[0] for candidate, box in zip(candidates, boxes, strict=True)]
    for one, other in zip(surfaces(candidates, boxes), alone, strict=True):
        assert np.allclose(one, other, rtol=1e-9, atol=1e-9)
    assert len({structure(candidate.plan) for candidate in candidates}) < len(candidates) / 2


def test_what_differs_in_more_than_numbers_is_kept_apart(choose):
    of = {
        name: structure(choose("llama-3.1-8b", name, calibrated=kind, tp=tp, pp=1, most_devices=tp)[0])
        for name, kind, tp in (("h100-sxm", True, 1), ("v100-sxm2-32gb", False, 1), ("rtx-4090", False, 1))
    }
    assert of["h100-sxm"] != of["rtx-4090"]  # one is calibrated
    assert of["v100-sxm2-32gb"] != of["rtx-4090"]  # one has no bf16
    two, eight = (structure(choose("llama-3.1-8b", "h100-sxm", tp=tp, pp=1)[0]) for tp in (2, 8))
    assert two != eight
