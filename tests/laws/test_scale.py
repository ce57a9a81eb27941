"""Units are a choice: rescaling the second or the byte rescales answers; so do batches and lists."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvroof.cost.forward import forward
from kvroof.memory.kv import kv
from kvroof.roofline.plan import Plan
from kvroof.roofline.roofline import bound_of, overlapped_s, serial_s
from kvroof.spec.architecture import LayerGroup
from kvroof.spec.hardware import Link
from kvroof.spec.params import params_total, weight_bytes
from kvroof.spec.workload import Sequences, Step

from .strategies import (
    batches,
    configs,
    executions,
    few,
    machines,
    models,
    plans,
    ranks_of,
    read,
    some,
    steps,
    tokens,
    totals,
)

SAME = {"rel": 1e-12, "abs": 0}


@some
@given(plans(), steps, executions)
def test_no_schedule_beats_the_lower_bound(plan, step, latent):
    timed = plan.time(step, latent)
    assert 0 < overlapped_s(timed, plan.hardware) <= serial_s(timed) * (1 + 1e-12)


@some
@given(plans(), steps, executions)
def test_the_serial_sum_is_between_the_largest_resource_and_all_of_them(plan, step, latent):
    timed = plan.time(step, latent)
    parts = [sum(getattr(t, name) for t in timed) for name in ("compute_s", "hbm_s", "network_s")]
    overhead = sum(t.overhead_s for t in timed)
    assert max(parts) * (1 - 1e-12) <= serial_s(timed) <= (sum(parts) + overhead) * (1 + 1e-12)


@some
@given(plans(), steps, st.floats(1e-6, 1e6))
def test_rescaling_the_second_rescales_the_times(plan, step, c):
    machine, efficiency = plan.hardware, plan.efficiency
    wire = dataclasses.replace(machine.scale_up, bytes_per_s=machine.scale_up.bytes_per_s * c)
    scaled = dataclasses.replace(
        plan,
        hardware=dataclasses.replace(
            machine,
            hbm_bytes_per_s=machine.hbm_bytes_per_s * c,
            peak_flops_per_s={k: v * c for k, v in machine.peak_flops_per_s.items()},
            scale_up=wire,
        ),
        efficiency=dataclasses.replace(efficiency, launch_s=efficiency.launch_s / c),
    )
    before, after = plan.time(step), scaled.time(step)
    assert serial_s(after) * c == pytest.approx(serial_s(before), **SAME)
    assert overlapped_s(after, scaled.hardware) * c == pytest.approx(overlapped_s(before, machine), **SAME)


@some
@given(configs, machines(), steps, executions, st.data())
def test_rescaling_the_byte_leaves_the_times(config, machine, step, latent, data):
    peak = machine.peak_flops_per_s["bf16"]
    machine = dataclasses.replace(machine, peak_flops_per_s={"bf16": peak, "fp32": peak})
    wider = dataclasses.replace(
        machine,
        hbm_bytes_per_s=2 * machine.hbm_bytes_per_s,
        scale_up=Link(name="wire", bytes_per_s=2 * machine.scale_up.bytes_per_s),
    )
    narrow, wide = (read({**config, "torch_dtype": name}) for name in ("bfloat16", "float32"))
    tp = data.draw(st.sampled_from(ranks_of(narrow)))
    halves = Plan.of(narrow, machine, tp=tp, kv_dtype="bf16").time(step, latent)
    wholes = Plan.of(wide, wider, tp=tp, kv_dtype="fp32").time(step, latent)
    assert serial_s(wholes) == pytest.approx(serial_s(halves), **SAME)
    assert bound_of(wholes) == bound_of(halves)
    assert weight_bytes(wide) == 2 * weight_bytes(narrow)


@few
@given(plans(), st.integers(1, 12), tokens, st.data(), executions)
def test_a_batch_is_its_sequences_one_by_one(plan, batch, kv_len, data, latent):
    query_len = data.draw(st.integers(1, kv_len))
    one = Sequences(count=1, query_len=query_len, kv_len=kv_len)
    together = Step(groups=(dataclasses.replace(one, count=batch),))
    apart = Step(groups=(one,) * batch)
    run = plan.run(latent)
    assert forward(plan.model, together, run) == forward(plan.model, apart, run)


@few
@given(models, st.lists(tokens, min_size=1, max_size=12))
def test_a_batch_of_lengths_is_their_sum_in_any_order(model, lengths):
    whole = kv(model, lengths=lengths)
    again = kv(model, lengths=sorted(lengths))
    each = [kv(model, tokens=n) for n in lengths]
    assert whole.payload_bytes == again.payload_bytes == sum(r.payload_bytes for r in each)
    assert whole.allocated_bytes == again.allocated_bytes == sum(r.allocated_bytes for r in each)


@few
@given(plans(), steps, executions, batches)
def test_layers_grouped_or_listed_one_by_one_are_the_same_model(plan, step, latent, batch):
    model = plan.model
    listed = tuple(LayerGroup(layer=model.layers[i].layer, count=1) for i in model.order)
    alone = dataclasses.replace(model, layers=listed, order=tuple(range(len(listed))))
    assert params_total(alone) == params_total(model)
    assert weight_bytes(alone, plan.formats, plan.layout) == plan.weights_bytes
    assert kv(alone, tokens=777, seqs=batch).payload_bytes == kv(model, tokens=777, seqs=batch).payload_bytes
    unrolled = dataclasses.replace(plan, model=alone)
    assert serial_s(unrolled.time(step, latent)) == pytest.approx(serial_s(plan.time(step, latent)), **SAME)
    grouped, apart = (totals(forward(m, step, plan.run(latent))) for m in (model, alone))
    assert list(grouped) == list(dict.fromkeys(grouped))
    for name, parts in grouped.items():
        assert apart[name] == pytest.approx(parts, **SAME)
