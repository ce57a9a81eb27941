"""Served points beside NVIDIA's aiconfigurator: rows of its own sample through both, both errors.

pip install '.[silicon]' aiconfigurator
pytest -o addopts= --benchmark-only tests/benchmarks/test_peers_served.py
"""

import os
import random
from statistics import fmean

import pytest

from kvroof.calibration.deployments import Deployments
from kvroof.calibration.served import read_points
from kvroof.calibration.validate import predict

ROWS = int(os.environ.get("KVROOF_ROWS", "12"))
"""Rows both answer; each takes their tool about ten seconds."""
LEEWAY = 1.2
"""How much worse than theirs ours may be on so few rows before something is broken."""


def theirs(row, answer):
    """Return their TPOT in seconds, None where the tool gives none."""
    names = {"batch_size", "tp_size", "pp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size"}
    sizes = {name: int(float(row[name])) for name in names if row[name]}
    for version in (row["backend_version"] or None, None):
        try:
            found = answer(
                model_path=row["model_path"],
                system_name=row["system"],
                mode="agg",
                backend_name=row["backend"],
                backend_version=version,
                isl=int(row["isl"]),
                osl=int(row["osl"]),
                gemm_quant_mode=row["gemm_quant_mode"] or None,
                moe_quant_mode=row["moe_quant_mode"] or None,
                **sizes,
            )
        except (ValueError, RuntimeError, KeyError, OSError):
            continue
        return found.tpot * 1e-3
    return None


def test_errors_beside_aiconfigurator(benchmark):
    api = pytest.importorskip("aiconfigurator.cli.api")
    import csv

    from kvroof.calibration.measured import installed_sample

    path = installed_sample()
    points = {p.name: p for p in read_points(path).points}
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["id"] in points]
    random.Random(0).shuffle(rows)
    asked = []
    for row in rows:
        said = theirs(row, api.cli_estimate)
        if said is not None:
            asked.append((points[row["id"]], said))
        if len(asked) == ROWS:
            break
    ours = benchmark.pedantic(lambda: [predict(p, Deployments()).tpot_s for p, _ in asked], rounds=1)
    errors = {
        "kvroof": fmean(abs(t / p.tpot_s - 1) for t, (p, _) in zip(ours, asked, strict=True)),
        "aiconfigurator": fmean(abs(t / p.tpot_s - 1) for p, t in asked),
    }
    benchmark.extra_info.update(errors, rows=len(asked))
    assert errors["kvroof"] < LEEWAY * errors["aiconfigurator"]
