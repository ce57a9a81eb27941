"""What `list`, `show` and `doctor` answer, as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType

from kvroof.catalog.models import CatalogEntry
from kvroof.catalog.profile import Profile, shown
from kvroof.ground.units import format_bytes, format_count, format_decimal
from kvroof.memory.describe import ModelCard
from kvroof.spec.hardware import Hardware
from kvroof.view.tables import notes, table


def models_view(entries: Sequence[CatalogEntry]) -> Iterator[RenderableType]:
    """Yield the catalog of models."""
    rows = [(e.name, e.hub_id, format_count(e.params_total), e.checked_against) for e in entries]
    yield table(f"{len(rows)} models", ("name", "hub id", "params", "count checked against"), rows, left=2)


def machines_view(machines: Sequence[Hardware]) -> Iterator[RenderableType]:
    """Yield the catalog of machines."""
    rows = [
        (
            m.name,
            m.vendor,
            format_bytes(m.capacity_bytes),
            format_decimal(m.hbm_bytes_per_s, "B/s"),
            _peak(m, "bf16") if "bf16" in m.peak_flops_per_s else _peak(m, "fp16"),
            _peak(m, "fp8"),
            format_decimal(m.scale_up.bytes_per_s, "B/s") if m.scale_up else "-",
            str(len(m.disagreements) or "-"),
        )
        for m in machines
    ]
    yield table(
        f"{len(rows)} accelerators (dense peaks, one-way links)",
        ("name", "vendor", "memory", "bandwidth", "bf16 or fp16", "fp8", "link", "open disagreements"),
        rows,
        left=2,
    )


def model_view(card: ModelCard, source: Mapping[str, str]) -> Iterator[RenderableType]:
    """Yield one model: parameters, layers, cache, source."""
    facts = [
        ("parameters", f"{format_count(card.params_total)} ({card.params_total:,})"),
        (
            "active per token",
            f"{format_count(card.params_active)} ({card.params_active:,}), input embedding included",
        ),
        ("input embedding", f"{format_count(card.params_embedding)} ({card.params_embedding:,})"),
        *((f"tower: {t.name}", f"{format_count(t.params)} ({t.params:,})") for t in card.towers),
        ("weights", f"{format_bytes(card.weights_bytes)} in {card.weights_format}"),
        ("hidden, vocabulary", f"{card.hidden_size:,}, {card.vocab_size:,}"),
        ("max positions", f"{card.max_position_embeddings:,}" if card.max_position_embeddings else "-"),
    ]
    yield table(f"{card.name} ({card.model_type})", ("", ""), facts, left=2)
    yield table(
        "Layers",
        ("layers", "attention", "feed-forward", "parameters each"),
        [(str(c.layers), c.attention, c.feed_forward, f"{c.params_per_layer:,}") for c in card.layers],
        left=3,
    )
    yield notes(f"KV cache in {card.kv_dtype}", [f"{k.kind}: {k.arithmetic}" for k in card.kinds])
    if source or card.notes:
        yield notes("Sources", [f"{key}: {value}" for key, value in source.items()] + list(card.notes))


def machine_view(machine: Hardware, profile: Profile) -> Iterator[RenderableType]:
    """Yield one machine: every value with its source, and what sources disagree on."""
    yield table(
        f"{machine.name} ({machine.vendor})",
        ("", "value", "source"),
        [(key, shown(key, held.value), held.source) for key, held in profile.quantities()],
        left=3,
    )
    if machine.disagreements:
        yield notes("Open disagreements", machine.disagreements)


def doctor_view(found: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Yield versions, devices and what is missing."""
    rows = [("kvroof", found["kvroof"]), ("python", found["python"])]
    rows += [(name, version or "missing") for name, version in found["packages"].items()]
    rows += [("devices", ", ".join(found["devices"]) or "none")]
    rows += [("models, machines", f"{found['models']}, {found['hardware']}")]
    rows += [("calibrations", ", ".join(found["calibrations"]) or "none: times are bounds")]
    yield table("kvroof doctor", ("", "found"), rows, left=2)
    if found["missing"]:
        yield notes("Missing", [f"{name}: {how}" for name, how in found["missing"].items()])


def _peak(machine: Hardware, dtype: str) -> str:
    peak = machine.peak_flops_per_s.get(dtype)
    return format_decimal(peak, "FLOP/s") if peak else "-"
