"""The engine's rounds against their prediction, by a calibration of the same device in the same run.

Widths and lengths are none of those that the calibration measured. Figures are shares and ratios of one run;
a machine with other work moves both sides, so the bars are wide and the figures are in the report.
"""

import pytest
from numpy.random import default_rng

from kvroof.calibration.engine_steps import predict_run
from kvroof.calibration.local.bench import Effort
from kvroof.calibration.local.calibrate import calibrate_shapes
from kvroof.calibration.local.device import local_device
from kvroof.calibration.local.shapes import QUICK
from kvroof.catalog.models import load_model
from kvroof.engine.executor import Settings
from kvroof.engine.requests import Request
from kvroof.engine.runner import Runner
from kvroof.engine.scaling import Scale, scaled_down
from kvroof.schedule.policies import Policy

WIDE = Scale(hidden_size=384, head_dim=48, vocab_size=3072, num_layers=3)
REPEATS = 5


@pytest.fixture(scope="module")
def here():
    """Return the calibration of this device."""
    return calibrate_shapes(local_device(), QUICK, Effort(repeats=15, bench_s=1.0, limit_s=150))


@pytest.mark.parametrize("scale", [Scale(), WIDE], ids=["default", "wide"])
def test_rounds_take_what_is_predicted(benchmark, here, scale):
    model = scaled_down(load_model("llama-3.1-8b"), scale)
    policy = Policy(
        name="continuous",
        max_num_seqs=8,
        max_num_batched_tokens=512,
        reserve="prompt",
        preemption="recompute",
    )
    runner = Runner(model, policy, Settings(block_size=16, num_blocks=256))
    draw = default_rng(0)
    lengths = draw.integers(64, 256, 8)

    def serve():
        first = len(runner.kept)
        runner.run(
            Request(request=first + i, tokens=tuple(map(int, draw.integers(0, 100, n))), output_tokens=8 + i)
            for i, n in enumerate(lengths)
        )

    benchmark.pedantic(serve, rounds=REPEATS, warmup_rounds=1)
    found = predict_run(model, runner.report(), here.machine, here.rates)
    measured = sum(done.measured_s for done in found.rounds)
    ratio = found.predicted_makespan_s / measured
    benchmark.extra_info |= {
        "predicted over measured": round(ratio, 3),
        "median step error": round(found.median_step_error, 3),
        "prefill": round(found.prefill_step_error, 3),
        "decode": round(found.decode_step_error, 3),
        "busy": round(here.busy, 2),
        "load": here.load,
    }
    assert 0.3 < ratio < 3
