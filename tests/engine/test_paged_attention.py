"""Paged attention equals dense attention, wherever its blocks lie, and reads no other block."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvroof.engine.dense_attention import dense_attention
from kvroof.engine.paged_attention import paged_attention
from kvroof.engine.pages import Pages, new_pages, write_pages
from kvroof.engine.sharded_attention import page_specs, shard_pages, sharded_paged_attention
from kvroof.engine.visible import query_positions, visible
from kvroof.ground.errors import Unsupported
from kvroof.spec.attention import GroupedAttention, LatentAttention
from kvroof.spec.reach import Chunked, Encoder, Full, Selected, Sliding
from tests.engine.paged_batches import (
    ASYMMETRIC,
    GQA,
    MHA,
    MLA,
    MQA,
    QUICK_TO_COMPILE,
    blocks_read,
    random_batch,
    with_nan_elsewhere,
)

TOLERANCE = {"float64": 1e-12, "float32": 3e-6, "bfloat16": 3e-2}
PROGRAMS = {
    "MHA, full, decode": (MHA, Full(), {}),
    "GQA, window, verification of 3": (GQA._replace(query_len=3, block_size=2), Sliding(size=7), {}),
    "MQA, chunks, prefill of 5": (MQA._replace(query_len=5, block_size=8), Chunked(size=8), {}),
    "MLA, full, prefill of 4": (MLA._replace(query_len=4), Full(), {}),
    "GQA, window, sinks, decode": (GQA, Sliding(size=9), {"sinks": True}),
    "K wider than V, soft cap, one token to a block": (
        ASYMMETRIC._replace(block_size=1, num_blocks=32),
        Full(),
        {"soft_cap": 2.0},
    ),
    "long MHA, window, decode": (
        MHA._replace(heads=2, num_seqs=2, block_size=128, max_blocks=16),
        Sliding(size=1500),
        {"sinks": True},
    ),
    "MHA, cross-attention": (MHA._replace(query_len=2), Encoder(), {}),
}
EXACT = (
    "MHA, full, decode",
    "GQA, window, verification of 3",
    "MLA, full, prefill of 4",
)
WINDOWED = (
    "GQA, window, verification of 3",
    "MQA, chunks, prefill of 5",
    "MLA, full, prefill of 4",
    "long MHA, window, decode",
)
seeds = st.integers(0, 2**32 - 1)
few = settings(max_examples=10, deadline=None)


@cache
def _jitted(attention, reach, sinks, soft_cap):
    def run(batch):
        chosen = batch.sinks if sinks else None
        return attention(
            batch.queries,
            batch.pages,
            batch.block_tables,
            batch.kv_lens,
            scale=0.25,
            reach=reach,
            query_lens=batch.query_lens,
            sinks=chosen,
            soft_cap=soft_cap,
        )

    return jax.jit(run, compiler_options=None if attention is paged_attention else QUICK_TO_COMPILE)


def _run(attention, batch, reach, options):
    return np.asarray(
        _jitted(attention, reach, options.get("sinks", False), options.get("soft_cap"))(batch), np.float64
    )


def _assert_paged_is_dense(shape, reach, options, seed):
    batch = random_batch(shape, seed)
    paged, dense = (_run(each, batch, reach, options) for each in (paged_attention, dense_attention))
    np.testing.assert_allclose(paged, dense, atol=TOLERANCE[jnp.dtype(shape.dtype).name], rtol=0)


@pytest.mark.parametrize("name", PROGRAMS)
@few
@given(seed=seeds)
def test_paged_equals_dense_in_float32(name, seed):
    _assert_paged_is_dense(*PROGRAMS[name], seed)


@pytest.mark.parametrize("name", EXACT)
@few
@given(seed=seeds)
def test_paged_equals_dense_in_float64(name, seed):
    shape, reach, options = PROGRAMS[name]
    with jax.enable_x64(True):
        _assert_paged_is_dense(shape._replace(dtype=jnp.float64), reach, options, seed)


def test_paged_equals_dense_in_bfloat16():
    shape, reach, options = PROGRAMS["GQA, window, verification of 3"]
    shape = shape._replace(dtype=jnp.bfloat16)
    for seed in range(8):
        batch = random_batch(shape, seed)
        batch = batch._replace(queries=batch.queries.astype(jnp.bfloat16))
        paged, dense = (_run(each, batch, reach, options) for each in (paged_attention, dense_attention))
        np.testing.assert_allclose(paged, dense, atol=TOLERANCE["bfloat16"], rtol=0)


def test_dense_attention_is_the_softmax_of_the_seen_scores():
    """One head, one query, written out with numpy: the reference's own reference."""
    batch = random_batch(MHA._replace(heads=1, num_seqs=1), 3)
    kv_len = int(batch.kv_lens[0])
    table = np.asarray(batch.block_tables[0])
    keys, values = (np.asarray(x, np.float64)[0][table].reshape(-1, 16) for x in batch.pages[:2])
    query = np.asarray(batch.queries, np.float64)[0, 0, 0]
    for reach, first in ((Full(), 0), (Sliding(size=5), kv_len - 5)):
        scores = keys[first:kv_len] @ query * 0.25
        weights = np.exp(scores) / np.exp(scores).sum()
        got = _run(dense_attention, batch, reach, {})[0, 0, 0]
        np.testing.assert_allclose(got, weights @ values[first:kv_len], atol=3e-6)


