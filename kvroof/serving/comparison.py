"""Models side by side: footprint, and the decode bound on one machine."""

from __future__ import annotations

from collections.abc import Sequence

from kvroof.ground.record import record, static
from kvroof.memory.kv import kv
from kvroof.memory.ledger import check_utilization
from kvroof.roofline.plan import Plan
from kvroof.roofline.roofline import Bound, bound_of, serial_s
from kvroof.serving.room import room
from kvroof.spec.architecture import Architecture
from kvroof.spec.hardware import Hardware
from kvroof.spec.parallel import ALONE, Layout, check_layout
from kvroof.spec.params import params_active, params_total, parse_formats
from kvroof.spec.precision import parse_kv_format
from kvroof.spec.workload import decode


@record
class Comparison:
    """One model's row; times and `max_seqs` are None without a machine."""

    model: str = static()
    params_total: int
    params_active: int
    bytes_per_token: int
    payload_bytes: int
    tpot_s: float | None
    decode_bound: Bound | None = static()
    max_seqs: int | None
    fits: bool | None = static()
    assumptions: tuple[str, ...] = static()


def compare(
    models: Sequence[Architecture],
    hardware: Hardware | None = None,
    *,
    tokens: int = 8192,
    seqs: int = 1,
    kv_dtype: str = "auto",
    weights_dtype: str = "auto",
    layout: Layout = ALONE,
    utilization: float = 0.9,
    encoder_tokens: int = 0,
) -> tuple[Comparison, ...]:
    """Return a row per model: the cache of `seqs` sequences of `tokens`, and one decode step over it.

    Args:
        models: Architectures.
        hardware: The machine; None leaves the times out.
        tokens: Cached tokens per sequence.
        seqs: Sequences.
        kv_dtype: `auto`, a dtype or a pair.
        weights_dtype: `auto` or a dtype.
        layout: How each is laid over devices.
        utilization: Share of the memory that may be used, for `max_seqs`.
        encoder_tokens: Tokens of the encoder's output per sequence, for cross-attention.

    Raises:
        BadInput: A demand or layout that cannot be.
    """
    return tuple(
        _row(m, hardware, tokens, seqs, kv_dtype, weights_dtype, layout, utilization, encoder_tokens)
        for m in models
    )


def _row(
    model: Architecture,
    hardware: Hardware | None,
    tokens: int,
    seqs: int,
    kv_dtype: str,
    weights_dtype: str,
    layout: Layout,
    utilization: float,
    encoder_tokens: int,
) -> Comparison:
    check_layout(model, layout)
    parse_formats(weights_dtype, model)
    check_utilization(utilization)
    report = kv(
        model,
        tokens=tokens,
        seqs=seqs,
        encoder_tokens=encoder_tokens,
        kv_format=parse_kv_format(kv_dtype, model),
    )
    tpot, bound, most, fits = None, None, None, None
    if hardware is not None:
        plan = Plan.of(model, hardware, layout=layout, kv_dtype=kv_dtype, weights_dtype=weights_dtype)
        timed = plan.time(decode(seqs, tokens, encoder_tokens))
        tpot, bound = serial_s(timed), bound_of(timed)
        memory = room(plan, tokens, seqs=seqs, utilization=utilization, encoder_tokens=encoder_tokens)
        most, fits = memory.max_seqs, memory.fits
    return Comparison(
        model=model.name,
        params_total=params_total(model),
        params_active=params_active(model),
        bytes_per_token=report.bytes_per_token,
        payload_bytes=report.payload_bytes,
        tpot_s=tpot,
        decode_bound=bound,
        max_seqs=most,
        fits=fits,
        assumptions=report.assumptions,
    )
