"""What `list`, `show` and `doctor` answer, as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType

from kvroof.catalog.models import CatalogEntry
from kvroof.catalog.profile import Profile, shown
from kvroof.ground.units import GIB, format_bytes, format_count
from kvroof.memory.describe import ModelCard
from kvroof.spec.hardware import Hardware
from kvroof.view.tables import Table, notes


def models_view(entries: Sequence[CatalogEntry]) -> Iterator[RenderableType]:
    """Yield the catalog of models."""
    against = {said: chr(ord("a") + n) for n, said in enumerate(sorted({e.checked_against for e in entries}))}
    rows = [(e.name, e.hub_id, against[e.checked_against], format_count(e.params_total)) for e in entries]
    yield Table(f"{len(rows)} models", ("name", "hub id", "checked", "params"), rows, left=3)
    yield notes("What the counts are checked against", [f"{mark}: {said}" for said, mark in against.items()])


def machines_view(machines: Sequence[Hardware]) -> Iterator[RenderableType]:
    """Yield the catalog of machines."""
    rows = [
        (
            m.name,
            m.vendor,
            f"{m.capacity_bytes / GIB:.2f}",
            f"{m.hbm_bytes_per_s / 1e12:.4g}",
            _peak(m, "bf16") if "bf16" in m.peak_flops_per_s else _peak(m, "fp16"),
            _peak(m, "fp8"),
            f"{m.scale_up.bytes_per_s / 1e9:,.4g}" if m.scale_up else "-",
        )
        for m in machines
    ]
    yield Table(
        f"{len(rows)} accelerators: dense peaks, in fp16 where there is no bf16; links one way",
        ("name", "vendor", "GiB", "HBM\nTB/s", "bf16\nTFLOP/s", "fp8\nTFLOP/s", "link\nGB/s"),
        rows,
        left=2,
    )
    disputed = [m.name for m in machines if m.disagreements]
    if disputed:
        yield notes("Sources disagree about (kvroof show NAME)", [", ".join(disputed)])


def model_view(card: ModelCard, source: Mapping[str, str]) -> Iterator[RenderableType]:
    """Yield one model: parameters, layers, cache, source."""
    yield from model_tables(card)
    if source or card.notes:
        yield notes("Sources", [f"{key}: {value}" for key, value in source.items()] + list(card.notes))


def model_tables(card: ModelCard) -> list[Table]:
    """Return a model's parameters, its layers, and how its cache is counted."""
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
        ("KV cache", f"{card.bytes_per_token:,} B per token in {card.kv_dtype}"),
        (
            "max positions",
            f"{card.max_position_embeddings:,}" if card.max_position_embeddings else "not stated",
        ),
    ]
    layers = [(str(c.layers), c.attention, c.feed_forward, f"{c.params_per_layer:,}") for c in card.layers]
    kinds = [(k.kind, k.arithmetic) for k in card.kinds]
    return [
        Table(f"{card.name} ({card.model_type})", ("", ""), facts, left=2),
        Table("Layers", ("layers", "attention", "feed-forward", "parameters each"), layers, left=3),
        Table(f"How the cache is counted, in {card.kv_dtype}", ("kind", "arithmetic"), kinds, left=2),
    ]


def families_view(types: Mapping[str, str]) -> Iterator[RenderableType]:
    """Yield the model types that are read, a row for each."""
    yield Table(f"{len(types)} model types", ("model_type", "what it is"), list(types.items()), left=2)


def machine_view(machine: Hardware, profile: Profile) -> Iterator[RenderableType]:
    """Yield one machine: every value with its source, and what sources disagree on."""
    yield Table(
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
    yield Table("kvroof doctor", ("", "found"), rows, left=2)
    if found["missing"]:
        yield notes("Missing", [f"{name}: {how}" for name, how in found["missing"].items()])


def _peak(machine: Hardware, dtype: str) -> str:
    peak = machine.peak_flops_per_s.get(dtype)
    return f"{peak / 1e12:.4g}" if peak else "-"