@pytest.mark.parametrize("name", ["MHA, full, decode", "MLA, full, prefill of 4"])
@few
@given(seed=seeds)
def test_where_blocks_lie_changes_nothing(name, seed):
    shape, reach, options = PROGRAMS[name]
    batch = random_batch(shape, seed)
    place = np.random.default_rng(seed).permutation(shape.num_blocks).astype(np.int32)
    moved = [None if x is None else jnp.zeros_like(x).at[:, place].set(x) for x in batch.pages]
    elsewhere = batch._replace(
        pages=Pages(*moved), block_tables=jnp.asarray(place[np.asarray(batch.block_tables)])
    )
    before, after = (_run(paged_attention, each, reach, options) for each in (batch, elsewhere))
    np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("name", WINDOWED)
@few
@given(seed=seeds)
def test_blocks_that_no_query_sees_are_not_read(name, seed):
    """They hold NaN, and the table has a hole where a window has left them behind."""
    shape, reach, options = PROGRAMS[name]
    batch = random_batch(shape, seed)
    poisoned = with_nan_elsewhere(batch, blocks_read(batch, reach, shape.block_size))
    expected, found = (_run(paged_attention, each, reach, options) for each in (batch, poisoned))
    np.testing.assert_array_equal(found, expected)


def test_what_a_freed_block_still_holds_changes_nothing():
    shape, reach, options = PROGRAMS["GQA, window, verification of 3"]
    batch = random_batch(shape, 1)
    unused = np.ones((shape.num_blocks, shape.block_size), bool)
    for table, kv_len in zip(batch.block_tables, batch.kv_lens, strict=True):
        for t in range(int(kv_len)):
            unused[int(table[t // shape.block_size]), t % shape.block_size] = False
    pages = Pages(*[None if x is None else jnp.where(unused[..., None], jnp.nan, x) for x in batch.pages])
    for attention in (paged_attention, dense_attention):
        expected, found = (
            _run(attention, each, reach, options) for each in (batch, batch._replace(pages=pages))
        )
        np.testing.assert_array_equal(found, expected)


def test_queries_behind_a_sequences_own_give_zero():
    shape, reach, options = PROGRAMS["GQA, window, verification of 3"]
    batch = random_batch(shape, 5)._replace(query_lens=jnp.array([3, 1, 0], jnp.int32))
    out = _run(paged_attention, batch, reach, options)
    assert (out[1, 1:] == 0).all()
    assert (out[2] == 0).all()
    assert (out[1, 0] != 0).all()


@given(
    reach=st.one_of(
        st.just(Full()),
        st.integers(1, 12).map(lambda n: Sliding(size=n)),
        st.integers(1, 12).map(lambda n: Chunked(size=n)),
    ),
    kv_len=st.integers(1, 24),
    data=st.data(),
)
@settings(max_examples=40, deadline=None)
def test_visible_tokens_are_those_that_the_reach_counts(reach, kv_len, data):
    query_len = data.draw(st.integers(1, kv_len))
    lens, queries = jnp.array([kv_len]), jnp.array([query_len])
    seen = visible(reach, query_positions(24, lens, queries), jnp.arange(24), lens, queries)[0]
    seen = np.asarray(seen)
    assert seen.sum() == reach.pairs(kv_len) - reach.pairs(kv_len - query_len)
    assert seen.any(axis=0).sum() == reach.read(query_len, kv_len)


def test_a_reach_that_picks_tokens_is_refused():
    batch = random_batch(MHA, 0)
    with pytest.raises(Unsupported, match="selected"):
        paged_attention(*batch[:4], scale=1.0, reach=Selected(size=4))


# Writing


HEADS = GroupedAttention(hidden_size=64, num_heads=4, num_kv_heads=2, head_dim=16, v_head_dim=8, reach=Full())
LATENT = LatentAttention(
    hidden_size=64,
    num_heads=4,
    q_lora_rank=None,
    kv_lora_rank=32,
    qk_nope_head_dim=16,
    qk_rope_head_dim=8,
    v_head_dim=16,
    reach=Full(),
)


def _rows(rng, tokens, pages):
    """Return random keys, values and rotary keys of some tokens, None for those that the pages lack."""
    return [
        None if x is None else jnp.asarray(rng.standard_normal((tokens, x.shape[0], x.shape[3])), "f4")
        for x in (pages.k, pages.v, pages.rope)
    ]


@pytest.mark.parametrize("attention", [HEADS, LATENT], ids=["heads", "latent"])
def test_a_token_is_written_to_its_slot_and_nowhere_else(attention):
    pages = new_pages(attention, num_blocks=5, block_size=4, dtype=jnp.float32)
    k, v, rope = _rows(np.random.default_rng(0), 3, pages)
    written = write_pages(pages, jnp.array([17, -1, 2]), k, v, rope)
    for page, rows in zip((written.k, written.v, written.rope), (k, v, rope), strict=True):
        if rows is None:
            assert page is None
            continue
        flat = np.asarray(page).reshape(page.shape[0], 20, -1)
        np.testing.assert_array_equal(flat[:, 17], rows[0])
        np.testing.assert_array_equal(flat[:, 2], rows[2])
        assert np.count_nonzero(np.abs(flat).sum(axis=(0, 2))) == 2


def test_a_donated_write_is_in_place():
    pages = new_pages(HEADS, num_blocks=8, block_size=4, dtype=jnp.float32)
    k, v, _ = _rows(np.random.default_rng(0), 2, pages)
    slots = jnp.array([3, 9])
    step = jax.jit(write_pages, donate_argnums=0)
    compiled = step.lower(pages, slots, k, v).compile()
    assert compiled.memory_analysis().alias_size_in_bytes == pages.nbytes
    assert compiled.memory_analysis().temp_size_in_bytes < pages.nbytes / 2
    address = pages.k.unsafe_buffer_pointer()
    assert step(pages, slots, k, v).k.unsafe_buffer_pointer() == address


@pytest.mark.parametrize(
    ("attention", "dtype", "scales"),
    [
        (HEADS, jnp.int8, "token"),
        (LATENT, jnp.int8, "token"),
        (HEADS, jnp.float8_e4m3fn, "token"),
        (LATENT, jnp.float8_e4m3fn, "tensor"),
    ],
    ids=["heads, int8", "latent, int8", "heads, fp8", "latent, fp8, one scale"],
)
def test_narrow_pages_are_off_by_at_most_their_rounding(attention, dtype, scales):
    error = 0.5 / 127 if dtype == jnp.int8 else 2**-4
    pages = new_pages(attention, num_blocks=4, block_size=4, dtype=dtype, scales=scales)
    if scales == "tensor":
        step = jnp.float32(4.0 / 448)
        pages = pages._replace(k_scale=step, v_scale=None if pages.v is None else step)
    k, v, rope = (None if x is None else x.clip(-4, 4) for x in _rows(np.random.default_rng(1), 6, pages))
    pages = jax.jit(write_pages)(pages, jnp.arange(6), k, v, rope)
    scales = (pages.k_scale, pages.v_scale, pages.rope_scale)
    for narrow, rows, scale in zip(pages[:3], (k, v, rope), scales, strict=True):
        if narrow is None:
            continue
        stored = np.asarray(narrow, "f4") * np.asarray(scale[..., None] if scale.ndim else scale)
        stored = stored.reshape(narrow.shape[0], -1, narrow.shape[3])[:, :6]
        assert np.abs(stored - np.moveaxis(np.asarray(rows), 0, 1)).max() <= 4.0 * error * 1.001
    queries = jnp.asarray(np.random.default_rng(2).standard_normal((1, 1, 4, pages.qk_dim)), "f4")
    run, reference = (jax.jit(partial(f, scale=0.25)) for f in (paged_attention, dense_attention))
    table, lens = jnp.array([[0, 1]]), jnp.array([6])
    paged, dense = run(queries, pages, table, lens), reference(queries, pages, table, lens)
    np.testing.assert_allclose(paged, dense, atol=3e-6)


def test_the_scales_of_each_token_and_head_are_counted():
    plain = new_pages(HEADS, num_blocks=4, block_size=4, dtype=jnp.int8)
    scaled = new_pages(HEADS, num_blocks=4, block_size=4, dtype=jnp.int8, scales="token")
    assert plain.nbytes == 16 * 2 * (16 + 8) + 2 * 4
    assert scaled.nbytes == 16 * 2 * (16 + 4 + 8 + 4)
    assert new_pages(LATENT, 4, 4, jnp.bfloat16).nbytes == 16 * (32 + 8) * 2


# Several devices


@pytest.mark.parametrize("shape", [GQA, MLA], ids=["heads shared out", "latents held by each"])
def test_shared_out_over_devices_it_is_the_same(shape):
    """On one device as on several: the mesh takes as many as there are, up to two."""
    devices = jax.devices()[:2]
    mesh = jax.sharding.Mesh(np.array(devices), ("tp",))
    batch = random_batch(shape, 2)
    pages = shard_pages(batch.pages, mesh, "tp")
    run = jax.jit(partial(sharded_paged_attention, mesh=mesh, axis="tp", scale=0.25, reach=Sliding(size=9)))
    found = run(
        batch.queries,
        pages,
        batch.block_tables,
        batch.kv_lens,
        query_lens=batch.query_lens,
        sinks=batch.sinks,
    )
    expected = _run(dense_attention, batch, Sliding(size=9), {"sinks": True})
    np.testing.assert_allclose(found, expected, atol=3e-6)
    devices_of_k = {shard.device for shard in pages.k.addressable_shards}
    assert devices_of_k == set(devices)


def test_heads_that_devices_cannot_share_are_refused():
    mesh = jax.sharding.AbstractMesh((3,), ("tp",))
    batch = random_batch(GQA, 0)
    with pytest.raises(Unsupported, match="2 KV heads"):
        page_specs(batch.pages, mesh, "tp")
    with pytest.raises(Unsupported, match="8 query heads"):
        sharded_paged_attention(*batch[:4], mesh=mesh, axis="tp", scale=1.0)
