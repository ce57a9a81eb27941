"""What `calibrate` answers, as tables."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType

from kvroof.calibration.calibrate import Calibrated
from kvroof.calibration.profile import KernelTable
from kvroof.ground.units import format_time
from kvroof.view.tables import notes, table, verdict


def calibration_view(answer: Calibrated) -> Iterator[RenderableType]:
    """Yield the verdict, the fitted kernels with their errors, the collectives, and what to know."""
    profile = answer.efficiency
    error = "no point left to judge by" if answer.overall_mape is None else f"{answer.overall_mape:.1%}"
    yield verdict(
        True, f"{answer.device}: {answer.points:,} points fitted, held-out error {error} (median family)"
    )
    yield table(
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
        yield table(
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
    lines = (
        "* not told by the points: a prior",
        f"source: {profile.source}",
        f"host: {profile.host.source}",
        *profile.notes,
        f"written to {answer.path}" if answer.path else "nothing written: give --out FILE.toml",
    )
    yield notes("Assumptions", lines)


def _kernel(held: KernelTable) -> str:
    return f"{held.kernel} ({held.borrowed})" if held.borrowed else held.kernel or held.stated or ""


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"
