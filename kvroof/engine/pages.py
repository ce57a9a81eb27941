"""Pages: the arrays that hold cached keys and values in blocks of `block_size` tokens, and writing to them.

Pages are head-major: all tokens of one head of one block lie together, so a block of a head is one
contiguous read, and a rank of tensor parallelism holds a contiguous part. A *slot* is one token's place,
`block * block_size + offset`.
"""

# ruff: noqa: F722 - shapes are strings
from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Num

from kvroof.spec.attention import GroupedAttention, LatentAttention

NARROW = {"int8": 127.0, "float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}
"""Dtypes that are stored with a scale, and the largest value of each."""


class Pages(NamedTuple):
    """One layer's cache: `num_blocks` blocks of `block_size` tokens for each KV head.

    Grouped attention fills `k` and `v`. Latent attention in absorbed form fills `k` with the latents and
    `rope` with the rotary keys; its `v` is None: the values are the latents. A key that is also the value,
    stored once, has neither `v` nor `rope`.

    Narrow dtypes (int8, fp8) hold `value / scale`. A scale is one number for the tensor, or one for each
    token and head. `k_scale` also holds for `rope` where that has the dtype of `k`; wider rows have none.
    """

    k: Num[Array, "num_kv_heads num_blocks block_size k_dim"]
    v: Num[Array, "num_kv_heads num_blocks block_size v_dim"] | None = None
    rope: Num[Array, "num_kv_heads num_blocks block_size rope_dim"] | None = None
    k_scale: Float[Array, ""] | Float[Array, "num_kv_heads num_blocks block_size"] | None = None
    v_scale: Float[Array, ""] | Float[Array, "num_kv_heads num_blocks block_size"] | None = None

    @property
    def num_kv_heads(self) -> int:
        """KV heads held here."""
        return self.k.shape[0]

    @property
    def num_blocks(self) -> int:
        """Blocks of each head."""
        return self.k.shape[1]

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        return self.k.shape[2]

    @property
    def qk_dim(self) -> int:
        """Width of a query: the key's, and the rotary key's behind it."""
        return self.k.shape[3] + (0 if self.rope is None else self.rope.shape[3])

    @property
    def v_dim(self) -> int:
        """Width of a value."""
        return self.values.shape[3]

    @property
    def values(self) -> Num[Array, "num_kv_heads num_blocks block_size v_dim"]:
        """The values: `v`, or the keys where they are stored once."""
        return self.k if self.v is None else self.v

    @property
    def value_scale(self) -> Float[Array, ...] | None:
        """The scale of the values."""
        return self.k_scale if self.v is None else self.v_scale

    @property
    def rope_scale(self) -> Float[Array, ...] | None:
        """The scale of the rotary keys: the keys' where they share a dtype."""
        return self.k_scale if self.rope is not None and self.rope.dtype == self.k.dtype else None

    @property
    def nbytes(self) -> int:
        """Bytes allocated, scales included."""
        return sum(int(leaf.nbytes) for leaf in jax.tree_util.tree_leaves(self))


def new_pages(
    attention: GroupedAttention | LatentAttention,
    num_blocks: int,
    block_size: int,
    dtype: DTypeLike = jnp.bfloat16,
    *,
    scales: Literal["tensor", "token"] = "tensor",
) -> Pages:
    """Return zeroed pages for one layer of `attention`.

    Args:
        attention: Heads and widths.
        num_blocks: Blocks to allocate.
        block_size: Tokens in a block.
        dtype: What keys and values are stored in.
        scales: For a narrow dtype: one number for the tensor (1, until it is replaced), or one for each
            token and head, which `write_pages` finds.
    """
    heads, k_dim, v_dim, rope_dim = _widths(attention)

    def rows(width: int) -> Array:
        return jnp.zeros((heads, num_blocks, block_size, width), dtype)

    def scale() -> Array | None:
        if jnp.dtype(dtype).name not in NARROW:
            return None
        return jnp.ones((heads, num_blocks, block_size) if scales == "token" else (), jnp.float32)

    return Pages(
        k=rows(k_dim),
        v=rows(v_dim) if v_dim else None,
        rope=rows(rope_dim) if rope_dim else None,
        k_scale=scale(),
        v_scale=scale() if v_dim else None,
    )


def _widths(attention: GroupedAttention | LatentAttention) -> tuple[int, int, int, int]:
    """Return KV heads, and the widths of a key, a value and a rotary key; 0 where none is stored."""
    if isinstance(attention, LatentAttention):
        return 1, attention.kv_lora_rank, 0, attention.qk_rope_head_dim
    return attention.num_kv_heads, attention.head_dim, attention.v_head_dim, 0


def write_pages(
    pages: Pages,
    slot_mapping: Int[Array, " num_tokens"],
    k: Float[Array, "num_tokens num_kv_heads k_dim"],
    v: Float[Array, "num_tokens num_kv_heads v_dim"] | None = None,
    rope: Float[Array, "num_tokens num_kv_heads rope_dim"] | None = None,
) -> Pages:
    """Return the pages with each token's row written to its slot; a negative slot writes nothing.

    Jitted with `pages` donated, the write is in place.
    """
    slots = jnp.where(slot_mapping < 0, pages.num_blocks * pages.block_size, slot_mapping)
    # A rotary key in the keys' dtype shares their scale, so the two are measured together.
    joint = [k] if rope is None or pages.rope_scale is None else [k, rope]
    k_scale, k_used = _scales(pages.k_scale, slots, pages.k.dtype, joint)
    v_scale, v_used = _scales(pages.v_scale, slots, pages.values.dtype, [] if v is None else [v])
    return Pages(
        k=_put(pages.k, slots, k, k_used),
        v=None if pages.v is None or v is None else _put(pages.v, slots, v, v_used),
        rope=None
        if pages.rope is None or rope is None
        else _put(pages.rope, slots, rope, None if pages.rope_scale is None else k_used),
        k_scale=k_scale,
        v_scale=v_scale,
    )


def _scales(scale: Array | None, slots: Array, dtype: DTypeLike, rows: list[Array]) -> tuple[Any, Any]:
    """Return the scales with those of new `rows` written, and what each row is divided by."""
    if scale is None or not rows:
        return scale, None
    if scale.ndim == 0:
        return scale, scale
    largest = jnp.stack([jnp.abs(row.astype(jnp.float32)).max(-1) for row in rows]).max(0)
    found = jnp.where(largest > 0, largest / NARROW[jnp.dtype(dtype).name], 1.0)
    return _put(scale, slots, found, None), found[..., None]


def _put(pages: Array, slots: Array, rows: Array, scale: Array | None) -> Array:
    """Return `pages` with `rows / scale` at `slots`, in the pages' dtype."""
    if scale is not None:
        rows = rows / scale
        most = NARROW[jnp.dtype(pages.dtype).name]
        rows = jnp.clip(rows, -most, most)
        if jnp.issubdtype(pages.dtype, jnp.integer):
            rows = jnp.round(rows)
    heads, num_blocks, block_size = pages.shape[:3]
    flat = pages.reshape(heads, num_blocks * block_size, *pages.shape[3:])
    flat = flat.at[:, slots].set(jnp.moveaxis(rows, 0, 1).astype(pages.dtype), mode="drop")
    return flat.reshape(pages.shape)
