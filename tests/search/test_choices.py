import pytest

from kvroof.memory.ledger import fit
from kvroof.search.candidates import Candidate
from kvroof.search.choices import Axes, Room, layouts


def test_layouts_stay_within_the_devices_and_share_experts_only_where_there_are_some(choose):
    dense, routed = (choose(name)[0].model for name in ("llama-3.1-8b", "qwen3-30b-a3b"))
    for model in (dense, routed):
        found = list(layouts(model, Axes(most_devices=8)))
        assert len(found) == len(set(found))
        assert all(layout.devices <= 8 for layout in found)
        assert {layout.tp for layout in found} == {1, 2, 4, 8}
    assert all(layout.dp == layout.ep == 1 for layout in layouts(dense, Axes()))
    assert {layout.ep for layout in layouts(routed, Axes())} == {1, 2, 4, 8}


def test_an_axis_that_is_given_is_kept(choose):
    model = choose("llama-3.1-8b")[0].model
    assert {layout.tp for layout in layouts(model, Axes(tp=4))} == {4}
    assert list(layouts(model, Axes(tp=3))) == []


@pytest.mark.parametrize(
    ("model", "axes"),
    [
        ("qwen3-32b", {"tp": 2, "pp": 1}),
        ("gemma-3-27b", {"tp": 1, "pp": 4}),
        ("qwen3-30b-a3b", {"tp": 1, "pp": 1, "dp": 4, "ep": 4}),
    ],
)
def test_room_is_the_ledgers(choose, model, axes):
    (plan,) = choose(model, **axes)
    room, tokens = Room(plan), 5000
    ledger = fit(
        plan.model,
        plan.hardware.capacity_bytes,
        tokens=tokens,
        seqs=4,
        formats=plan.formats,
        kv_format=plan.kv_format,
        allocator=plan.allocator,
        layout=plan.layout,
    )
    assert room.most_seqs(tokens) == ledger.max_seqs
    assert room.most_tokens(4) == ledger.max_tokens
    assert room.real_seqs(tokens) == pytest.approx(ledger.max_seqs, rel=0.02)
    assert room.real_tokens(4, ledger.max_tokens) == pytest.approx(ledger.max_tokens, rel=0.01)
    assert room.holds(tokens, ledger.max_seqs)
    assert not room.holds(tokens, ledger.max_seqs + plan.layout.dp)


def test_a_model_that_does_not_fit_is_no_candidate(choose, ask):
    (plan,) = choose("llama-3.1-405b", tp=1, pp=1)
    assert not Candidate(plan, ask()).possible
    assert Room(plan).short_bytes > 0


def test_lengths_that_differ_take_more_room_than_their_mean(choose, ask):
    from dataclasses import replace

    from kvroof.serving.demand.lengths import fixed, from_percentiles

    (plan,) = choose(tp=2, pp=1)
    spread = from_percentiles(2000, 8000)
    even = Candidate(plan, ask(spread.mean, 1000))
    uneven = Candidate(plan, replace(ask(), isl=spread, osl=fixed(1000)))
    assert uneven.whole < even.whole
    assert uneven.held_tokens(10_000) == pytest.approx(even.held_tokens(1), rel=0.02)
