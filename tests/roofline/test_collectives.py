"""What a ring makes each rank send, and over which link."""

import dataclasses

import pytest

from kvroof.catalog.profiles import load_hardware
from kvroof.cost.op import Op
from kvroof.ground.errors import Unsupported
from kvroof.roofline.collectives import link_for, sent_bytes
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
    return {"all_reduce": reduce_scatter + all_gather, "all_gather": all_gather}[kind]


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 72])
def test_a_ring_sends_what_its_steps_send(kind, ranks):
    assert sent_bytes(ring(kind, ranks)) == pytest.approx(steps_of_a_ring(kind, ranks, 1200.0))


def test_what_is_not_a_collective_sends_nothing():
    assert sent_bytes(Op(name="gemm", kind="gemm", count=1, flops=1.0)) == 0


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


@pytest.mark.parametrize(("ranks", "name"), [(2, "up"), (8, "up"), (9, "out"), (64, "out")])
def test_a_ring_crosses_the_slowest_link_it_has_to(ranks, name):
    assert link_for(MACHINE, ranks).name == name


def test_without_a_scale_up_link_the_host_carries_a_machine_and_no_more():
    bare = dataclasses.replace(MACHINE, scale_up=None)
    assert link_for(bare, 2).name == "host"
    assert link_for(bare, 16).name == "out"


def test_a_link_of_unknown_domain_joins_any_number():
    assert link_for(dataclasses.replace(MACHINE, scale_up=UP), 256).name == "up"


@pytest.mark.parametrize("changes", [{"scale_out": None}, {"scale_out": None, "scale_up": None}])
def test_a_rate_that_is_not_known_is_not_guessed(changes):
    with pytest.raises(Unsupported) as caught:
        link_for(dataclasses.replace(MACHINE, **changes), 64)
    assert caught.value.where == "--tp"


def test_the_time_of_a_ring_is_bytes_sent_over_the_one_way_rate():
    h100 = load_hardware("h100-sxm")
    timed = price(ring("all_reduce", 8, 1e9), h100)
    assert timed.network_s == pytest.approx(2 * 7 / 8 * 1e9 / h100.scale_up.bytes_per_s)
    assert h100.scale_up.bytes_per_s == 450e9  # one way; 900 GB/s is both ways together
