"""A layout that no engine could run is refused, with ones that could."""

import contextlib
from dataclasses import replace

import pytest

from kvroof.catalog.models import load_model
from kvroof.ground.errors import BadInput
from kvroof.spec.parallel import Layout, check_layout
from kvroof.spec.params import stored_weights, weight_bytes


@pytest.mark.parametrize(
    ("name", "tp"),
    [("llama-3.1-8b", 3), ("llama-3.1-8b", 0), ("llama-3.1-8b", -1), ("llama-3.1-8b", 64), ("qwen2-7b", 8)],
)
def test_ranks_that_do_not_divide_are_refused(name, tp):
    with pytest.raises(BadInput) as caught:
        check_layout(load_model(name), Layout(tp=tp))
    assert caught.value.where == "--tp"


@pytest.mark.parametrize(
    ("name", "tp"),
    [("llama-3.1-8b", 1), ("llama-3.1-8b", 8), ("llama-3.1-8b", 32), ("deepseek-v3", 8), ("falcon-7b", 71)],
)
def test_ranks_that_divide_are_accepted(name, tp):
    if name == "falcon-7b":  # 71 heads split over 71 ranks; 4 x 4,544 columns do not split over more
        with pytest.raises(BadInput):
            check_layout(load_model(name), Layout(tp=2))
    check_layout(load_model(name), Layout(tp=tp))


def test_the_way_out_is_a_layout_that_divides():
    with pytest.raises(BadInput) as caught:
        check_layout(load_model("llama-3.1-8b"), Layout(tp=3))
    choices = caught.value.way_out.removeprefix("try one of ").split(", ")
    assert [int(c) for c in choices] == [1, 2, 4, 8, 16, 32]


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("qwen2-7b", Layout(tp=8)),  # 28 heads, of which 4 for keys and values: 3 divides neither
        ("gemma-3-27b", Layout(tp=5)),
        ("falcon-7b", Layout(tp=2)),
        ("qwen3.5-27b", Layout(tp=5)),
        ("deepseek-v3", Layout(tp=3, dp=2, ep=2)),
    ],
)
def test_every_way_out_is_accepted_and_every_other_is_not(name, layout):
    model = load_model(name)
    with pytest.raises(BadInput) as caught:
        check_layout(model, layout)
    named = {int(c) for c in caught.value.way_out.removeprefix("try one of ").split(", ")}
    accepted = set()
    for tp in range(1, 129):
        with contextlib.suppress(BadInput):
            check_layout(model, replace(layout, tp=tp))
            accepted.add(tp)
    assert named == accepted


@pytest.mark.parametrize(
    ("name", "layout", "where"),
    [
        ("llama-3.1-8b", Layout(pp=33), "--pp"),
        ("llama-3.1-8b", Layout(dp=0), "--dp"),
        ("llama-3.1-8b", Layout(tp=8, ep=8), "--ep"),  # no experts to deal
        ("deepseek-v3", Layout(tp=8, ep=3), "--ep"),  # 3 does not divide 8 ranks
        ("deepseek-v3", Layout(dp=6, ep=6), "--ep"),  # 256 experts do not divide by 6
        ("deepseek-v3", Layout(dp=8, ep=8, redundant_experts=-1), "--redundant-experts"),
        ("llama-3.1-8b", Layout(tp=8, dcp=2), "--dcp"),  # 8 ranks hold 8 different heads
        ("gemma-3-27b", Layout(tp=32, dcp=2), "--dcp"),  # a window is not shared along the context
        ("mamba-codestral-7b-v0.1", Layout(dcp=2), "--dcp"),  # a state has no tokens to share
        ("mamba-codestral-7b-v0.1", Layout(tp=4, dcp=4), "--dcp"),
    ],
)
def test_a_layout_that_no_engine_runs_is_refused(name, layout, where):
    with pytest.raises(BadInput) as caught:
        check_layout(load_model(name), layout)
    assert caught.value.where == where


def test_redundant_experts_make_a_layout_possible():
    check_layout(load_model("deepseek-v3"), Layout(dp=6, ep=6, redundant_experts=2))


def routed(model, layout):
    """Return the bytes of the routed experts on one rank."""
    return sum(layers * layout.stored_bytes(w, f.of(w)) for w, layers, f in stored_weights(model) if w.routed)


@pytest.mark.parametrize(
    "layout",
    [Layout(tp=8), Layout(tp=8, ep=8), Layout(dp=8), Layout(dp=8, ep=8), Layout(tp=4, dp=2, ep=2)],
    ids=["tp", "tp+ep", "dp", "dp+ep", "all"],
)
def test_experts_are_dealt_over_every_rank_however_they_are_cut(layout):
    model = load_model("mixtral-8x7b-v0.1")
    assert routed(model, layout) * layout.stage_ranks == routed(model, Layout())


def test_what_is_not_an_expert_is_held_by_every_group_of_ranks():
    model = load_model("qwen3-30b-a3b")
    rest = weight_bytes(model) - routed(model, Layout())
    spread = Layout(dp=8, ep=8)
    assert weight_bytes(model, layout=spread) == rest + routed(model, Layout()) // 8


def test_redundant_experts_take_the_room_of_experts():
    model = load_model("deepseek-v3")
    one = routed(model, Layout()) // 256
    dealt = Layout(dp=32, ep=32, redundant_experts=32)
    assert routed(model, dealt) == 9 * one  # as DeepSeek serves decode: 8 of 256 and 1 redundant a rank
