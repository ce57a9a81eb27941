"""Plans that differ in numbers only, as one plan whose numbers are arrays: a machine per row.

What a step costs does not depend on who executes it, so that one pass through the model prices it for all
machines of a structure: the same layout and dtypes, the same arithmetic and links, the same kernels fitted.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Sequence
from typing import Any

from kvroof.cost.products import FALLBACKS
from kvroof.roofline.plan import Plan
from kvroof.spec.hardware import Hardware, Link

WORDS = {"name", "sources", "notes", "mape", "sigma", "held_out_mape"}
"""Fields that no step time depends on."""


def structure(plan: Plan) -> Hashable:
    """Return what plans have to have in common to be stacked."""
    calibrated = plan.efficiency.name is not None
    stored = (plan.kv_format.name, plan.formats and plan.formats.name)
    machine = _needed(plan)
    links = tuple(_reach(link, plan.layout.devices) for link in _links(machine))
    peaks = tuple(sorted(machine.peak_flops_per_s))
    return id(plan.model), plan.layout, stored, calibrated, peaks, links, _shape(plan.efficiency)


def _links(machine: Hardware) -> tuple[Link | None, ...]:
    return machine.scale_up, machine.scale_out, machine.host


def _needed(plan: Plan) -> Hardware:
    """Return the machine with the arithmetic and the links that the plan uses, and no others."""
    machine, devices = plan.hardware, plan.layout.devices
    formats = [plan.formats or plan.model.formats, *(g.layer.formats for g in plan.model.layers)]
    stored = {
        one.dtype.compute
        for own in formats
        if own is not None
        for one in (own.default, *(e.format for e in own.exceptions))
    }
    rest = (plan.model.dtype, *FALLBACKS)
    asked = [(plan.compute_dtype,)] if plan.compute_dtype else [(own, *rest) for own in {None, *stored}]
    used = {next((name for name in names if name in machine.peak_flops_per_s), None) for names in asked}
    up = machine.scale_up
    within = devices == 1 or (up is not None and (up.domain is None or up.domain >= devices))
    return dataclasses.replace(
        machine,
        peak_flops_per_s={n: peak for n, peak in machine.peak_flops_per_s.items() if n in used},
        scale_up=None if devices == 1 else up,
        scale_out=None if within else machine.scale_out,
        host=None if within else machine.host,
    )


def _reach(link: Link | None, devices: int) -> Hashable:
    """Return how far a link reaches among some devices, and what its switch can do."""
    return None if link is None else (min(link.domain or math.inf, devices), link.reduces_in_switch)


def _shape(value: Any) -> Hashable:
    """Return a record's structure: its fixed choices, its keys, and which numbers are absent or zero."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return tuple(
            getattr(value, f.name) if f.metadata.get("static") else _shape(getattr(value, f.name))
            for f in dataclasses.fields(value)
            if f.name not in WORDS
        )
    if isinstance(value, dict):
        return tuple((key, _shape(item)) for key, item in sorted(value.items()))
    return None if value is None else value == 0


def stacked(plans: Sequence[Plan], rows: Sequence[int]) -> Plan:
    """Return plans of one structure as one, its numbers of shape (all rows, 1).

    Args:
        plans: The plans.
        rows: How many rows each takes.
    """
    if len(plans) == 1:
        return plans[0]
    machines = [_needed(plan) for plan in plans]
    first = machines[0]
    links = {
        name: _stack([getattr(machine, name) for machine in machines], rows)
        for name in ("scale_up", "scale_out", "host")
    }
    machine = dataclasses.replace(
        first,
        hbm_bytes_per_s=_stack([m.hbm_bytes_per_s for m in machines], rows),
        peak_flops_per_s=_stack([m.peak_flops_per_s for m in machines], rows),
        **links,
    )
    return dataclasses.replace(
        plans[0], hardware=machine, efficiency=_stack([plan.efficiency for plan in plans], rows)
    )


def _stack(values: Sequence[Any], rows: Sequence[int]) -> Any:
    """Return equal-structured values as one, where they differ as an array."""
    import numpy as np

    first = values[0]
    if dataclasses.is_dataclass(first) and not isinstance(first, type):
        changed = {
            f.name: _stack([getattr(value, f.name) for value in values], rows)
            for f in dataclasses.fields(first)
            if f.name not in WORDS and not f.metadata.get("static")
        }
        return dataclasses.replace(first, **changed)
    if isinstance(first, dict):
        return {key: _stack([value[key] for value in values], rows) for key in first}
    if first is None or all(value == first for value in values):
        return first
    return np.repeat(np.array(values, float), rows)[:, None]
