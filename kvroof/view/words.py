"""The words that several answers share: devices, layouts, whether it fits, what is changed, who serves."""

from __future__ import annotations

from typing import Any

from kvroof.ground.units import format_bytes
from kvroof.memory.ledger import Ledger
from kvroof.spec.parallel import shared_axes

CHANGES = {
    "hbm_bandwidth": "HBM bandwidth",
    "compute": "arithmetic peak",
    "link": "link bandwidth",
    "overhead": "starts and host time",
    "work_items": "time per work item",
    "kv_heads": "KV heads",
    "window": "sliding window",
    "kv_bytes_per_element": "bytes per KV element",
    "weight_bytes_per_element": "bytes per weight",
    "batch": "requests at once",
    "context": "context length",
}
"""What a time is sensitive to."""
WAYS = {"aggregate": "one pool", "disaggregate": "two pools", "tie": "tie", "either": "either"}
"""Who serves prefill and decode: the same instances, or instances of their own for each."""


def several(count: int, name: str) -> str:
    """Return so many of a thing, its name alone where it is one."""
    return f"{count:,} x {name}" if count > 1 else name


def layout_words(held: Any) -> str:
    """Return the axes that have more than one rank, of a layout or of a record with its axes."""
    return ", ".join(f"{axis} {ranks}" for axis, ranks in shared_axes(held).items()) or "one device"


def fit_words(ledger: Ledger, asked: str, place: str = "") -> str:
    """Return whether what is asked fits on a place, and by how much."""
    spare, on = format_bytes(abs(ledger.headroom_bytes)), f" on {place}" if place else ""
    return f"{asked} fit{on}, {spare} to spare" if ledger.fits else f"{asked} do not fit{on}: {spare} short"
