"""What lives in host memory leaves the device's ledger, whole and exact, and costs its reading each step."""

from __future__ import annotations

import pytest

import kvroof
from kvroof.ground.errors import BadInput, Unsupported
from kvroof.ground.units import GB
from kvroof.memory.ledger import fit
from kvroof.roofline.plan import Plan
from kvroof.roofline.roofline import serial_s
from kvroof.spec.offload import host_weight_bytes, offload
from kvroof.spec.params import params_total, weight_bytes
from kvroof.spec.workload import decode

LLAMA = kvroof.load_model("llama-3.1-8b")
LAYER_BYTES = 2 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096)
CARD = kvroof.load_hardware("rtx-4090")


@pytest.mark.parametrize("layers", [0, 1, 20, 32])
def test_each_layer_takes_its_weights_and_its_cache_to_the_host(layers: int) -> None:
    moved = offload(LLAMA, layers=layers)
    ledger = fit(moved, CARD.capacity_bytes, tokens=4096, seqs=2)
    whole = fit(LLAMA, CARD.capacity_bytes, tokens=4096, seqs=2)
    cache = 2 * 4096 * 4096  # two sequences of 4,096 tokens, 4,096 B per token and layer
    assert host_weight_bytes(moved) == layers * LAYER_BYTES
    assert ledger.weights_bytes == whole.weights_bytes - layers * LAYER_BYTES
    assert ledger.kv_bytes == whole.kv_bytes - layers * cache
    assert ledger.host_bytes == layers * (LAYER_BYTES + cache)
    assert ledger.total_bytes + ledger.host_bytes == whole.total_bytes


def test_offload_changes_no_count() -> None:
    moved = offload(LLAMA, layers=7)
    assert params_total(moved) == params_total(LLAMA)
    assert weight_bytes(moved) == weight_bytes(LLAMA)
    assert moved.num_layers == LLAMA.num_layers


def test_experts_leave_and_attention_stays() -> None:
    model = kvroof.load_model("gpt-oss-20b")
    moved = offload(model, experts=True)
    elements = 24 * 32 * 3 * 2880 * 2880  # layers, experts, matrices
    assert host_weight_bytes(moved) == elements * 17 // 32  # mxfp4: 17 bytes per 32 elements
    assert fit(moved, CARD.capacity_bytes).kv_bytes == fit(model, CARD.capacity_bytes).kv_bytes


def test_a_cache_on_the_host_takes_nothing_of_the_device() -> None:
    ledger = fit(offload(LLAMA, kv=True), CARD.capacity_bytes, tokens=8192, seqs=3)
    assert ledger.kv_bytes == 0
    assert ledger.host_bytes == 3 * 2**30


def test_the_host_reads_what_it_holds_in_every_step() -> None:
    """One layer's weights and cache at 50 GB/s; the other 31 at HBM speed."""
    plan = Plan.of(offload(LLAMA, layers=1), CARD, host_bytes_per_s=50e9)
    away = [t for t in plan.time(decode(1, 2048)) if t.op.place == "host"]
    read = LAYER_BYTES + (2048 + 1) * 4096
    assert serial_s(away) == pytest.approx(read / 50e9, rel=1e-12)


def test_without_a_host_rate_the_host_link_carries_it() -> None:
    machine = kvroof.load_hardware("h100-sxm")
    streamed = serial_s(Plan.of(offload(LLAMA, layers=16), machine).time(decode(1, 2048)))
    assert machine.host is not None
    assert streamed > 16 * LAYER_BYTES / machine.host.bytes_per_s
    assert streamed > serial_s(Plan.of(LLAMA, machine).time(decode(1, 2048)))


def test_a_machine_of_unified_memory_has_no_host_to_offload_to() -> None:
    plan = Plan.of(offload(LLAMA, layers=1), "m3-ultra")
    with pytest.raises(Unsupported, match="host"):
        plan.time(decode(1, 2048))


@pytest.mark.parametrize("layers", [-1, 33, 10**9])
def test_layers_that_are_not_there_cannot_be_moved(layers: int) -> None:
    with pytest.raises(BadInput, match="--offload-layers"):
        offload(LLAMA, layers=layers)


def test_more_layers_on_the_host_never_fit_less() -> None:
    room = [fit(offload(LLAMA, layers=n), 16 * GB).headroom_bytes for n in range(0, 33, 4)]
    assert room == sorted(room)
