"""A layout that no engine could run is refused, with ones that could."""

import pytest

from kvroof.catalog.models import load_model
from kvroof.ground.errors import BadInput, Unsupported
from kvroof.spec.parallel import Layout, check_layout, refuse_unmodelled


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


def test_an_axis_that_is_not_modelled_is_refused_rather_than_ignored():
    refuse_unmodelled({"pp": 1, "ep": 1})
    with pytest.raises(Unsupported) as caught:
        refuse_unmodelled({"pp": 2})
    assert caught.value.where == "--pp"
