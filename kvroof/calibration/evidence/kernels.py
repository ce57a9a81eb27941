"""Fitted kernels against the measured points that they were not fitted to, as each profile carries it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvroof.calibration.evidence.evidence import Case, Evidence
from kvroof.calibration.profile import Calibration, calibration_names, read_profile

FAMILIES = {
    "attention.decode": "kernels, decode attention",
    "attention.prefill": "kernels, prefill attention",
    "mla.": "kernels, latent attention",
    "gemm.": "kernels, matrix products",
    "moe.": "kernels, experts",
}
"""Kernel families by the start of their name, and what a page calls them."""
COLLECTIVES = "collectives"
SOURCE = "aiconfigurator-core 0.12, NVIDIA"


def kernel_evidence() -> tuple[Evidence, ...]:
    """Return, for each family of kernels, how far every shipped fit is off the points that it never saw.

    A case is one machine under one framework in one dtype. Its error is the median over those points, of
    collectives the mean.
    """
    profiles = [read_profile(name) for name in calibration_names()]
    found = [
        _evidence(title, [case for p in profiles for case in _kernels(p, family)])
        for family, title in FAMILIES.items()
    ]
    found.append(_evidence(COLLECTIVES, [case for p in profiles for case in _wires(p)]))
    return tuple(evidence for evidence in found if evidence.cases)


def _kernels(profile: Calibration, family: str) -> Iterator[tuple[Case, int]]:
    for name, table in profile.kernels.items():
        if name.startswith(family) and table.held_out and table.held_out_median is not None:
            spread = f"mean {table.held_out_mape:.1%}, bias {table.bias:+.1%}"
            yield _case(f"{profile.name}, {name}", table.held_out, spread, table.held_out_median)


def _wires(profile: Calibration) -> Iterator[tuple[Case, int]]:
    for name, table in profile.wires.items():
        if table.held_out and table.held_out_mape is not None:
            yield _case(f"{profile.name}, {name}", table.held_out, "", table.held_out_mape)


def _case(name: str, points: int, spread: str, error: float) -> tuple[Case, int]:
    return Case(name=name, known=f"{points:,} points", predicted=spread, error=error), points


def _evidence(kind: str, cases: Sequence[tuple[Case, int]]) -> Evidence:
    points = sum(count for _, count in cases)
    return Evidence(
        kind=kind,
        against=f"{points:,} measured points that no fit saw ({SOURCE})",
        cases=tuple(case for case, _ in cases),
        notes=(
            "a case is one machine, framework and dtype, its error the median over its points (the mean for"
            " collectives), over the range of shapes that the profile's notes state",
        ),
    )
