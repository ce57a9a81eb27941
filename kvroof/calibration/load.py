"""Which calibration a machine is priced with: a profile's own, the machine's, or its nearest relative's."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from statistics import median

from kvroof.calibration.profile import (
    Calibration,
    KernelTable,
    Served,
    WireTable,
    calibration_names,
    read_profile,
)
from kvroof.ground.errors import UnknownName
from kvroof.roofline.efficiency import GENERIC, IDENTITY, Efficiency, Kernel, Wire

PREFERRED = ("vllm", "sglang", "tensorrt-llm")
"""Frameworks in the order `auto` takes them."""
TRANSFER_SIGMA = 0.12
"""Log error that a fit gains on another chip of its generation: H100 to H200, B200 to GB200."""
SERVED = "served"
"""Key of an efficiency's `sigma` for what stands between kernels and served tokens."""
RELATIVES = {
    "a100-sxm-40gb": "a100-sxm-80gb",
    "a100-pcie-40gb": "a100-sxm-80gb",
    "a100-pcie-80gb": "a100-sxm-80gb",
    "a10g": "a100-sxm-80gb",
    "a40": "a100-sxm-80gb",
    "rtx-3090": "a100-sxm-80gb",
    "h100-pcie": "h100-sxm",
    "h100-nvl": "h100-sxm",
    "gh200-96gb": "h100-sxm",
    "h20": "h100-sxm",
    "h200-nvl": "h200-sxm",
    "gh200-144gb": "h200-sxm",
    "l4": "l40s",
    "rtx-6000-ada": "l40s",
    "rtx-4090": "l40s",
    "rtx-pro-6000-blackwell-ws": "rtx-pro-6000-blackwell-server",
    "rtx-5090": "rtx-pro-6000-blackwell-server",
    "gb10-dgx-spark": "rtx-pro-6000-blackwell-server",
}
"""The measured chip of the same generation, or the nearest one, for chips without tables."""


def load_calibration(
    name_or_path: str, hardware_name: str, framework: str | None = None
) -> Efficiency | None:
    """Return the efficiency that `--calibration` asks for on a machine, None for bounds.

    Args:
        name_or_path: `auto`, `none`, a shipped name such as `h200-sxm-vllm`, or a `.toml` file.
        hardware_name: The machine's catalog name.
        framework: Whose profile `auto` takes first: vllm, sglang or tensorrt-llm.

    `auto` takes the machine's own profile, vLLM's first, else that of its nearest measured relative with a
    wider error, else none.

    Raises:
        UnknownName: No profile of that name.
        BadInput: A file that cannot be used.
    """
    found = find_profile(name_or_path, hardware_name, framework)
    if found is None:
        return None
    return efficiency_of(found, None if found.hardware in ("", hardware_name) else hardware_name)


def efficiencies(
    name_or_path: str, machines: Iterable[str], framework: str | None = None
) -> dict[str, Efficiency]:
    """Return what each of the machines is priced with, by its name; the identity gives bounds.

    Where one of them has a profile and another none, that one takes a typical machine's: a bound beside a
    prediction would always win. See `load_calibration` for the arguments.

    Raises:
        UnknownName: No profile of that name.
        BadInput: A file that cannot be used.
    """
    found = {machine: load_calibration(name_or_path, machine, framework) for machine in machines}
    typical = load_calibration(GENERIC, "") if any(found.values()) and not all(found.values()) else None
    return {machine: own or typical or IDENTITY for machine, own in found.items()}


def find_profile(name_or_path: str, hardware_name: str, framework: str | None = None) -> Calibration | None:
    """Return the profile that `--calibration` asks for on a machine, None for bounds; see `load_calibration`.

    Raises:
        UnknownName: No profile of that name.
        BadInput: A file that cannot be used.
    """
    if name_or_path == "none":
        return None
    if name_or_path != "auto":
        return read_profile(name_or_path)
    wanted = tuple(dict.fromkeys((framework, *PREFERRED))) if framework else PREFERRED
    shipped = calibration_names()
    for machine in (hardware_name, RELATIVES.get(hardware_name)):
        for engine in wanted:
            if machine is not None and f"{machine}-{engine}" in shipped:
                return read_profile(f"{machine}-{engine}")
    return None


