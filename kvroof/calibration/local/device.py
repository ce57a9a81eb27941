"""What JAX sees here: its device, the catalog's name for it, and a profile of what was measured."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvroof.catalog.profile import Count, LinkTable, Peak, Peaks, Profile, Quantity, Rate
from kvroof.catalog.profiles import hardware_names, load_profile
from kvroof.ground.errors import KvroofError, Unsupported
from kvroof.ground.record import record, static
from kvroof.ground.units import format_bytes

KINDS = {
    "nvidia h100 80gb hbm3": "h100-sxm",
    "nvidia h100 pcie": "h100-pcie",
    "nvidia h100 nvl": "h100-nvl",
    "nvidia h200": "h200-sxm",
    "nvidia h200 nvl": "h200-nvl",
    "nvidia h20": "h20",
    "nvidia gh200 480gb": "gh200-96gb",
    "nvidia b200": "b200-sxm",
    "nvidia b300": "b300-sxm",
    "nvidia a100-sxm4-80gb": "a100-sxm-80gb",
    "nvidia a100-sxm4-40gb": "a100-sxm-40gb",
    "nvidia a100 80gb pcie": "a100-pcie-80gb",
    "nvidia a100-pcie-40gb": "a100-pcie-40gb",
    "nvidia a10g": "a10g",
    "nvidia a40": "a40",
    "nvidia l4": "l4",
    "nvidia l40s": "l40s",
    "nvidia rtx 6000 ada generation": "rtx-6000-ada",
    "nvidia geforce rtx 3090": "rtx-3090",
    "nvidia geforce rtx 4090": "rtx-4090",
    "nvidia geforce rtx 5090": "rtx-5090",
    "tesla t4": "t4",
    "tesla v100-sxm2-32gb": "v100-sxm2-32gb",
    "tpu v4": "tpu-v4",
    "tpu v5 lite": "tpu-v5e",
    "tpu v5p": "tpu-v5p",
    "tpu v5": "tpu-v5p",
    "tpu v6 lite": "tpu-v6e",
}
"""Device kinds, as drivers spell them, of machines in the catalog."""
_CACHE = Path("/sys/devices/system/cpu/cpu0/cache")
_LIMIT = Path("/sys/fs/cgroup/memory.max")
_CPU_INFO = Path("/proc/cpuinfo")


@record
class Device:
    """A device as JAX and the operating system describe it; `known` is its name in the catalog.

    `memory_source` and `llc_source` say who told the sizes.
    """

    platform: str = static()
    kind: str = static()
    count: int = static(default=1)
    jax_version: str = static(default="")
    known: str | None = static(default=None)
    memory_bytes: int
    memory_source: str = static(default="")
    llc_bytes: int | None = None
    llc_source: str = static(default="")
    cores: int | None = None

    @property
    def name(self) -> str:
        """The catalog's name, or one made of the kind and the cores."""
        if self.known is not None:
            return self.known
        words = re.sub(r"[^a-z0-9]+", "-", self.kind.lower()).strip("-")[:40] or "device"
        cores = f"-{self.cores}-cores" if self.cores else ""
        return f"{self.platform}-{words}{cores}" if words != self.platform else f"{self.platform}{cores}"


def local_device() -> Device:
    """Return the device that JAX computes on here.

    Raises:
        Unsupported: Nobody tells how much memory it has.
    """
    import jax

    first, count = jax.devices()[0], len(jax.devices())
    about = {"platform": first.platform, "count": count, "jax_version": jax.__version__}
    if first.platform == "cpu":
        memory, said = _memory()
        llc = _last_cache()
        return Device(
            kind=_processor(),
            memory_bytes=memory,
            memory_source=said,
            llc_bytes=llc,
            llc_source="reported by the operating system" if llc else "",
            cores=_cores(),
            **about,
        )
    stats: Mapping[str, Any] = first.memory_stats() or {}
    known = known_as(first.device_kind)
    memory = int(stats.get("bytes_limit", 0)) or (load_profile(known).memory_bytes.value if known else 0)
    if not memory:
        raise Unsupported(
            f"nobody tells the memory of {first.device_kind}", where="calibrate", way_out="give --hw FILE"
        )
    source = "what JAX may allocate of the device" if stats.get("bytes_limit") else f"the catalog's {known}"
    return Device(kind=first.device_kind, known=known, memory_bytes=memory, memory_source=source, **about)


