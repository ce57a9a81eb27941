"""The Pallas kernels, interpreted on the CPU, equal dense attention, and are chosen where they can run."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kvroof.engine.dense_attention import dense_attention
from kvroof.engine.kernels.choice import kernel_for
from kvroof.engine.kernels.gpu import gpu_paged_attention
from kvroof.engine.kernels.tpu import tpu_paged_attention
from kvroof.engine.paged_attention import paged_attention
from kvroof.engine.pages import Pages
from kvroof.engine.rows import pack_rows, unpack_rows
from kvroof.spec.reach import Chunked, Full, Sliding
from tests.engine.paged_batches import (
    GQA,
    MHA,
    MLA,
    QUICK_TO_COMPILE,
    blocks_read,
    random_batch,
    with_nan_elsewhere,
)

KERNELS = {"gpu": gpu_paged_attention, "tpu": tpu_paged_attention}
both = pytest.mark.parametrize("platform", KERNELS)
WIDE = MHA._replace(
    block_size=128, num_blocks=8, num_seqs=2, max_blocks=3, k_dim=32, v_dim=32, group=2, heads=2
)
CASES = {
    "GQA, window, sinks, verification of 3": (GQA._replace(query_len=3), Sliding(size=7), True, None, 3e-6),
    "long blocks, chunks, soft cap": (WIDE, Chunked(size=200), False, 3.0, 3e-6),
    "MLA in bf16": (MLA._replace(dtype=jnp.bfloat16, query_len=2), Sliding(size=9), False, None, 3e-2),
}


@cache
def _kernel(platform, shape, reach, sinks, soft_cap):
    def run(batch):
        rows = pack_rows(
            batch.queries,
            shape.heads,
            batch.kv_lens,
            batch.query_lens,
            scale=0.25,
            reach=reach,
            sinks=batch.sinks if sinks else None,
        )
        out = KERNELS[platform](rows, batch.pages, batch.block_tables, soft_cap=soft_cap, interpret=True)
        return unpack_rows(out, shape.query_len, jnp.float32)

    return jax.jit(run, compiler_options=QUICK_TO_COMPILE)


@cache
def _dense(reach, sinks, soft_cap):
    def run(batch):
        return dense_attention(
            *batch[:4],
            scale=0.25,
            reach=reach,
            query_lens=batch.query_lens,
            sinks=batch.sinks if sinks else None,
            soft_cap=soft_cap,
        )

    return jax.jit(run, compiler_options=QUICK_TO_COMPILE)


@both
@pytest.mark.parametrize("name", CASES)
def test_a_kernel_equals_dense_attention(platform, name):
    shape, reach, sinks, soft_cap, tolerance = CASES[name]
    run, reference = _kernel(platform, shape, reach, sinks, soft_cap), _dense(reach, sinks, soft_cap)
    for seed in range(3):
        batch = random_batch(shape, seed)
        np.testing.assert_allclose(run(batch), reference(batch), atol=tolerance, rtol=0)


@both
def test_a_kernel_reads_no_block_that_no_query_sees(platform):
    shape, reach = CASES["GQA, window, sinks, verification of 3"][:2]
    run = _kernel(platform, shape, reach, True, None)
    batch = random_batch(shape, 7)
    poisoned = with_nan_elsewhere(batch, blocks_read(batch, reach, shape.block_size))
    np.testing.assert_array_equal(run(poisoned), run(batch))


@both
def test_a_kernel_applies_the_scales_of_narrow_pages(platform):
    batch = random_batch(GQA, 4)
    k, v = (jnp.clip(jnp.round(x * 31), -127, 127).astype(jnp.int8) for x in batch.pages[:2])
    pages = Pages(k=k, v=v, k_scale=jnp.float32(1 / 31), v_scale=jnp.float32(1 / 31))
    batch = batch._replace(pages=pages)
    found = _kernel(platform, GQA, Full(), False, None)(batch)
    np.testing.assert_allclose(found, _dense(Full(), False, None)(batch), atol=3e-2)


def test_the_portable_path_equals_jaxs_own_paged_attention():
    """Its kernel for GPUs, interpreted; it takes no window and does not scale queries."""
    from jax.experimental.pallas.ops.gpu.paged_attention import paged_attention as theirs

    batch = random_batch(GQA._replace(num_seqs=2, max_blocks=4), 1)
    batch = batch._replace(query_lens=jnp.ones_like(batch.query_lens), kv_lens=jnp.maximum(batch.kv_lens, 1))
    ours = paged_attention(*batch[:4], scale=0.25)
    run = partial(theirs, interpret=True, block_h=16, pages_per_compute_block=2, k_splits=2)
    found = run(batch.queries[:, 0] * 0.25, *batch.pages[:2], batch.block_tables, batch.kv_lens)
    np.testing.assert_allclose(found, ours[:, 0], atol=3e-6)


def _choice(platform, *, query_len=1, pages=None):
    batch = random_batch(GQA._replace(query_len=query_len, block_size=16), 0)
    rows = pack_rows(batch.queries, 2, batch.kv_lens, batch.query_lens, scale=1.0, reach=Full(), sinks=None)
    return kernel_for(rows, pages or batch.pages, platform)


def test_each_accelerator_has_its_kernel_and_the_cpu_has_none():
    assert _choice("gpu") is gpu_paged_attention
    assert _choice("tpu") is tpu_paged_attention
    assert _choice("cpu") is None


def test_what_a_kernel_cannot_do_goes_the_portable_way():
    pages = random_batch(GQA._replace(block_size=16), 0).pages
    odd = random_batch(GQA._replace(block_size=16, v_dim=24), 0).pages
    scaled = pages._replace(k_scale=jnp.ones(pages.k.shape[:3]))
    assert _choice("gpu", query_len=65) is None
    assert _choice("gpu", pages=odd) is None
    assert _choice("tpu", pages=odd) is tpu_paged_attention
    assert _choice("gpu", pages=scaled) is None
