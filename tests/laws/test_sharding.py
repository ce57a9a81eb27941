"""Tensor-parallel shards sum to the whole, times what is replicated; only collectives are added."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvroof.cost.forward import forward
from kvroof.memory.kv import caches, kv
from kvroof.roofline.collectives import ring_bytes
from kvroof.roofline.plan import Plan
from kvroof.roofline.roofline import serial_s
from kvroof.spec.parallel import Layout
from kvroof.spec.params import stored_weights, weight_bytes

from .strategies import executions, few, machines, models, ranks_of, some, steps, tokens, totals


@st.composite
def sharded(draw):
    model = draw(models)
    return model, draw(st.sampled_from(ranks_of(model)))


@some
@given(sharded())
def test_shards_of_a_weight_sum_to_the_whole_times_its_copies(case):
    model, tp = case
    for weight, *_ in stored_weights(model):
        held = tp * weight.elements_per_rank(tp)
        copies = max(tp // weight.split, 1)
        if weight.role in ("embedding", "lm_head"):
            assert 0 <= held - weight.elements < tp
        else:
            assert held == weight.elements * copies


@some
@given(sharded())
def test_the_ranks_weights_are_the_whole_and_the_copies_and_the_padded_vocabulary(case):
    model, tp = case
    size = 2 * sum(
        layers * weight.elements * (max(tp // weight.split, 1) - 1)
        for weight, layers, *_ in stored_weights(model)
        if weight.role not in ("embedding", "lm_head")
    )
    padding = tp * weight_bytes(model, layout=Layout(tp=tp)) - weight_bytes(model) - size
    assert 0 <= padding < 2 * 2 * tp


@some
@given(sharded(), tokens)
def test_kv_shards_sum_to_the_whole_times_the_copies_of_each_head(case, n):
    model, tp = case
    report = kv(model, tokens=n, seqs=3, layout=Layout(tp=tp))
    (split,) = {cache.split for cache, _ in caches(model)}
    assert report.bytes_per_rank * tp == report.allocated_bytes * max(tp // split, 1)


def first_projections(mixer):
    """Return the matrices that read the layer's input: all but the output's and a second low-rank step."""
    return [w for w in mixer.projections if w.name not in ("o_proj", "q_b_proj")]


@few
@given(sharded(), steps, executions)
def test_ranks_share_the_flops_and_add_only_collectives(case, step, latent):
    model, tp = case
    alone, together = (
        totals(forward(model, step, Plan.of(model, "h100-sxm", tp=ranks).run(latent))) for ranks in (1, tp)
    )
    added = set(together) - set(alone)
    assert set(alone) <= set(together)
    assert bool(added) == (tp > 1)
    assert all(together[name][:4] == [0] * 4 and together[name][4] > 0 for name in added)
    copies = {w.name: max(tp // w.split, 1) for g in model.layers for w in g.layer.weights}
    for name, (flops, *_) in alone.items():
        if name == "qkv_proj":  # its parts have each their own number of copies
            parts = [(g.count, w) for g in model.layers for m in g.layer.mixers for w in first_projections(m)]
            held = sum(count * w.elements * copies[w.name] for count, w in parts)
            assert together[name][0] * tp == pytest.approx(2 * step.tokens * held, rel=1e-12)
            continue
        assert together[name][0] * tp == pytest.approx(flops * copies.get(name, 1), rel=1e-12, abs=2 * tp)


@few
@given(sharded(), steps)
def test_a_lone_rank_sends_nothing_and_more_ranks_send_less_than_twice_the_message(case, step):
    model, tp = case
    for op in forward(model, step, Plan.of(model, "h100-sxm", tp=tp).run("absorbed")):
        assert (op.collective is not None) == (op.message_bytes > 0)
        assert op.ranks == tp or op.collective is None
        moved = ring_bytes(op.collective, op.message_bytes, op.ranks) if op.collective else 0
        assert 0 <= moved <= 2 * op.message_bytes


@few
@given(sharded(), machines(), steps)
def test_ranks_never_gain_more_than_their_number(case, machine, step):
    model, tp = case
    alone, together = (serial_s(Plan.of(model, machine, tp=ranks).time(step)) for ranks in (1, tp))
    assert together * tp >= alone * (1 - 1e-9)
