"""Which Pallas kernel runs, if one does."""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Array

from kvroof.engine.pages import Pages
from kvroof.engine.rows import Rows

MOST_ROWS = 256
"""Rows of a KV head beyond which the portable path runs: a long chunk of prefill."""

Kernel = Callable[..., Array]


def kernel_for(rows: Rows, pages: Pages, platform: str) -> Kernel | None:
    """Return the kernel of a platform for these shapes and dtypes, or None where the portable path runs.

    Kernels take up to 256 rows of a KV head, pages of up to 32 bits, and scales of the whole tensor; on a
    GPU, widths and block sizes that are powers of two.
    """
    scales = [scale for scale in (pages.k_scale, pages.value_scale) if scale is not None]
    if rows.first.shape[1] > MOST_ROWS or pages.k.dtype.itemsize > 4 or any(s.ndim for s in scales):
        return None
    if platform == "tpu":
        from kvroof.engine.kernels.tpu import tpu_paged_attention

        return tpu_paged_attention
    widths = [x.shape[3] for x in (pages.k, pages.v, pages.rope) if x is not None]
    if platform == "gpu" and all(_is_power_of_two(n) for n in (*widths, pages.block_size)):
        from kvroof.engine.kernels.gpu import gpu_paged_attention

        return gpu_paged_attention
    return None


def _is_power_of_two(count: int) -> bool:
    return count & (count - 1) == 0 and count >= 16
