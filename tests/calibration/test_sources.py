"""Readers: rows become points by the formulas of `cost`, and bad files are one line."""

import numpy as np
import pytest

from kvroof.calibration import aiconfigurator, work
from kvroof.calibration.aiconfigurator import Aiconfigurator
from kvroof.calibration.sources import OWN_COLUMNS, OwnPoints, VidurAttention
from kvroof.catalog.models import load_model
from kvroof.catalog.profiles import load_hardware
from kvroof.cost.forward import forward
from kvroof.ground.errors import BadInput, Unsupported
from kvroof.roofline.plan import Plan
from kvroof.spec.workload import decode, prefill

H200 = load_hardware("h200-sxm")


def words(text: str, count: int):
    return np.array([text] * count, dtype=object)


TABLES = {
    "gemm/vllm/0.24.0/gemm": {
        "m": np.arange(1, 101) * 16,
        "n": np.full(100, 4096),
        "k": np.full(100, 4096),
        "gemm_dtype": words("bfloat16", 100),
        "kernel_source": words("torch.nn.functional.linear", 100),
        "latency": np.linspace(0.02, 0.4, 100),
    },
    "attention/vllm/0.24.0/generation_attention": {
        "batch_size": np.full(200, 8),
        "isl": np.ones(200, int),
        "step": np.arange(200) * 64 + 127,
        "num_heads": np.full(200, 32),
        "num_key_value_heads": np.full(200, 8),
        "head_dim": np.full(200, 128),
        "window_size": np.array([0, 128] * 100),
        "kv_cache_dtype": words("bfloat16", 200),
        "kernel_source": words("fa3", 200),
        "latency": np.linspace(0.02, 0.4, 200),
    },
}


@pytest.fixture
def tables(tmp_path, monkeypatch) -> Aiconfigurator:
    for name in TABLES:
        file = tmp_path / "h200_sxm" / f"{name}_perf.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    monkeypatch.setattr(
        aiconfigurator,
        "read_parquet",
        lambda path: TABLES[str(path.relative_to(tmp_path / "h200_sxm")).removesuffix("_perf.parquet")],
    )
    return Aiconfigurator(root=tmp_path, version="0.0")


def test_rows_become_points_of_their_family(tables):
    found = {points.family: points for points in tables.points(H200, "vllm")}
    assert list(found) == ["gemm.bf16", "attention.decode"]
    gemm = found["gemm.bf16"]
    assert gemm.flops[0] == 2 * 16 * 4096 * 4096
    assert gemm.hbm_bytes[0] == 2 * (4096 * 4096 + 16 * 4096 + 16 * 4096)
    assert gemm.seconds[0] == pytest.approx(20e-6)
    assert (gemm.version, gemm.kernel) == ("0.24.0", "torch.nn.functional.linear")


def test_a_cached_length_is_isl_plus_step_and_windows_are_left_out(tables):
    found = next(p for p in tables.points(H200, "vllm") if p.family == "attention.decode")
    assert len(found) == 100
    assert found.depth[0] == 128


@pytest.mark.parametrize(("hw", "framework"), [("tpu-v5e", "vllm"), ("h200-sxm", "llama.cpp")])
def test_machines_and_frameworks_without_tables_are_refused(tables, hw, framework):
    with pytest.raises(BadInput, match="has no tables"):
        list(tables.points(load_hardware(hw), framework))


@pytest.mark.parametrize(
    ("older", "newer"),
    [("0.5.9", "0.5.14"), ("1.3.0rc10", "1.3.0rc20"), ("1.3.0rc20", "1.3.0"), ("0.5.6", "0.5.6.post2"),
     ("0.1.dev19262", "0.1")],
)  # fmt: skip
def test_versions_are_ordered_as_released(older, newer):
    assert aiconfigurator._order(older) < aiconfigurator._order(newer)


def test_the_package_that_is_missing_is_said(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(Unsupported, match="kvroof\\[silicon\\]"):
        aiconfigurator.installed()


def test_work_is_what_the_cost_model_counts():
    model, batch, kv_len = load_model("llama-3.1-8b"), 4, 1000
    plan = Plan.of(model, "h200-sxm")
    step = decode(batch, kv_len)
    op = next(o for o in forward(model, step, plan.run("absorbed")) if o.kind == "attention")
    did = work.decode(batch, kv_len, 32, 8, 128, 2)
    assert did.flops == op.flops
    assert did.hbm_bytes == op.hbm_bytes


def test_prefill_work_is_what_the_cost_model_counts():
    model, length = load_model("llama-3.1-8b"), 1000
    plan = Plan.of(model, "h200-sxm")
    op = next(o for o in forward(model, prefill(1, length), plan.run("absorbed")) if o.kind == "attention")
    did = work.prefill(1, length, 32, 8, 128, 2)
    assert did.flops == op.flops
    assert did.hbm_bytes == op.hbm_bytes


def test_an_even_routing_touches_experts_in_turn():
    few = work.experts(4.0, 4096.0, 1536.0, 8.0, 128.0, 1.0, 2.0)
    many = work.experts(64.0, 4096.0, 1536.0, 8.0, 128.0, 1.0, 2.0)
    assert few.items == 32
    assert many.hbm_bytes > 128 * 3 * 4096 * 1536 * 2


def own(tmp_path, rows: str):
    file = tmp_path / "points.csv"
    file.write_text(",".join(OWN_COLUMNS) + "\n" + rows)
    return OwnPoints(path=file)


def test_own_points_are_read_by_family(tmp_path):
    source = own(tmp_path, "gemm.bf16,bf16,1e9,1e6,4,4096,0,2e-5\ngemm.fp8,fp8,1e9,1e6,4,4096,0,1e-5\n")
    found = list(source.points(H200, "mine"))
    assert [(p.family, len(p)) for p in found] == [("gemm.bf16", 1), ("gemm.fp8", 1)]
    assert found[1].peak_flops_per_s == H200.peak_flops_per_s["fp8"]


@pytest.mark.parametrize("row", ["gemm.bf16,bf16,x,1,1,1,0,1\n", "gemm.bf16,bf16,-1,1,1,1,0,1\n", ""])
def test_bad_rows_are_one_error(tmp_path, row):
    with pytest.raises(BadInput):
        list(own(tmp_path, row).points(H200, "mine"))


def test_a_missing_column_is_named(tmp_path):
    file = tmp_path / "points.csv"
    file.write_text("family,dtype\n")
    with pytest.raises(BadInput, match="no column flops"):
        list(OwnPoints(path=file).points(H200, "mine"))


def test_a_vidur_profile_is_split_by_phase(tmp_path):
    file = tmp_path / "attention.csv"
    file.write_text(
        "batch_size,prefill_chunk_size,kv_cache_size,n_q_head,n_kv_head,n_embd,num_tensor_parallel_workers,"
        "time_stats.attn_prefill.median,time_stats.attn_decode.median\n"
        "8,0,1024,32,8,4096,2,,0.05\n1,512,0,32,8,4096,2,0.2,\n1,512,512,32,8,4096,2,0.3,\n"
    )
    decoded, filled = VidurAttention(path=file).points(H200, "vidur")
    assert (decoded.family, decoded.items.tolist(), decoded.seconds.tolist()) == (
        "attention.decode",
        [32],
        [5e-5],
    )
    assert (filled.family, filled.depth.tolist()) == ("attention.prefill", [512])
