"""More of anything never costs less; a window that covers everything is no window."""

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from kvroof.cost.forward import forward
from kvroof.memory.kv import kv
from kvroof.roofline.plan import Plan
from kvroof.roofline.roofline import overlapped_s, serial_s
from kvroof.spec.reach import Chunked, Full, Sliding
from kvroof.spec.workload import Sequences, Step

from .strategies import batches, executions, few, gemma3_configs, models, plans, reaches, read, some, tokens

JUST_MORE = 1 - 1e-12
"""Sums of floats may differ in the last digit."""


@some
@given(reaches(), tokens, tokens)
def test_pairs_kept_and_read_grow_with_tokens(reach, a, b):
    a, b = sorted((a, b))
    assert reach.pairs(a) <= reach.pairs(b)
    assert reach.kept(a) <= reach.kept(b)
    assert reach.pairs(b) - reach.pairs(a) <= (b - a) * b
    assert reach.read(b, b) >= reach.read(a, a)


@some
@given(st.sampled_from((Sliding, Chunked)), st.integers(1, 500), st.integers(1, 500), tokens)
def test_a_sliding_window_grows_what_is_kept_and_scored(kind, a, b, n):
    a, b = sorted((a, b))
    small, large = kind(size=a), kind(size=b)
    assert small.kept(n) <= large.kept(n) <= Full().kept(n)
    assert small.pairs(n) <= Full().pairs(n)
    if kind is Sliding:
        assert small.pairs(n) <= large.pairs(n)


@some
@given(st.sampled_from((Sliding, Chunked)), st.integers(1, 500), st.data())
def test_a_window_equals_full_while_it_covers(kind, size, data):
    kv_len = data.draw(st.integers(1, size))
    query_len = data.draw(st.integers(1, kv_len))
    window = kind(size=size)
    assert window.kept(kv_len) == Full().kept(kv_len)
    assert window.pairs(kv_len) == Full().pairs(kv_len)
    assert window.read(query_len, kv_len) == Full().read(query_len, kv_len)


@few
@given(models, tokens, tokens, batches, batches)
def test_the_cache_grows_with_tokens_and_with_sequences(model, a, b, few_seqs, more_seqs):
    a, b = sorted((a, b))
    few_seqs, more_seqs = sorted((few_seqs, more_seqs))
    small, large = kv(model, tokens=a, seqs=few_seqs), kv(model, tokens=b, seqs=more_seqs)
    assert small.payload_bytes <= large.payload_bytes
    assert small.allocated_bytes <= large.allocated_bytes


@few
@given(models, tokens, batches)
def test_a_step_adds_its_growth_to_the_payload(model, n, batch):
    before, after = kv(model, tokens=n, seqs=batch), kv(model, tokens=n + 1, seqs=batch)
    assert after.payload_bytes - before.payload_bytes == batch * before.bytes_per_token


@few
@given(gemma3_configs(), st.integers(1, 3000), tokens, batches)
def test_a_wider_window_never_costs_less(config, more, n, batch):
    narrow = read(config)
    wide = read({**config, "sliding_window": config["sliding_window"] + more})
    assert kv(narrow, tokens=n, seqs=batch).payload_bytes <= kv(wide, tokens=n, seqs=batch).payload_bytes
    step = Step(groups=(Sequences(count=batch, query_len=1, kv_len=n),))
    assert serial_s(Plan.of(narrow, "h100-sxm").time(step)) <= serial_s(Plan.of(wide, "h100-sxm").time(step))


@few
@given(gemma3_configs(), st.data(), batches)
def test_a_model_whose_windows_cover_costs_what_a_full_one_does(config, data, batch):
    windowed = read(config)
    full = read({**config, "layer_types": ["full_attention"] * config["num_hidden_layers"]})
    n = data.draw(st.integers(1, config["sliding_window"]))
    a, b = kv(windowed, tokens=n, seqs=batch), kv(full, tokens=n, seqs=batch)
    assert (a.payload_bytes, a.allocated_bytes) == (b.payload_bytes, b.allocated_bytes)
    step = Step(groups=(Sequences(count=batch, query_len=data.draw(st.integers(1, n)), kv_len=n),))
    one, other = (Plan.of(m, "h100-sxm") for m in (windowed, full))
    flops = [sum(o.count * o.flops for o in forward(p.model, step, p.run("absorbed"))) for p in (one, other)]
    assert flops[0] == flops[1]
    assert abs(serial_s(one.time(step)) / serial_s(other.time(step)) - 1) < 1e-12


@few
@given(plans(), tokens, tokens, batches, batches, executions)
def test_a_step_takes_longer_with_more_tokens_and_with_more_sequences(plan, a, b, n, m, latent):
    a, b = sorted((a, b))
    n, m = sorted((n, m))
    short = plan.time(Step(groups=(Sequences(count=n, query_len=min(a, 7), kv_len=a),)), latent)
    long = plan.time(Step(groups=(Sequences(count=m, query_len=min(b, 7), kv_len=b),)), latent)
    assert serial_s(short) * JUST_MORE <= serial_s(long)
    assert overlapped_s(short, plan.hardware) * JUST_MORE <= overlapped_s(long, plan.hardware)


@few
@given(plans(), tokens, batches, st.floats(1, 10))
def test_a_faster_machine_is_never_slower(plan, n, batch, faster):
    machine = plan.hardware
    step = Step(groups=(Sequences(count=batch, query_len=1, kv_len=n),))
    slow = serial_s(plan.time(step))
    better = (
        dataclasses.replace(machine, hbm_bytes_per_s=machine.hbm_bytes_per_s * faster),
        dataclasses.replace(
            machine, peak_flops_per_s={k: v * faster for k, v in machine.peak_flops_per_s.items()}
        ),
    )
    for other in better:
        assert serial_s(dataclasses.replace(plan, hardware=other).time(step)) * JUST_MORE <= slow
