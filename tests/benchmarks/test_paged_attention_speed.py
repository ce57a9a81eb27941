"""Decode attention on this CPU against what only reads the same arrays, a plain gather, and numpy.

`pytest -o addopts= --benchmark-only tests/benchmarks/test_paged_attention_speed.py -s`. Each ratio is taken
in one process with the runs interleaved, and is of medians; the array sizes are those of a serving cache.
The measuring process is told to show each core as a device, over which the KV heads are shared out.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.rows import add_rows

ROOT = Path(__file__).parents[2]
FIGURES = ("sum", "paged", "gather", "numpy")
CASES = {"MHA": (16, 1, 8, 2048), "GQA": (8, 4, 8, 4096)}
"""KV heads, query heads of each, sequences, tokens of each; heads of 128 in fp32: 256 MiB of K and V."""


def measure(name: str, block_size: int, rounds: int) -> dict[str, float]:
    """Return the median seconds of each way to go over the same keys and values."""
    import time

    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, PartitionSpec

    from kvroof.engine.pages import Pages
    from kvroof.engine.sharded_attention import shard_pages, sharded_paged_attention

    heads, group, seqs, tokens = CASES[name]
    rng = np.random.default_rng(0)
    blocks = seqs * tokens // block_size
    k, v = (rng.standard_normal((heads, blocks, block_size, 128), np.float32) for _ in range(2))
    mesh = Mesh(np.array(jax.devices()), ("core",))
    pages = shard_pages(Pages(k=jnp.asarray(k), v=jnp.asarray(v)), mesh, "core")
    queries = rng.standard_normal((seqs, 1, heads * group, 128), np.float32)
    tables = rng.permutation(blocks).reshape(seqs, -1).astype(np.int32)
    lens = np.full((seqs,), tokens, np.int32)
    scale = 128**-0.5

    split = PartitionSpec("core")
    read = jax.jit(
        jax.shard_map(
            lambda k, v: (k.sum() + v.sum())[None], mesh=mesh, in_specs=(split, split), out_specs=split
        )
    )

    @jax.jit
    def paged(queries, pages, tables, lens):
        return sharded_paged_attention(queries, pages, tables, lens, mesh=mesh, axis="core", scale=scale)

    @jax.jit
    def gather(queries, pages, tables):
        found_k, found_v = (x[:, tables].reshape(heads, seqs, tokens, 128) for x in pages[:2])
        grouped = queries.reshape(seqs, heads, group, 128)
        weights = jax.nn.softmax(jnp.einsum("skgd,kstd->skgt", grouped, found_k) * scale, axis=-1)
        return jnp.einsum("skgt,kstd->skgd", weights, found_v)

    def with_numpy():
        out = np.empty((seqs, heads, group, 128), np.float32)
        grouped = queries.reshape(seqs, heads, group, 128)
        for s in range(seqs):
            for h in range(heads):
                found_k, found_v = (x[h][tables[s]].reshape(tokens, 128) for x in (k, v))
                scores = grouped[s, h] @ found_k.T * scale
                weights = np.exp(scores - scores.max(-1, keepdims=True))
                out[s, h] = weights / weights.sum(-1, keepdims=True) @ found_v
        return out

    ways = {
        "sum": lambda: read(pages.k, pages.v),
        "paged": lambda: paged(queries, pages, tables, lens),
        "gather": lambda: gather(queries, pages, tables),
        "numpy": with_numpy,
    }
    first = np.asarray(jax.block_until_ready(ways["paged"]())).reshape(seqs, heads, group, 128)
    for other in ("gather", "numpy"):
        np.testing.assert_allclose(ways[other](), first, atol=1e-4)
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, run in ways.items():
            began = time.perf_counter()
            jax.block_until_ready(run())
            seconds[way].append(time.perf_counter() - began)
    return {way: sorted(found)[rounds // 2] for way, found in seconds.items()}


@pytest.mark.table
@pytest.mark.parametrize("block_size", [16, 128])
@pytest.mark.parametrize("name", CASES)
def test_decode_attention(benchmark, name, block_size):
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    shown = 1 << (min(cores, 8).bit_length() - 1)  # KV heads are shared out evenly
    flags = f"--xla_force_host_platform_device_count={shown}"

    def run():
        done = subprocess.run(
            [sys.executable, __file__, name, str(block_size), "9"],
            capture_output=True,
            text=True,
            env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)},
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout)

    seconds = benchmark.pedantic(run, rounds=1)
    share = seconds["sum"] / seconds["paged"]
    took = {
        "kvroof": seconds["paged"],
        "a sum that only reads it": seconds["sum"],
        "gathered, `jax.numpy`": seconds["gather"],
        "NumPy": seconds["numpy"],
    }
    add_rows(benchmark, f"decode attention over 256 MiB, {name}, blocks of {block_size}", took)
    assert set(seconds) == set(FIGURES)
    assert share > 0.1


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
