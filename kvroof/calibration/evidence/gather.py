"""All classes of evidence, in the order of how exact they are."""

from __future__ import annotations

from kvroof.calibration.evidence.counted import caches_evidence, catalog_evidence, counts_evidence
from kvroof.calibration.evidence.evidence import Evidence
from kvroof.calibration.evidence.kernels import kernel_evidence
from kvroof.calibration.evidence.logs import engine_log_evidence
from kvroof.calibration.evidence.served import served_evidence
from kvroof.calibration.validate import Validation


def gather_evidence(served: Validation) -> tuple[Evidence, ...]:
    """Return counts, caches, logs, kernels and served points, each with its cases and errors.

    Args:
        served: What `validate` made of measured points.
    """
    return (
        catalog_evidence(),
        counts_evidence(),
        caches_evidence(),
        engine_log_evidence(),
        *kernel_evidence(),
        *served_evidence(served),
    )
