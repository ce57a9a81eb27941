"""What a ring makes each rank send, and over which link."""

import dataclasses
import math

import pytest

from kvroof.catalog.profiles import load_hardware
from kvroof.cost.op import Op
from kvroof.ground.errors import Unsupported
from kvroof.roofline.collectives import collective_s, ring_bytes, sent_bytes, tiers
from kvroof.roofline.efficiency import Wire
from kvroof.roofline.roofline import price
from kvroof.spec.hardware import Hardware, Link


def ring(collective, ranks, message=1200.0):
    return Op(
        name="ring", kind="collective", count=1, message_bytes=message, collective=collective, ranks=ranks
    )


def steps_of_a_ring(kind, ranks, message):
    """Return the bytes a rank sends when the ring is walked step by step, a shard at a time."""
    shard = message / ranks
    reduce_scatter = sum(shard for _ in range(ranks - 1))
    all_gather = sum(shard for _ in range(ranks - 1))
    return {"all_reduce": reduce_scatter + all_gather, "reduce_scatter": reduce_scatter}.get(kind, all_gather)


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 72])
def test_a_ring_sends_what_its_steps_send(kind, ranks):
    assert ring_bytes(kind, 1200.0, ranks) == pytest.approx(steps_of_a_ring(kind, ranks, 1200.0))


def test_what_is_not_a_collective_sends_nothing():
    assert sent_bytes(Op(name="gemm", kind="gemm", count=1, flops=1.0), MACHINE) == 0


UP, OUT, HOST = (Link(name=n, bytes_per_s=r) for n, r in (("up", 4e11), ("out", 5e10), ("host", 6e10)))
MACHINE = Hardware(
    name="linked",
    vendor="nobody",
    memory_bytes=1,
    hbm_bytes_per_s=1.0,
    peak_flops_per_s={"bf16": 1.0},
    scale_up=dataclasses.replace(UP, domain=8),
    scale_out=OUT,
    host=HOST,
)


def crossed(machine, ranks, stride=1):
    return [(tier.link.name, tier.ranks) for tier in tiers(machine, ranks, stride)]


@pytest.mark.parametrize(
    ("ranks", "stride", "links"),
    [
        (2, 1, [("up", 2)]),
        (8, 1, [("up", 8)]),
        (9, 1, [("up", 8), ("out", 2)]),
        (64, 1, [("up", 8), ("out", 8)]),
        (2, 4, [("up", 2)]),
        (4, 4, [("up", 2), ("out", 2)]),
        (2, 8, [("out", 2)]),
    ],
)
def test_a_group_crosses_the_fast_links_first_and_the_slow_ones_between_domains(ranks, stride, links):
    assert crossed(MACHINE, ranks, stride) == links


def test_without_a_scale_up_link_the_host_carries_a_machine_and_no_more():
    bare = dataclasses.replace(MACHINE, scale_up=None)
    assert crossed(bare, 2) == [("host", 2)]
    assert crossed(bare, 16) == [("out", 16)]


def test_a_link_of_unknown_domain_joins_any_number():
    assert crossed(dataclasses.replace(MACHINE, scale_up=UP), 256) == [("up", 256)]


@pytest.mark.parametrize("changes", [{"scale_out": None}, {"scale_out": None, "scale_up": None}])
def test_a_rate_that_is_not_known_is_not_guessed(changes):
    with pytest.raises(Unsupported) as caught:
        tiers(dataclasses.replace(MACHINE, **changes), 64)
    assert caught.value.where == "--tp"


FREE = Wire()


def test_an_all_reduce_over_two_tiers_sends_an_eighth_between_the_domains():
    op = ring("all_reduce", 32, 1e9)
    near, far = 2 * 7 / 8 * 1e9, 2 * 3 / 4 * 1e9 / 8
    assert sent_bytes(op, MACHINE) == pytest.approx(near + far)
    assert collective_s(op, MACHINE, FREE) == pytest.approx(near / 4e11 + far / 5e10)


def test_an_all_to_all_uses_both_tiers_at_once():
    op = ring("all_to_all", 32, 1e9)
    near, far = 7 / 32 * 1e9, 24 / 32 * 1e9
    assert sent_bytes(op, MACHINE) == pytest.approx(near + far)
    assert collective_s(op, MACHINE, FREE) == pytest.approx(max(near / 4e11, far / 5e10))


def test_a_row_with_several_destinations_crosses_to_a_domain_once():
    op = dataclasses.replace(ring("all_to_all", 32, 1e9), choices=8)
    domains, ranks = 4 * (1 - (3 / 4) ** 8), 32 * (1 - (31 / 32) ** 8)
    assert sent_bytes(op, MACHINE) == pytest.approx(7 / 32 * 1e9 + 3 / 4 * 1e9 * domains / ranks)


def test_a_message_to_the_next_stage_crosses_the_slowest_link_once():
    op = dataclasses.replace(ring("send", 2, 1e9), stride=8)
    assert collective_s(op, MACHINE, FREE) == pytest.approx(1e9 / 5e10)


def test_many_ranks_reduce_small_messages_in_a_tree_and_large_ones_in_a_ring():
    wire = Wire(ring_s=1e-6, per_rank=1.0)
    hops = 2 * math.log2(256)
    assert wire.seconds(1.0, 256, 1e12, 2) == pytest.approx(1e-6 * (hops - 1), rel=1e-3)
    large = wire.seconds(1e12, 256, 1e12, 2)
    assert large == pytest.approx(2 * 255 / 256 + 255e-6, rel=1e-6)


def test_a_switch_that_sums_takes_each_byte_once():
    h100 = load_hardware("h100-sxm")
    assert h100.scale_up.reduces_in_switch
    assert price(ring("all_reduce", 8, 1e9), h100).network_s == pytest.approx(1e9 / 450e9)
    assert price(ring("all_gather", 8, 1e9), h100).network_s == pytest.approx(7 / 8 * 1e9 / 450e9)


def test_the_time_of_a_ring_is_bytes_sent_over_the_one_way_rate():
    a100 = load_hardware("a100-sxm-80gb")
    timed = price(ring("all_reduce", 8, 1e9), a100)
    assert timed.network_s == pytest.approx(2 * 7 / 8 * 1e9 / a100.scale_up.bytes_per_s)
    assert a100.scale_up.bytes_per_s == 300e9  # one way; 600 GB/s is both ways together
