"""Models side by side: each row is what `kv`, `fit` and one decode step say."""

import pytest

from kvroof.catalog.models import load_model
from kvroof.catalog.profiles import load_hardware
from kvroof.memory.kv import kv
from kvroof.memory.ledger import fit
from kvroof.roofline.plan import Plan
from kvroof.serving.comparison import compare
from kvroof.spec.workload import decode

MACHINE = load_hardware("h100-sxm")


@pytest.mark.parametrize("encoder_tokens", [0, 4096])
@pytest.mark.parametrize("name", ["llama-3.1-8b", "t5-11b"])
def test_a_row_is_what_cache_ledger_and_step_say(name, encoder_tokens):
    model = load_model(name)
    (row,) = compare([model], MACHINE, tokens=2048, seqs=2, encoder_tokens=encoder_tokens)
    cache = kv(model, tokens=2048, seqs=2, encoder_tokens=encoder_tokens)
    ledger = fit(
        model, MACHINE.capacity_bytes, tokens=2048, seqs=2, utilization=0.9, encoder_tokens=encoder_tokens
    )
    assert (row.payload_bytes, row.assumptions) == (cache.payload_bytes, cache.assumptions)
    assert (row.max_seqs, row.fits) == (ledger.max_seqs, ledger.fits)
    step = Plan.of(model, MACHINE).seconds(decode(2, 2048, encoder_tokens))
    assert row.tpot_s == pytest.approx(step, rel=1e-12)


def test_an_encoder_costs_the_models_that_look_at_one_and_no_other():
    models = [load_model(name) for name in ("llama-3.1-8b", "t5-11b")]
    (near, one), (same, far) = (compare(models, MACHINE, encoder_tokens=n) for n in (0, 4096))
    assert near.tpot_s == same.tpot_s
    assert far.tpot_s > one.tpot_s
    assert any("0 encoder tokens" in line for line in one.assumptions)
