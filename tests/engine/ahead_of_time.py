"""Compile paged attention for a device that is not here, and print one JSON line per case.

`python ahead_of_time.py PLATFORM TOPOLOGY CASE ...`, in a process of its own: plugins read the environment
when JAX is imported.
"""

import json
import os
import sys
from typing import Any, NamedTuple

if __name__ == "__main__":
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"
    if sys.argv[1] == "cuda":  # without a GPU nothing can be tuned
        os.environ["XLA_FLAGS"] = "--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false"

import jax
import jax.numpy as jnp
import numpy as np

from kvroof.engine.kernels.gpu import gpu_paged_attention
from kvroof.engine.kernels.tpu import tpu_paged_attention
from kvroof.engine.paged_attention import paged_attention
from kvroof.engine.pages import Pages, write_pages
from kvroof.engine.rows import pack_rows, unpack_rows
from kvroof.spec.reach import Full, Sliding

H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
  shared_memory_per_core: 233472 threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: 84978434048 shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 } registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 7 }
runtime_version { major: 12 minor: 8 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
"""The limits of an H100 SXM. Source: OpenXLA, xla/backends/gpu/target_config/specs/h100_sxm.txtpb."""


class Case(NamedTuple):
    """One decode step to compile."""

    heads: int
    group: int
    block_size: int
    k_dim: int
    v_dim: int
    rope_dim: int
    dtype: Any
    reach: Any


CASES = {
    "gqa": Case(8, 4, 16, 128, 128, 0, jnp.bfloat16, Full()),
    "gqa, window": Case(8, 4, 128, 128, 128, 0, jnp.bfloat16, Sliding(size=1000)),
    "gqa, fp8": Case(8, 4, 64, 128, 128, 0, jnp.float8_e4m3fn, Full()),
    "mla": Case(1, 128, 64, 512, 0, 64, jnp.bfloat16, Full()),
}


def arguments(case: Case, sharding: Any = None) -> tuple[Any, ...]:
    """Return the shapes of pages, slots, new K, V and rotary keys, queries, tables and lengths."""

    def shape(*dims, dtype=jnp.int32):
        return jax.ShapeDtypeStruct(dims, dtype, sharding=sharding)

    seqs, blocks = 4, 128
    stored = {"k": case.k_dim, "v": case.v_dim, "rope": case.rope_dim}
    pages = Pages(
        **{
            name: shape(case.heads, blocks, case.block_size, width, dtype=case.dtype) if width else None
            for name, width in stored.items()
        }
    )
    if jnp.dtype(case.dtype).itemsize == 1:
        one = shape(dtype=jnp.float32)
        pages = pages._replace(k_scale=one, v_scale=one)
    new = [shape(seqs, case.heads, width, dtype=jnp.bfloat16) if width else None for width in stored.values()]
    queries = shape(seqs, 1, case.heads * case.group, case.k_dim + case.rope_dim, dtype=jnp.bfloat16)
    return pages, shape(seqs), *new, queries, shape(seqs, 16), shape(seqs)


def decode_step(case: Case, kernel: Any) -> Any:
    """Return a function that writes the new tokens and attends, with `kernel` or the portable path."""

    def step(pages, slots, k, v, rope, queries, tables, lens):
        pages = write_pages(pages, slots, k, v, rope)
        if kernel is None:
            return pages, paged_attention(queries, pages, tables, lens, scale=0.1, reach=case.reach)
        ones = jnp.ones_like(lens)
        rows = pack_rows(queries, case.heads, lens, ones, scale=0.1, reach=case.reach, sinks=None)
        return pages, unpack_rows(kernel(rows, pages, tables), 1, queries.dtype)

    return step


KERNELS = {"cuda": gpu_paged_attention, "tpu": tpu_paged_attention}


def main(platform: str, topology: str, *names: str) -> None:
    """Compile the named cases and print what each takes."""
    from jax.experimental import topologies

    more = {"target_config": H100, "topology": topology} if platform == "cuda" else {}
    named = {} if platform == "cuda" else {"topology_name": topology}
    device = topologies.get_topology_desc(platform=platform, **named, **more).devices[0]
    mesh = jax.sharding.Mesh(np.array([device]), ("x",))
    for name in names:
        case = CASES[name]
        shapes = arguments(case, jax.sharding.SingleDeviceSharding(device))
        for kernel in (KERNELS[platform], None):
            with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
                jitted = jax.jit(decode_step(case, kernel), donate_argnums=0)
                used = jitted.lower(*shapes).compile().memory_analysis()
            answer = {
                "case": name,
                "path": "portable" if kernel is None else "kernel",
                "device": device.device_kind,
                "page_bytes": sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(shapes[0])),
                "argument_bytes": used.argument_size_in_bytes,
                "other_argument_bytes": sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(shapes[1:])),
                "aliased_bytes": used.alias_size_in_bytes,
                "temporary_bytes": used.temp_size_in_bytes,
            }
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
