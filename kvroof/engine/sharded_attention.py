"""Paged attention over several devices: KV heads are shared out, as tensor parallelism does.

The devices may be accelerators, or the cores of one CPU that XLA was told to show as devices
(`--xla_force_host_platform_device_count`).
"""

# ruff: noqa: F722 - shapes are strings
from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from kvroof.engine.paged_attention import paged_attention
from kvroof.engine.pages import Pages
from kvroof.ground.errors import Unsupported
from kvroof.spec.reach import AnyReach, Full


def shard_pages(pages: Pages, mesh: Mesh, axis: str) -> Pages:
    """Return the pages with their KV heads shared out over `axis`; a single head is held by every device.

    Raises:
        Unsupported: Several KV heads that the devices do not divide among themselves.
    """
    specs = page_specs(pages, mesh, axis)
    placed: Pages = jax.tree.map(lambda x, spec: jax.device_put(x, NamedSharding(mesh, spec)), pages, specs)
    return placed


def page_specs(pages: Pages, mesh: Mesh | AbstractMesh, axis: str) -> Pages:
    """Return the partition of every array of `pages` over `axis`.

    Raises:
        Unsupported: Several KV heads that the devices do not divide among themselves.
    """
    heads, devices = pages.num_kv_heads, mesh.shape[axis]
    if heads > 1 and heads % devices:
        raise Unsupported(
            f"{heads} KV heads are not shared out evenly over {devices} devices",
            where="engine",
            way_out=f"use a number of devices that divides {heads}",
        )
    specs: Pages = jax.tree.map(lambda x: _spec(axis if x.ndim and heads > 1 else None), pages)
    return specs


def _spec(*axes: str | None) -> PartitionSpec:
    return PartitionSpec(*axes)  # type: ignore[no-untyped-call]


def sharded_paged_attention(
    queries: Float[Array, "num_seqs query_len num_heads qk_dim"],
    pages: Pages,
    block_tables: Int[Array, "num_seqs max_blocks"],
    kv_lens: Int[Array, " num_seqs"],
    *,
    mesh: Mesh | AbstractMesh,
    axis: str,
    scale: float,
    reach: AnyReach = Full(),  # noqa: B008 - a frozen record
    query_lens: Int[Array, " num_seqs"] | None = None,
    sinks: Float[Array, " num_heads"] | None = None,
    soft_cap: float | None = None,
) -> Float[Array, "num_seqs query_len num_heads v_dim"]:
    """Return `paged_attention` computed by all devices of `axis`, query heads with their KV heads.

    Raises:
        Unsupported: KV heads, or the query heads of a single one, that the devices do not divide.
    """
    num_heads, devices = queries.shape[2], mesh.shape[axis]
    if num_heads % devices:
        raise Unsupported(
            f"{num_heads} query heads are not shared out evenly over {devices} devices",
            where="engine",
            way_out=f"use a number of devices that divides {num_heads}",
        )
    if query_lens is None:
        query_lens = jnp.full(kv_lens.shape, queries.shape[1], kv_lens.dtype)
    whole, by_head = _spec(), _spec(None, None, axis)

    def local(q: Array, p: Pages, tables: Array, lens: Array, q_lens: Array, sink: Array | None) -> Array:
        return paged_attention(
            q, p, tables, lens, scale=scale, reach=reach, query_lens=q_lens, sinks=sink, soft_cap=soft_cap
        )

    share = partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(by_head, page_specs(pages, mesh, axis), whole, whole, whole, _spec(axis)),
        out_specs=by_head,
        check_vma=False,
    )
    out: Array = share(local)(queries, pages, block_tables, kv_lens, query_lens, sinks)
    return out
