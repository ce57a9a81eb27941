"""Prefill, decode and everything between are one function of (query_len, kv_len), and it telescopes."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from kvroof.cost.formulas import step_pairs
from kvroof.cost.forward import forward
from kvroof.roofline.plan import Plan
from kvroof.spec.workload import Sequences, Step, decode, prefill

from .strategies import batches, executions, few, models, reaches, sizes, some, tokens, totals


@st.composite
def chunkings(draw):
    """Return the steps of a prefill in chunks, and the length of the whole."""
    lengths = draw(st.lists(sizes, min_size=1, max_size=6))
    ends = list(itertools.accumulate(lengths))
    batch = draw(batches)
    chunks = [
        Step(groups=(Sequences(count=batch, query_len=q, kv_len=end, sampled=int(end == ends[-1])),))
        for q, end in zip(lengths, ends, strict=True)
    ]
    return chunks, prefill(batch, ends[-1])


@some
@given(chunkings(), reaches())
def test_chunked_prefill_sums_to_whole_prefill_in_pairs(chunked, reach):
    chunks, whole = chunked
    assert sum(step_pairs(chunk, reach) for chunk in chunks) == step_pairs(whole, reach)


@some
@given(tokens, reaches())
def test_token_by_token_is_the_whole_prefill(n, reach):
    n = n % 400 + 1
    assert sum(step_pairs(decode(1, kv), reach) for kv in range(1, n + 1)) == reach.pairs(n)


@few
@given(models, chunkings())
def test_chunked_prefill_sums_to_whole_prefill_in_flops(model, chunked):
    chunks, whole = chunked
    run = Plan.of(model, "h100-sxm").run("absorbed")
    parts = [totals(forward(model, chunk, run)) for chunk in chunks]
    for name, (flops, *_) in totals(forward(model, whole, run)).items():
        assert sum(part[name][0] for part in parts) == flops, name


@few
@given(models, chunkings())
def test_chunked_prefill_writes_each_token_once_and_reads_the_prefix_again(model, chunked):
    chunks, whole = chunked
    run = Plan.of(model, "h100-sxm").run("absorbed")
    parts = [totals(forward(model, chunk, run)) for chunk in chunks]
    for name, (_, weights, kv, *_) in totals(forward(model, whole, run)).items():
        assert sum(part[name][2] for part in parts) >= kv
        assert sum(part[name][1] for part in parts) >= weights * (1 - 1e-12)


@few
@given(models, tokens, batches, executions)
def test_flops_of_one_rank_are_exact_integers(model, n, batch, latent):
    run = Plan.of(model, "h100-sxm").run(latent)
    for op in forward(model, prefill(batch, n), run):
        assert isinstance(op.count * op.flops, int), op.name
        assert isinstance(op.kv_bytes, int), op.name
