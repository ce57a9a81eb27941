"""A plan is checked when it is made, and says the same as its parts."""

import pytest

from kvroof.catalog.models import load_model
from kvroof.catalog.profiles import load_hardware
from kvroof.cost.forward import forward
from kvroof.ground.errors import BadInput, KvroofError, UnknownName
from kvroof.roofline.plan import Plan
from kvroof.roofline.roofline import price_all
from kvroof.spec.parallel import Layout
from kvroof.spec.params import weight_bytes
from kvroof.spec.workload import decode, prefill


def test_names_and_records_make_the_same_plan():
    assert Plan.of("llama-3.1-8b", "h100-sxm") == Plan.of(
        load_model("llama-3.1-8b"), load_hardware("h100-sxm")
    )


def test_a_layout_and_its_ranks_make_the_same_plan():
    layout = Layout(tp=16, dcp=2)
    assert Plan.of("llama-3.1-70b", "h100-sxm", layout=layout) == Plan.of(
        "llama-3.1-70b", "h100-sxm", tp=16, dcp=2
    )
    assert Plan.of("llama-3.1-8b", "h100-sxm", layout=Layout()).layout == Layout()
    with pytest.raises(BadInput, match="layout"):
        Plan.of("llama-3.1-70b", "h100-sxm", layout=layout, tp=2)


def test_a_plans_time_is_its_operations_priced():
    plan = Plan.of("qwen3-30b-a3b", "h100-sxm", tp=4)
    step = decode(8, 1000)
    ops = forward(plan.model, step, plan.run("absorbed"))
    assert plan.time(step) == price_all(ops, plan.hardware, plan.efficiency)


def test_the_weights_of_a_plan_are_those_of_its_fullest_rank():
    plan = Plan.of("llama-3.1-8b", "h100-sxm", tp=8)
    assert plan.weights_bytes == weight_bytes(plan.model, layout=Layout(tp=8))


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"tp": 3}, BadInput),
        ({"tp": 0}, BadInput),
        ({"kv_dtype": "fp9"}, BadInput),
        ({"weights_dtype": "bf15"}, BadInput),
        ({"compute_dtype": "tf33"}, BadInput),
        ({"block_size": 0}, BadInput),
        ({"allocator": "magic"}, BadInput),
    ],
)
def test_an_impossible_plan_is_refused_when_it_is_made(changes, error):
    with pytest.raises(error) as caught:
        Plan.of("llama-3.1-8b", "h100-sxm", **changes)
    assert isinstance(caught.value, KvroofError)


def test_an_unknown_model_or_machine_is_refused():
    with pytest.raises(UnknownName):
        Plan.of("llama-9", "h100-sxm")
    with pytest.raises(UnknownName):
        Plan.of("llama-3.1-8b", "h999")


def test_materialised_attention_writes_and_reads_its_scores():
    aware, materialised = (
        Plan.of("llama-3.1-8b", "h100-sxm", io_aware=flag).time(prefill(1, 4096)) for flag in (True, False)
    )
    scores = 32 * 32 * 4096 * 4096 * 2  # layers x heads x queries x keys x 2 bytes
    extra = sum(
        b.op.count * (b.op.hbm_bytes - a.op.hbm_bytes) for a, b in zip(aware, materialised, strict=True)
    )
    assert extra == 4 * scores
