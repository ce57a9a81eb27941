import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kvroof.ground.errors import BadInput
from kvroof.search.evaluated import COLUMNS, csv_text, evaluated, parquet_bytes
from kvroof.search.relaxed_search import Search
from kvroof.search.sweep import StepSweep
from kvroof.spec.workload import decode, prefill

ROOT = Path(__file__).parents[2]
ULPS = 4
BATCHES, LENGTHS = [1, 3, 17, 64, 300], [10, 500, 4096, 70_000]

SWEEP = """
import json, sys
import jax, numpy as np
from kvroof.roofline.plan import Plan
from kvroof.search.sweep import StepSweep
sweep = StepSweep(Plan.of("llama-3.1-8b", "h100-sxm", tp=2), most_points=1600)
rng = np.random.default_rng(0)
found = sweep.points(np.exp(rng.uniform(0, 7, 5001)), np.exp(rng.uniform(0, 11, 5001)))
print(json.dumps([jax.device_count(), found["seconds"].tolist(), int(found["tokens_per_s"].argmax())]))
"""


@pytest.fixture(scope="module")
def plan(choose):
    return choose("llama-3.1-8b", "h100-sxm", calibrated=False, tp=2, pp=1)[0]


@pytest.fixture(scope="module")
def sweep(plan):
    return StepSweep(plan, most_points=8)


def test_a_grid_is_the_plans_own_steps_in_order(plan, sweep):
    found = sweep.grid(BATCHES, LENGTHS)
    assert list(found) == ["batch", "kv_len", "seconds", "tokens_per_s"]
    rows = [(b, n) for b in BATCHES for n in LENGTHS]
    assert list(zip(found["batch"], found["kv_len"], strict=True)) == rows
    exact = [plan.seconds(decode(b, n)) for b, n in rows]
    assert found["seconds"] == pytest.approx(exact, rel=1e-13)
    assert found["tokens_per_s"] == pytest.approx([b / s for (b, _), s in zip(rows, exact, strict=True)])


def test_a_list_of_points_is_the_grid_of_the_same_points(sweep):
    grid = sweep.grid(BATCHES, LENGTHS)
    listed = sweep.points(grid["batch"], grid["kv_len"])
    assert np.abs(listed["seconds"] / grid["seconds"] - 1).max() <= ULPS * np.finfo(float).eps


def test_prefill_is_swept_alike(choose):
    (plan,) = choose("gemma-3-27b", "h100-sxm", calibrated=False, tp=2, pp=1)
    found = StepSweep(plan, "prefill").points([1, 4], [100, 3000])
    assert found["seconds"] == pytest.approx([plan.seconds(prefill(1, 100)), plan.seconds(prefill(4, 3000))])


def test_eight_devices_agree_with_one():
    def run(count):
        flags = f"--xla_force_host_platform_device_count={count}"
        environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
        done = subprocess.run(
            [sys.executable, "-c", SWEEP],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        devices, *rest = json.loads(done.stdout)
        assert devices == count
        return rest

    (one, first), (eight, best) = run(1), run(8)
    apart = np.abs(np.array(one) - np.array(eight)) / np.spacing(np.array(one))
    assert apart.max() <= ULPS
    assert first == best


@pytest.mark.parametrize("arguments", [([], [1]), ([0], [1]), ([1, 2], [1]), ([1], [float("nan")])])
def test_points_that_cannot_be_are_refused(sweep, arguments):
    with pytest.raises(BadInput):
        sweep.points(*arguments)


def test_columns_read_back_from_csv_as_they_were(sweep):
    found = sweep.grid(BATCHES, LENGTHS)
    rows = list(csv.DictReader(io.StringIO(csv_text(found))))
    for name, column in found.items():
        assert [float(row[name]) for row in rows] == column.tolist()


def test_parquet_holds_the_same_columns_or_says_what_is_missing(sweep):
    found = sweep.grid([1, 2], [10])
    try:
        import pyarrow.parquet
    except ImportError:
        with pytest.raises(BadInput, match="pip install pyarrow"):
            parquet_bytes(found)
        return
    table = pyarrow.parquet.read_table(io.BytesIO(parquet_bytes(found)))
    assert table.to_pydict() == {name: column.tolist() for name, column in found.items()}


def test_a_search_tells_every_point_it_evaluated(choose, ask):
    search = Search(choose(most_devices=2, pp=1), ask(), remember=True)
    search.finish()
    table = evaluated(search)
    assert tuple(table) == COLUMNS
    assert {len(column) for column in table.values()} == {search.evaluations}
    kept = [i for i, feasible in enumerate(table["feasible"]) if feasible]
    assert kept
    assert all(table["tpot_s"][i] <= 0.02 and table["ttft_s"][i] <= 1.0 for i in kept)
