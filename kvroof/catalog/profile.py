"""What a hardware file holds: every number with its source, and what other sources claim."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from kvroof.ground.units import format_decimal


class _Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A table of the file; a key it does not know is an error."""


class Claim(_Strict, frozen=True, kw_only=True):
    """Another source's figure for a value, kept because nobody has settled it."""

    value: float
    source: str
    note: str | None = None


class OtherFigure(_Strict, frozen=True, kw_only=True):
    """A figure that is often mistaken for a value, and what it really is."""

    value: float
    reason: str


class Quantity(_Strict, frozen=True, kw_only=True):
    """A number and where it comes from; `also` is a second source that agrees."""

    value: float
    source: str
    also: str | None = None
    note: str | None = None
    disputed: tuple[Claim, ...] = ()
    confused_with: tuple[OtherFigure, ...] = ()


class Count(Quantity, frozen=True, kw_only=True):
    """A quantity that is whole."""

    value: int


class Peak(Quantity, frozen=True, kw_only=True):
    """A peak with fp32 accumulation; `ratio_reason` says why it is out of proportion to bf16's."""

    density: str = ""
    ratio_reason: str | None = None


class Rate(Quantity, frozen=True, kw_only=True):
    """A link's rate per device and direction."""

    direction: str = ""


class Peaks(_Strict, frozen=True, kw_only=True):
    """Dense peaks by compute dtype; what is absent the chip lacks, or nobody vouches for."""

    fp32: Peak | None = None
    tf32: Peak | None = None
    bf16: Peak | None = None
    fp16: Peak | None = None
    fp8: Peak | None = None
    int8: Peak | None = None
    fp6: Peak | None = None
    fp4: Peak | None = None
    int4: Peak | None = None

    def given(self) -> dict[str, Peak]:
        """Return the peaks the file holds, by dtype."""
        return {name: getattr(self, name) for name in self.__struct_fields__ if getattr(self, name)}


class Fact(_Strict, frozen=True, kw_only=True):
    """Something that holds or does not, and where that comes from."""

    value: bool
    source: str


class LinkTable(_Strict, frozen=True, kw_only=True):
    """A connection: all links of one device together; without `peer_bytes_per_s` one peer gets it all."""

    name: str
    bytes_per_s: Rate
    domain: Count | None = None
    links: Count | None = None
    peer_bytes_per_s: Rate | None = None
    reduces_in_switch: Fact | None = None


class Profile(_Strict, frozen=True, kw_only=True):
    """One accelerator with the source of every number; `hardware_of` strips it to the numbers."""

    name: str
    vendor: str
    aliases: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    open_questions: tuple[str, ...] = ()
    unified_memory: bool = False
    memory_bytes: Count
    visible_memory_bytes: Count | None = None
    hbm_bytes_per_s: Quantity
    peak_flops_per_s: Peaks
    scale_up: LinkTable | None = None
    scale_out: LinkTable | None = None
    host: LinkTable | None = None
    tdp_w: Quantity | None = None
    llc_bytes: Count | None = None
    cores: Count | None = None

    def quantities(self) -> Iterator[tuple[str, Quantity]]:
        """Yield every number of the profile with its dotted key, in the order of the file."""
        for key in self.__struct_fields__:
            held = getattr(self, key)
            if isinstance(held, Quantity):
                yield key, held
            elif isinstance(held, (Peaks, LinkTable)):
                inner = {name: getattr(held, name) for name in held.__struct_fields__}
                yield from ((f"{key}.{name}", q) for name, q in inner.items() if isinstance(q, Quantity))

    def links(self) -> list[tuple[str, LinkTable]]:
        """Return the connections the file holds, with their keys."""
        tables = (("scale_up", self.scale_up), ("scale_out", self.scale_out), ("host", self.host))
        return [(key, table) for key, table in tables if table is not None]

    def disagreements(self) -> tuple[str, ...]:
        """Return a line for every claim that contradicts a value, then the open questions."""
        disputed = [(key, held, claim) for key, held in self.quantities() for claim in held.disputed]
        return (*(_disagreement(*one) for one in disputed), *self.open_questions)

    def as_dict(self) -> dict[str, Any]:
        """Return the profile as plain dicts, lists, strings and numbers, absent keys left out."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


def _disagreement(key: str, held: Quantity, claim: Claim) -> str:
    note = f" ({claim.note})" if claim.note else ""
    return f"{key}: {shown(key, held.value)} here, {shown(key, claim.value)} in {claim.source}{note}"


def shown(key: str, value: float) -> str:
    """Return a value in the unit its key ends in."""
    ends = {"bytes_per_s": "B/s", "bytes": "B", "tdp_w": "W"}
    unit = next((unit for end, unit in ends.items() if key.endswith(end)), "")
    return format_decimal(value, "FLOP/s" if key.startswith("peak_flops_per_s") else unit)