def efficiency_of(profile: Calibration, used_on: str | None = None) -> Efficiency:
    """Return a profile as the record that operations are priced with.

    `used_on` names another machine it is transferred to: said in the name and notes, errors widened.
    """
    widen = TRANSFER_SIGMA if used_on else 0.0
    tables: dict[str, KernelTable | WireTable] = {**profile.kernels, **profile.wires}
    sigma = {name: math.hypot(table.sigma, widen) for name, table in tables.items()}
    mape = {n: math.hypot(t.held_out_mape, widen) for n, t in tables.items() if t.held_out_mape is not None}
    known = [mape[name] for name in profile.kernels if name in mape]
    notes = profile.notes
    if used_on:
        notes = (f"measured on {profile.hardware}, transferred to {used_on}: errors are wider", *notes)
    found = Efficiency(
        name=f"{profile.name} (transferred to {used_on})" if used_on else profile.name,
        held_out_mape=median(known) if known else None,
        kernels={name: kernel_of(table) for name, table in profile.kernels.items()},
        wires={name: wire_of(table) for name, table in profile.wires.items()},
        mape=mape,
        sigma=sigma,
        host_step_s=profile.host.step_s,
        host_seq_s=profile.host.seq_s,
        sources=(profile.source, profile.host.source),
        notes=notes,
    )
    return found if profile.served is None else moved(found, profile.served)


def moved(efficiency: Efficiency, served: Served) -> Efficiency:
    """Return an efficiency with the factors of a deployment's own points applied."""
    launch, group = served.launch * served.group, served.group
    kernels = {
        name: replace(
            kernel,
            t0_s=kernel.t0_s * launch,
            hbm=kernel.hbm / group,
            compute=kernel.compute / group,
            item_s=kernel.item_s * group,
            depth_s=kernel.depth_s * group,
            score_s=kernel.score_s * group,
        )
        for name, kernel in efficiency.kernels.items()
    }
    wire = served.wire * served.group
    return replace(
        efficiency,
        launch_s=efficiency.launch_s * launch,
        compute=efficiency.compute / group,
        hbm=efficiency.hbm / group,
        net=efficiency.net / wire,
        kernels=kernels,
        wires={name: _slower(one, wire) for name, one in efficiency.wires.items()},
        host_step_s=efficiency.host_step_s * served.host_step * group,
        host_seq_s=efficiency.host_seq_s * served.host_seq * group,
        sigma=efficiency.sigma | ({} if served.sigma is None else {SERVED: served.sigma}),
        notes=(f"moved by {served.source}", *efficiency.notes),
    )


def _slower(wire: Wire, factor: float) -> Wire:
    return replace(
        wire,
        ring_s=wire.ring_s * factor,
        start_s=None if wire.start_s is None else wire.start_s * factor,
        net=wire.net / factor,
    )


def kernel_of(table: KernelTable) -> Kernel:
    """Return a table's kernel."""
    return Kernel(
        t0_s=table.t0_s,
        hbm=table.hbm,
        compute=table.compute,
        sharpness=table.sharpness,
        item_s=table.item_s,
        depth_s=table.depth_s,
        depth_power=table.depth_power,
        score_s=table.score_s,
        llc_bytes=table.llc_bytes,
        llc_gain=table.llc_gain,
    )


def wire_of(table: WireTable) -> Wire:
    """Return a table's wire."""
    return Wire(
        ring_s=table.ring_s,
        per_rank=table.per_rank,
        net=table.net,
        crowding=table.crowding,
        start_s=table.start_s,
    )


def known_calibration(text: str) -> str:
    """Return `text` if it may name a calibration: auto, none, a shipped name, or a `.toml` path.

    Raises:
        UnknownName: None of them.
    """
    if text in ("auto", "none") or text.endswith(".toml") or text.lower() in calibration_names():
        return text
    read_profile(text)
    raise UnknownName("is not a calibration", where=text[:80], way_out="use auto, none or a .toml file")
