"""Encoder-decoders are timed over every decode step, their encoder's keys and values made once."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest

from kvroof.cost.formulas import cross_read
from kvroof.roofline.plan import Plan
from kvroof.serving.latency import estimate
from kvroof.spec.workload import decode, verify


@pytest.mark.parametrize("model", ["whisper-tiny", "bart-base"])
def test_an_encoder_is_crossed_in_every_step_and_stored_in_the_first(model: str) -> None:
    plan = Plan.of(model, "h100-sxm")
    alone = estimate(plan, isl=16, osl=8, batch=2)
    crossed = estimate(plan, isl=16, osl=8, batch=2, encoder_tokens=1000)
    assert not [op for op in alone.decode_ops if op.name == "attention.cross"]
    [read] = [op for op in crossed.decode_ops if op.name == "attention.cross"]
    [made] = [op for op in crossed.prefill_ops if op.name == "attention.cross"]
    layers, width = int(read.count), plan.model.hidden_size
    cache = layers * 2 * 1000 * 2 * width * 2  # two requests, K and V in bf16
    assert read.hbm_bytes == pytest.approx(cache, rel=0.05)
    assert made.hbm_bytes == pytest.approx(2 * cache, rel=0.05)
    assert crossed.tpot_s > alone.tpot_s
    assert crossed.memory.kv_bytes > alone.memory.kv_bytes


def test_steps_of_many_sizes_cross_no_encoder_where_there_is_none() -> None:
    sizes = np.array([1.0, 2.0])
    assert cross_read(decode(cast(int, sizes), 5)) == 0
    assert cross_read(verify(3, 9, 2, encoder_len=7)) == 3 * 7
