"""At the ends of what may be asked numbers are exact, or refused with the limit."""

import math

import pytest

from kvroof.catalog.huggingface import read_architecture
from kvroof.catalog.models import load_model, read_entry
from kvroof.catalog.profiles import load_hardware
from kvroof.ground.errors import BadInput
from kvroof.memory.kv import MAX_SEQS, MAX_TOKENS, kv
from kvroof.memory.ledger import fit
from kvroof.roofline.plan import Plan
from kvroof.serving.latency import estimate

LLAMA, LAYERS, LAYER_BYTES = "llama-3.1-8b", 32, 2 * 8 * 128 * 2
"""Eight KV heads of 128, K and V, bf16: 4,096 bytes per layer and token."""
PER_LAYER = 2 * 4096 + 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336
"""Two norms, Q and O, K and V, and the three matrices of the MLP: parameters."""


def deep(layers):
    config = {**read_entry(LLAMA).config, "num_hidden_layers": layers}
    return read_architecture(config, "config.json", "deep").architecture


@pytest.mark.parametrize("tokens", [1, 15, 16, 17, 10**8, MAX_TOKENS])
@pytest.mark.parametrize("seqs", [1, 10**6, MAX_SEQS])
def test_bytes_are_exact_from_one_token_to_the_most(tokens, seqs):
    found = kv(load_model(LLAMA), tokens=tokens, seqs=seqs)
    assert found.payload_bytes == LAYERS * LAYER_BYTES * tokens * seqs
    assert found.num_blocks == -(-tokens // 16) * seqs
    assert found.allocated_bytes == found.num_blocks * 16 * LAYERS * LAYER_BYTES


@pytest.mark.parametrize(("tokens", "seqs"), [(MAX_TOKENS + 1, 1), (1, MAX_SEQS + 1), (0, 1), (1, 0)])
def test_beyond_the_most_there_is_no_number(tokens, seqs):
    with pytest.raises(BadInput):
        kv(load_model(LLAMA), tokens=tokens, seqs=seqs)


@pytest.mark.parametrize("layers", [1, 10_000])
def test_layers_add_what_one_of_them_has(layers):
    model = deep(layers)
    found = kv(model, tokens=10**8, seqs=10**6)
    assert found.payload_bytes == layers * LAYER_BYTES * 10**14
    assert found.params_total == 2 * 128_256 * 4096 + 4096 + layers * PER_LAYER


def test_ten_thousand_layers_take_as_many_times_longer():
    """A step is the sum over layers: the head and the embedding are what does not grow."""
    one, two, most = (estimate(Plan.of(deep(n), "h100-sxm"), batch=1) for n in (1, 2, 10_000))
    each = two.tpot_s - one.tpot_s
    assert most.tpot_s == pytest.approx(one.tpot_s + 9_999 * each, rel=1e-9)
    assert not most.fits


def test_a_hundred_million_tokens_of_one_request_take_a_finite_time():
    found = estimate(Plan.of(LLAMA, "h100-sxm"), isl=10**8, osl=2, batch=1)
    pairs = 10**8 * (10**8 + 1) // 2
    attention = 32 * 2 * 32 * 2 * 128 * pairs / load_hardware("h100-sxm").peak_flops_per_s["bf16"]
    assert attention < found.ttft_s < 1.01 * attention
    assert math.isfinite(found.tpot_s)
    assert not found.fits


def test_a_ledger_of_a_million_sequences_is_short_by_what_they_hold():
    held = fit(load_model(LLAMA), 80 * 10**9, tokens=10**6, seqs=10**6)
    assert not held.fits
    assert held.kv_bytes == LAYERS * LAYER_BYTES * 10**12
    assert held.headroom_bytes == held.budget_bytes - held.total_bytes
