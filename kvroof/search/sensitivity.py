"""Elasticities: by how many percent a time changes when one number changes by a percent.

`d log(time) / d log(number)`, by `jax.grad` through the whole step model. Rates and fixed times make up all
of a time, so that

    overhead + work items - HBM bandwidth - compute - link = 1

and without a calibration the three rates alone sum to -1. At the ridge between two resources a bound has a
kink, and the slope of one side is given.
"""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

from kvroof.ground.dtypes import Dtype
from kvroof.ground.errors import BadInput
from kvroof.ground.record import record
from kvroof.roofline.efficiency import Efficiency
from kvroof.roofline.plan import Plan
from kvroof.roofline.roofline import serial_s
from kvroof.search.points import Steps
from kvroof.search.prices import scaled
from kvroof.search.sweep import double_precision
from kvroof.spec.architecture import Layer
from kvroof.spec.attention import GroupedAttention
from kvroof.spec.reach import Chunked, Sliding
from kvroof.spec.workload import decode, prefill

MOST_STEPS = 64
"""Decode steps whose mean is taken; longer outputs are sampled evenly, ends included."""
RATES = ("hbm_bandwidth", "compute", "link")
FIXED = ("overhead", "work_items")
SHAPES = ("kv_heads", "window", "kv_bytes_per_element", "weight_bytes_per_element", "batch", "context")
NAMES = (*RATES, *FIXED, *SHAPES)


@record
class TracedLayer(Layer):
    """A layer whose numbers are being differentiated, and so cannot be compared: it equals itself alone."""

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


@record
class Sensitivity:
    """Elasticities of TTFT and TPOT by what changes; what a model has not is 0."""

    ttft: dict[str, float]
    tpot: dict[str, float]


def sensitivity(
    plan: Plan,
    *,
    isl: int,
    osl: int,
    batch: int,
    cached_prefix: int = 0,
    encoder_tokens: int = 0,
    patches: int = 0,
) -> Sensitivity:
    """Return the elasticities of `batch` requests that start together.

    Args:
        plan: The deployment.
        isl: Prompt tokens.
        osl: Output tokens.
        batch: Requests at once.
        cached_prefix: Prompt tokens whose KV is in cache.
        encoder_tokens: Tokens of the encoder's output per request.
        patches: Patches of images in each prompt that the towers encode; a longer context has no more.

    Raises:
        BadInput: Lengths that cannot be.
        Unsupported: A peak or a link that is not known.
    """
    import jax
    import jax.numpy as jnp
    import numpy as np

    if min(isl, osl, batch) < 1 or not 0 <= cached_prefix < isl:
        raise BadInput("lengths and batch are positive, and part of a prompt is run", where="sensitivity")
    last = max(isl + osl - 1, isl + 1)
    lengths = np.linspace(isl + 1, last, min(last - isl, MOST_STEPS))

    def log_ttft(logs: Any) -> Any:
        factors = dict(zip(NAMES, jnp.exp(logs), strict=True))
        context = factors["context"]
        step = prefill(batch * factors["batch"], isl * context, cached_prefix * context, encoder_tokens)
        other = changed(plan, factors)
        towers = serial_s(other.encode(batch * factors["batch"] * patches)) if patches else 0.0
        return jnp.log(Steps(plan=other).seconds(step) + towers)

    def log_tpot(logs: Any) -> Any:
        factors = dict(zip(NAMES, jnp.exp(logs), strict=True))
        step = decode(batch * factors["batch"], lengths * factors["context"], encoder_tokens)
        return jnp.log(jnp.mean(Steps(plan=changed(plan, factors)).seconds(step)))

    with double_precision():
        origin = jnp.zeros(len(NAMES))
        slopes = [np.asarray(jax.grad(log)(origin)) for log in (log_ttft, log_tpot)]
    first, later = (dict(zip(NAMES, (float(s) for s in each), strict=True)) for each in slopes)
    return Sensitivity(ttft=first, tpot=later)


def changed(plan: Plan, factors: dict[str, Any]) -> Plan:
    """Return a plan whose numbers are multiplied by `factors`, by the names of `NAMES`."""
    model = plan.model
    for kind, name, factor in (
        (GroupedAttention, "num_kv_heads", factors["kv_heads"]),
        (Sliding, "size", factors["window"]),
        (Chunked, "size", factors["window"]),
    ):
        model = replace(model, layers=_multiplied(model.layers, kind, name, factor))
    stored, cached = factors["weight_bytes_per_element"], factors["kv_bytes_per_element"]
    model = replace(model, formats=_multiplied(model.formats, Dtype, "block_bytes", stored))
    layers = tuple(
        replace(
            group,
            layer=TracedLayer(
                mixers=group.layer.mixers,
                ffns=group.layer.ffns,
                norms=group.layer.norms,
                parallel=group.layer.parallel,
                formats=_multiplied(group.layer.formats, Dtype, "block_bytes", stored),
                on_host=group.layer.on_host,
            ),
        )
        for group in model.layers
    )
    rates = {name: factors[name] for name in RATES}
    host = plan.host.bytes_per_s
    return replace(
        plan,
        model=replace(model, layers=layers),
        hardware=scaled(plan.hardware, **rates),
        formats=_multiplied(plan.formats, Dtype, "block_bytes", stored),
        kv_format=_multiplied(plan.kv_format, Dtype, "block_bytes", cached),
        host=replace(plan.host, bytes_per_s=None if host is None else host * factors["link"]),
        efficiency=_slower(plan.efficiency, factors["overhead"], factors["work_items"]),
    )


def _multiplied(value: Any, kind: type, name: str, factor: Any) -> Any:
    """Return a record with one field of every record of a kind inside it multiplied."""
    if isinstance(value, tuple):
        return tuple(_multiplied(item, kind, name, factor) for item in value)
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    if isinstance(value, kind):
        return replace(value, **{name: getattr(value, name) * factor})
    fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    inner = {key: _multiplied(item, kind, name, factor) for key, item in fields.items()}
    return replace(value, **{key: item for key, item in inner.items() if item is not fields[key]})


def _slower(efficiency: Efficiency, overhead: Any, items: Any) -> Efficiency:
    """Return an efficiency whose fixed times are multiplied; what takes none still takes none."""

    def times(seconds: Any, factor: Any) -> Any:
        return seconds * factor if seconds else seconds

    kernels = {
        name: replace(
            kernel,
            t0_s=times(kernel.t0_s, overhead),
            item_s=times(kernel.item_s, items),
            depth_s=times(kernel.depth_s, items),
            score_s=times(kernel.score_s, items),
        )
        for name, kernel in efficiency.kernels.items()
    }
    wires = {
        name: replace(wire, ring_s=times(wire.ring_s, overhead), start_s=times(wire.start_s, overhead))
        for name, wire in efficiency.wires.items()
    }
    return replace(
        efficiency,
        launch_s=times(efficiency.launch_s, overhead),
        host_step_s=times(efficiency.host_step_s, overhead),
        host_seq_s=times(efficiency.host_seq_s, overhead),
        kernels=kernels,
        wires=wires,
    )