def known_as(kind: str) -> str | None:
    """Return the catalog's name of a device kind, None where it has none."""
    words = " ".join(kind.lower().split())
    if words in KINDS:
        return KINDS[words]
    if words in hardware_names():
        return words
    try:
        return load_profile(kind).name
    except KvroofError:
        return None


@record
class Reached:
    """The best that was measured: bytes and FLOPs per second by dtype, and how each was found.

    `link_bytes_per_s` is one device's, one way, where there are several.
    """

    bytes_per_s: float
    bytes_source: str = static()
    flops_per_s: dict[str, float]
    flops_sources: dict[str, str] = static()
    link_bytes_per_s: float | None = None


def propose(device: Device, reached: Reached, when: str) -> Profile:
    """Return the hardware profile of a device that is in no catalog: nothing in it is guessed.

    Args:
        device: What it is.
        reached: What was measured of it.
        when: The day, and under what.
    """
    made = f"measured by kvroof calibrate, {when}"
    peaks = {
        dtype: Peak(
            value=value,
            density="dense",
            source=f"{made}: {reached.flops_sources[dtype]}",
            note="The best that was reached, not a data sheet's peak.",
            ratio_reason="Measured.",
        )
        for dtype, value in reached.flops_per_s.items()
    }
    link = None
    if reached.link_bytes_per_s is not None:
        rate = Rate(value=reached.link_bytes_per_s, direction="one-way", source=f"{made}: the fastest gather")
        domain = Count(value=device.count, source="devices that JAX shows")
        link = LinkTable(name="between JAX devices", bytes_per_s=rate, domain=domain)
    optional: dict[str, Any] = {}
    if device.llc_bytes:
        optional["llc_bytes"] = Count(value=device.llc_bytes, source=device.llc_source)
    if device.cores:
        optional["cores"] = Count(value=device.cores, source="cores this process may use")
    return Profile(
        name=device.name,
        vendor=_vendor(device.kind),
        notes=("Measured here, by software that does not reach a chip's peaks: rates are of this program.",),
        memory_bytes=Count(value=device.memory_bytes, source=device.memory_source),
        hbm_bytes_per_s=Quantity(value=reached.bytes_per_s, source=f"{made}: {reached.bytes_source}"),
        peak_flops_per_s=Peaks(**peaks),
        scale_up=link,
        **optional,
    )


def load_average() -> float | None:
    """Return how many processes wanted to run, over the last minute; None where nobody counts them."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None


def _memory() -> tuple[int, str]:
    try:
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        raise Unsupported(
            "this system does not tell how much memory there is",
            where="calibrate",
            way_out="run it on Linux or macOS",
        ) from None
    try:
        limit = int(_LIMIT.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        limit = whole
    if limit < whole:
        return limit, f"the limit of this process's control group; the machine has {format_bytes(whole)}"
    return whole, "reported by the operating system"


def _last_cache() -> int | None:
    sizes = []
    for level in _CACHE.glob("index*/size"):
        try:
            text = level.read_text(encoding="utf-8").strip()
            sizes.append(int(text[:-1]) * {"K": 2**10, "M": 2**20}[text[-1]])
        except (OSError, ValueError, KeyError, IndexError):
            continue
    return max(sizes, default=None)


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def _processor() -> str:
    try:
        lines = _CPU_INFO.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return named or platform.processor() or platform.machine() or "cpu"


def _vendor(kind: str) -> str:
    known = {
        "amd": "AMD",
        "epyc": "AMD",
        "intel": "Intel",
        "apple": "Apple",
        "nvidia": "NVIDIA",
        "tpu": "Google",
    }
    return next((vendor for word, vendor in known.items() if word in kind.lower()), "unknown")
