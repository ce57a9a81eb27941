"""What `calibrate` answers, as tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import RenderableType

from kvroof.calibration.calibrate import Calibrated
from kvroof.calibration.profile import Calibration, KernelTable
from kvroof.ground.units import format_bytes, format_decimal, format_time
from kvroof.view.tables import Table, notes, verdict

if TYPE_CHECKING:
    from kvroof.calibration.local.calibrate import LocalCalibrated

EXAMPLE = "llama-3.1-8b"
"""A model that the commands to try next name."""


def calibration_view(answer: Calibrated) -> Iterator[RenderableType]:
    """Yield the verdict, the fitted kernels with their errors, the collectives, and what to know."""
    profile = answer.efficiency
    error = "no point left to judge by" if answer.overall_mape is None else f"{answer.overall_mape:.1%}"
    yield verdict(
        True, f"{answer.device}: {answer.points:,} points fitted, held-out error {error} (median family)"
    )
    yield from _fitted(profile)
    lines = (
        "* not told by the points: a prior",
        f"source: {profile.source}",
        f"host: {profile.host.source}",
        *profile.notes,
        f"written to {answer.path}" if answer.path else "nothing written: give --out FILE.toml",
    )
    yield notes("Assumptions", lines)


def local_view(answer: LocalCalibrated) -> Iterator[RenderableType]:
    """Yield what was measured of this device: its rates, its kernels with their errors, the files to use."""
    profile = answer.efficiency
    error = "no point left to judge by" if answer.overall_mape is None else f"{answer.overall_mape:.1%}"
    yield verdict(
        True,
        f"{answer.device}: {answer.points:,} points fitted in {answer.seconds:.0f} s, "
        f"held-out error {error} (median family)",
    )
    yield Table("The device", ("", "value", ""), _device(answer), left=3)
    yield from _fitted(profile)
    lines = (
        "* not told by the points: a prior; errors are of points that were not fitted, over 20 us long",
        f"source: {profile.source}",
        f"host: {profile.host.source}",
        *profile.notes,
    )
    yield notes("Assumptions", lines)
    yield notes("What next", _next(answer))


def _device(answer: LocalCalibrated) -> list[tuple[str, str, str]]:
    machine, reached, host = answer.machine, answer.reached, answer.efficiency.host
    catalog = answer.profile is None
    said = "the catalog's; measured " if catalog else ""
    rows = [
        (
            "name",
            machine.name,
            "in the catalog" if catalog else "in no catalog: a profile of what was measured",
        ),
        ("memory", format_bytes(machine.capacity_bytes), _source(answer, "memory_bytes")),
        (
            "bandwidth",
            format_decimal(machine.hbm_bytes_per_s, "B/s"),
            f"{said}{format_decimal(reached.bytes_per_s, 'B/s')}" if catalog else reached.bytes_source,
        ),
    ]
    for dtype, value in machine.peak_flops_per_s.items():
        own = reached.flops_per_s.get(dtype)
        if catalog and own is None:
            continue
        here = f"{said}{format_decimal(own, 'FLOP/s')}" if catalog and own else reached.flops_sources[dtype]
        rows.append((f"{dtype} products", format_decimal(value, "FLOP/s"), here))
    rows.append(("host", f"{format_time(host.step_s)} a step", f"and {format_time(host.seq_s)} a sequence"))
    return rows


def _source(answer: LocalCalibrated, key: str) -> str:
    if answer.profile is None:
        return "the catalog's"
    source: str = getattr(answer.profile, key).source
    return source


def _next(answer: LocalCalibrated) -> Iterator[str]:
    """Yield where the files are and the commands that use them."""
    hardware = answer.hardware_path or answer.hardware
    if answer.hardware_path:
        yield f"the machine is in {answer.hardware_path}: kvroof show {_path(answer.hardware_path)}"
    if answer.path is None:
        yield "the calibration was not written: give --out mine.toml"
        return
    yield f"the calibration is in {answer.path}"
    yield (
        f"kvroof estimate {EXAMPLE} {_path(hardware)} --calibration {_path(answer.path)} --isl 128 --osl 32 "
        "--batch 1"
    )
    yield f"kvroof engine {EXAMPLE} --calibration {_path(answer.path)} --hardware {_path(hardware)}"


def _path(name: str) -> str:
    """Return a name as a shell takes it, a file of this folder as a path."""
    import shlex

    return shlex.quote(f"./{name}" if name.endswith(".toml") and "/" not in name else name)


def _fitted(profile: Calibration) -> Iterator[RenderableType]:
    """Yield the tables of kernels and of collectives."""
    yield Table(
        f"Kernels of {profile.name}",
        ("family", "kernel", "launch", "bandwidth", "compute", "error", "median", "judged by"),
        [
            (
                name,
                _kernel(held),
                format_time(held.t0_s),
                f"{held.hbm:.0%}",
                f"{held.compute:.0%}" + ("*" if "compute" in held.at_prior else ""),
                _share(held.held_out_mape),
                _share(held.held_out_median),
                f"{held.held_out:,}" if held.held_out else "",
            )
            for name, held in profile.kernels.items()
        ],
        left=2,
    )
    if profile.wires:
        yield Table(
            "Collectives",
            ("collective", "start", "link share", "error", "judged by"),
            [
                (
                    name,
                    format_time(wire.ring_s if wire.start_s is None else wire.start_s),
                    f"{wire.net:.0%}",
                    _share(wire.held_out_mape),
                    f"{wire.held_out:,}",
                )
                for name, wire in profile.wires.items()
            ],
        )


def _kernel(held: KernelTable) -> str:
    return f"{held.kernel} ({held.borrowed})" if held.borrowed else held.kernel or held.stated or ""


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"
