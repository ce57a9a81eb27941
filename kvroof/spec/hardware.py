"""What a machine is: memory, dense peaks and links of one accelerator, in base units."""

from __future__ import annotations

from kvroof.ground.record import record, static


@record
class Link:
    """One direction of a device's connection: `bytes_per_s` per device, among `domain` devices.

    With `reduces_in_switch` the switch can sum what passes through it.
    """

    name: str = static()
    bytes_per_s: float
    domain: int | None = static(default=None)
    reduces_in_switch: bool = static(default=False)


@record
class Hardware:
    """One accelerator as software sees it.

    `memory_bytes` is the nominal capacity, `visible_memory_bytes` what a driver reports (None where
    unknown). `peak_flops_per_s` are dense peaks by compute dtype with fp32 accumulation. Links are
    one way and per device. `disagreements` are open contradictions between sources, kept for people.
    """

    name: str = static()
    vendor: str = static()
    memory_bytes: int
    visible_memory_bytes: int | None = None
    hbm_bytes_per_s: float
    peak_flops_per_s: dict[str, float]
    scale_up: Link | None = None
    scale_out: Link | None = None
    host: Link | None = None
    tdp_w: float | None = None
    llc_bytes: int | None = None
    cores: int | None = None
    unified_memory: bool = static(default=False)
    disagreements: tuple[str, ...] = static(default=())

    @property
    def capacity_bytes(self) -> int:
        """Visible memory where it is known, else the nominal figure."""
        return self.memory_bytes if self.visible_memory_bytes is None else self.visible_memory_bytes
