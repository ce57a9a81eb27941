"""What `kv` and `fit` answer, as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType

from kvroof.ground.units import format_bytes, format_count
from kvroof.memory.engines.prediction import ExplainedLine
from kvroof.memory.kv import KVReport
from kvroof.memory.ledger import Ledger, WayOut
from kvroof.spec.hardware import Hardware
from kvroof.view.tables import Table, copied, notes, verdict
from kvroof.view.words import fit_words, several

CHANGES = {
    "seqs": "fewer sequences",
    "tokens": "shorter sequences",
    "kv_dtype": "KV cache in fewer bytes",
    "weights_dtype": "weights in fewer bytes",
    "num_kv_heads": "another model, with fewer KV heads",
    "tp": "more devices",
    "capacity_bytes": "more memory per device",
}


def kv_view(reports: Sequence[KVReport], explain: bool) -> Iterator[RenderableType]:
    """Yield the KV table of several models, and their layers by kind."""
    first = reports[0]
    yield Table(
        f"KV cache of {first.seqs:,} x {first.tokens:,} tokens ({first.allocator}, block {first.block_size})",
        ("model", "params", "KV dtype", "B/token", "payload", "allocated", "per rank"),
        [
            (
                r.model,
                format_count(r.params_total),
                r.kv_dtype,
                f"{r.bytes_per_token:,}",
                format_bytes(r.payload_bytes),
                format_bytes(r.allocated_bytes),
                format_bytes(r.bytes_per_rank),
            )
            for r in reports
        ],
    )
    yield Table(
        "Layers by kind",
        ("model", "kind", "layers", "window", "B/token while it grows", "state B/sequence"),
        [
            (
                r.model,
                k.kind,
                str(k.layers),
                f"{k.window:,}" if k.window else "-",
                f"{k.bytes_per_token:,}" if k.bytes_per_token else "-",
                f"{k.state_bytes:,}" if k.state_bytes else "-",
            )
            for r in reports
            for k in r.kinds
        ],
        left=2,
    )
    for r in reports:
        if explain:
            lines = [f"{k.kind}: {k.arithmetic}" for k in r.kinds]
            lines.append(f"payload {r.payload_bytes:,} B, allocated {r.allocated_bytes:,} B")
            lines.append(f"{r.num_blocks:,} blocks of {r.block_size} tokens, {r.empty_slots:,} slots empty")
            yield notes(f"{r.model}, step by step", lines)
        if r.engine is not None:
            yield notes(f"{r.model}: what {r.engine.name} logs", r.engine.lines)
        yield notes(f"{r.model}, assumptions", r.assumptions)


def log_view(lines: Sequence[ExplainedLine]) -> Iterator[RenderableType]:
    """Yield the log beside the prediction, line by line."""
    yield Table(
        "The log, line by line",
        ("line", "unit", "reason", "predicted", "logged", "difference"),
        [
            (
                line.line,
                line.unit,
                line.reason,
                "-" if line.predicted is None else f"{line.predicted:,.10g}",
                f"{line.logged:,.10g}",
                "-" if line.difference_pct is None else f"{line.difference_pct:+.2f} %",
            )
            for line in lines
        ],
        left=3,
    )


def fit_view(
    ledger: Ledger, machine: Hardware | None, explain: bool, command: str | None = None
) -> Iterator[RenderableType]:
    """Yield the verdict, the ledger, how far it goes, and the ways out."""
    asked = f"{ledger.seqs:,} x {ledger.tokens:,} tokens of {ledger.model}"
    place = several(ledger.devices, machine.name) if machine else ""
    yield verdict(ledger.fits, fit_words(ledger, asked, place))
    yield ledger_table(ledger, machine)
    yield Table(
        "How far it goes",
        ("", "at most"),
        [
            (
                f"longest context of {ledger.seqs:,} sequence{'s' * (ledger.seqs != 1)}",
                f"{ledger.max_tokens:,} tokens",
            ),
            (f"sequences of {ledger.tokens:,} tokens", f"{ledger.max_seqs:,}"),
            ("KV cache in all", f"{ledger.kv_capacity_tokens:,} tokens"),
        ],
    )
    if ledger.engine is not None:
        yield notes(f"Flags for {ledger.engine}, {ledger.admitted_seqs:,} requests admitted", ledger.flags)
    if command is not None:
        yield from copied("In one line", [command])
    if ledger.ways_out:
        yield Table(
            "Ways out, each by itself",
            ("change", "from", "to", "option"),
            [(CHANGES[w.change], _value(w, w.from_), _value(w, w.to), w.option) for w in ledger.ways_out],
        )
    if explain:
        yield notes(
            "Step by step",
            [
                f"budget = capacity x utilization = {ledger.budget_bytes:,} of {ledger.capacity_bytes:,} B",
                f"total = weights {ledger.weights_bytes:,} + KV {ledger.kv_bytes:,}"
                f" + reserve {ledger.reserve_bytes:,} = {ledger.total_bytes:,} B",
                f"headroom = budget - total = {ledger.headroom_bytes:,} B",
            ],
        )
    yield notes("Assumptions", ledger.assumptions)


def ledger_table(ledger: Ledger, machine: Hardware | None = None) -> Table:
    """Return the ledger of one device line by line."""
    source = "given"
    if machine is not None:
        source = "nominal" if machine.visible_memory_bytes is None else "visible to software"
    lines = [
        (f"capacity ({source})", ledger.capacity_bytes),
        ("budget", ledger.budget_bytes),
        ("- weights", ledger.weights_bytes),
        (f"- KV cache of {ledger.seqs:,} x {ledger.tokens:,} tokens", ledger.kv_bytes),
        *((f"- {term.name}", term.term_bytes) for term in ledger.terms),
        *(() if ledger.terms else (("- reserve", ledger.reserve_bytes),)),
        ("= headroom", ledger.headroom_bytes),
        *((("in host memory", ledger.host_bytes),) if ledger.host_bytes else ()),
    ]
    return Table(
        f"Memory of one {'device' if machine is None else machine.name}",
        ("", "size", "bytes"),
        [(name, format_bytes(size), f"{size:,}") for name, size in lines],
    )


def _value(way: WayOut, value: object) -> str:
    if way.change == "capacity_bytes" and isinstance(value, int):
        return format_bytes(value)
    return f"{value:,}" if isinstance(value, int) else str(value)
