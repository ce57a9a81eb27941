"""The host's own time per step and per sequence, from rounds of the engine that compute next to nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kvroof.calibration.engine_steps import PredictedRun, predict_run
from kvroof.calibration.profile import Host
from kvroof.catalog.models import load_model
from kvroof.engine.executor import Settings
from kvroof.engine.requests import Request
from kvroof.engine.runner import Runner
from kvroof.engine.scaling import Scale, scaled_down
from kvroof.roofline.efficiency import Efficiency
from kvroof.schedule.policies import Policy
from kvroof.spec.hardware import Hardware

MODEL = "llama-3.1-8b"
SEQS = 8
FEWEST_S = 1e-6
LEAST_ROUNDS = 4
Usual = Callable[..., Any]
"""What becomes of several rounds: their median, or their minimum."""


def host_times(
    hardware: Hardware,
    efficiency: Efficiency,
    dispatch_s: float,
    tokens: int,
    scale: Scale = Scale(),  # noqa: B008 - a frozen record
    shortest: bool = False,
) -> Host:
    """Return the host's times: what the engine's decode rounds took beyond their kernels.

    Requests end one after another, so that rounds of the same padded call have 8 sequences to 1. Rounds as
    short as a call that computes nothing are taken for that call.

    Args:
        hardware: The machine.
        efficiency: Its kernels, the host left out.
        dispatch_s: The seconds of an empty call.
        tokens: Rounds with each number of sequences.
        scale: How small the engine's model is.
        shortest: Take the shortest round of each number of sequences, not the median.
    """
    run = _rounds(hardware, efficiency, tokens, scale)
    rounds = [done for done in run.rounds if done.kind == "decode"]
    seqs = np.array([float(done.tokens) for done in rounds])
    rest = np.array([done.measured_s - done.device_s for done in rounds])
    usual: Usual = np.min if shortest else np.median
    step, seq = line(seqs, rest, usual) if len(rounds) >= LEAST_ROUNDS else (float(usual(rest)), 0.0)
    return Host(
        step_s=min(max(step, dispatch_s, FEWEST_S), 1.0),
        seq_s=min(seq, 1e-2),
        source=f"measured: {len(rounds)} rounds of the engine, 1 to {SEQS} sequences, less their kernels",
    )


def line(x: np.ndarray, y: np.ndarray, usual: Usual = np.median) -> tuple[float, float]:
    """Return the start and the slope, neither below 0, through the `usual` of `y` at each `x`."""
    at = np.unique(x)
    middle = np.array([usual(y[x == value]) for value in at])
    pairs = [(middle[j] - middle[i]) / (at[j] - at[i]) for i in range(len(at)) for j in range(i + 1, len(at))]
    slope = max(float(np.median(pairs)), 0.0) if pairs else 0.0
    return max(float(np.median(middle - slope * at)), 0.0), slope


def _rounds(hardware: Hardware, efficiency: Efficiency, tokens: int, scale: Scale) -> PredictedRun:
    model = scaled_down(load_model(MODEL), scale)
    policy = Policy(
        name="continuous", max_num_seqs=SEQS, max_num_batched_tokens=64 * SEQS, reserve="prompt",
        preemption="recompute",
    )  # fmt: skip
    settings = Settings(num_blocks=16 * SEQS, fewest_seqs=SEQS, fewest_queries=16, fewest_blocks=8)
    runner = Runner(model, policy, settings)
    prompt = tuple(range(1, 9))
    runner.run(
        Request(request=number, tokens=prompt, output_tokens=1 + tokens * (number + 1))
        for number in range(SEQS)
    )
    return predict_run(model, runner.report(), hardware, efficiency)
