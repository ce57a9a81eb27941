"""Which measured kernels an operation belongs to, and how they cut its work into items.

The counts are those of `kvroof.calibration.work`, which reads the tables the kernels were fitted on.
"""

from __future__ import annotations

from kvroof.ground.numeric import ceil_div
from kvroof.spec.attention import Attention, LatentAttention
from kvroof.spec.precision import KVFormat
from kvroof.spec.weights import WHOLE, Format
from kvroof.spec.workload import Phase, Step

TILE = 128
"""Rows and columns of the output tile of a product, and query rows of a prefill, that make one item."""
LATENT_HEADS = 64
"""Heads that one item of absorbed latent attention takes."""
NARROW = {"nvfp4": "nvfp4", "fp4": "nvfp4", "mxfp4": "mxfp4", "int8": "int8"}


def weights_kind(stored: Format) -> str:
    """Return the kernel that multiplies weights of a storage: bf16, fp32, fp8, fp8_block, nvfp4, int8, ..."""
    name = stored.dtype.name
    if name == "fp8":
        block = stored.scale_block
        return "fp8_block" if block is not None and max(block) < WHOLE else "fp8"
    if name in ("bf16", "fp16"):
        return "bf16"
    if name == "fp32":
        return name
    return NARROW.get(name, "int4")


def attention_family(mixer: Attention, phase: Phase, kv: KVFormat, latent: str) -> str:
    """Return the kernels that score a cache: `attention` or `mla`, the phase, and a dtype that is not half.

    Where a dtype has no kernel of its own, the half-precision one stands in.
    """
    absorbed = isinstance(mixer, LatentAttention) and latent == "absorbed"
    kernels = "decode" if absorbed else phase
    return scoring_family("mla" if isinstance(mixer, LatentAttention) else "attention", kernels, kv)


def scoring_family(head: str, kernels: str, kv: KVFormat) -> str:
    """Return the kernels of a head (`attention`, `mla`) and phase, with the dtype where it is not half."""
    wide = next((name for name in ("fp8", "fp32") if kv.k.name.startswith(name)), None)
    return f"{head}.{kernels}" if wide is None else f"{head}.{kernels}.{wide}"


def attention_items(mixer: Attention, step: Step, phase: Phase, heads: int, kv_heads: int) -> float:
    """Return the work items on one rank: sequences x KV heads in decode, query tiles in prefill."""
    if phase == "decode":
        if isinstance(mixer, LatentAttention):
            return step.seqs * ceil_div(heads, LATENT_HEADS)
        return step.seqs * kv_heads
    return prefill_items(step, heads)


def prefill_items(step: Step, heads: int) -> float:
    """Return the tiles of queries, for each of `heads`."""
    return sum(g.count * heads * ceil_div(g.query_len, TILE) for g in step.groups)


def product_items(rows: float, columns: float) -> float:
    """Return the output tiles of a product."""
    return ceil_div(rows, TILE) * ceil_div(columns, TILE)


def expert_items(touched: float, routed: float) -> float:
    """Return the tiles of `routed` token-expert pairs over the `touched` experts."""
    return touched * ceil_div(routed / touched, TILE)
