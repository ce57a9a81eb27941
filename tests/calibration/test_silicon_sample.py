"""The end-to-end sample: what its columns do not mean, and the rows that cannot be used."""

import pytest

from kvroof.calibration.silicon_sample import clean, columns, is_cleaned, is_raw

RAW = {
    "id": "a", "silicon_data_source": "source_file=x.csv; silicon_concurrency=64; measured=2026-01-01",
    "backend": "vllm", "backend_version": "0.18.0", "model_path": "openai/gpt-oss-120b", "system": "h100_sxm",
    "precision": "fp4", "mode": "agg", "isl": "1024", "osl": "1024", "gemm_quant_mode": "nvfp4",
    "moe_quant_mode": "nvfp4", "batch_size": "64", "tp_size": "4", "pp_size": "1", "attention_dp_size": "1",
    "moe_tp_size": "4", "moe_ep_size": "1", "silicon_ttft_ms": "400.0", "silicon_tpot_ms": "20.0",
}  # fmt: skip
R1 = {"model_path": "deepseek-ai/DeepSeek-R1", "backend": "sglang", "system": "b200_sxm", "precision": "fp8"}


def cleaned(*changes):
    left_out = {}
    return clean([RAW | {"id": str(n)} | change for n, change in enumerate(changes)], left_out), left_out


@pytest.mark.parametrize(
    ("tp", "attention_dp", "moe_tp", "moe_ep", "meant"),
    [
        (8, 1, 8, 1, (8, 1, 1)),
        (8, 1, 1, 8, (8, 1, 8)),
        (64, 1, 8, 8, (8, 1, 8)),
        (16, 1, 4, 4, (4, 1, 4)),
        (1, 64, 8, 8, (1, 8, 8)),
        (1, 4, 2, 2, (1, 2, 2)),
        (4, 4, 1, 16, (1, 4, 4)),
        (2, 2, 1, 4, (1, 2, 2)),
        (1, 4, 4, 1, (1, 4, 1)),
        (4, 1, 2, 2, (4, 1, 2)),
    ],
)
def test_squared_layouts_are_what_they_were(tp, attention_dp, moe_tp, moe_ep, meant):
    sizes = {"tp_size": tp, "attention_dp_size": attention_dp, "moe_tp_size": moe_tp, "moe_ep_size": moe_ep}
    ((row,), left_out) = cleaned({key: str(value) for key, value in sizes.items()})
    assert (row["tp"], row["dp"], row["moe_ep"]) == meant
    assert not left_out


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"mode": "disagg"}, "pools of their own"),
        ({"system": "gb200", "tp_size": "36", "moe_tp_size": "36"}, "more ranks than one worker"),
        ({"moe_tp_size": "0"}, "no ranks"),
        ({"moe_tp_size": "2"}, "different numbers of ranks"),
        ({"silicon_ttft_ms": "79539"}, "waited for a slot"),
        ({"silicon_tpot_ms": ""}, "missing"),
    ],
)
def test_rows_that_cannot_be_used_are_counted_by_reason(change, reason):
    rows, left_out = cleaned(change, {})
    assert len(rows) == 1
    ((said, count),) = left_out.items()
    assert reason in said
    assert count == 1


def test_a_measurement_in_two_dumps_counts_once():
    rows, left_out = cleaned({}, {"silicon_tpot_ms": "20.00000000001"}, {"silicon_tpot_ms": "21.0"})
    assert len(rows) == 2
    assert sum(left_out.values()) == 1


def test_the_recorded_concurrency_is_taken_and_not_the_batch():
    ((row,), _) = cleaned({"batch_size": "16"})
    assert row["concurrency"] == 64


def test_of_twins_with_and_without_drafted_tokens_the_slower_stays():
    slow, fast = {"silicon_tpot_ms": "20.0"}, {"silicon_tpot_ms": "13.6", "silicon_ttft_ms": "500.0"}
    alone = {
        "silicon_tpot_ms": "30.0",
        "silicon_data_source": RAW["silicon_data_source"].replace("64", "128"),
    }
    rows, left_out = cleaned(R1 | slow, R1 | fast, R1 | alone)
    assert [row["tpot_ms"] for row in rows] == ["20.0"]
    assert list(left_out.values()) == [2]
    assert "multi-token" in next(iter(left_out))


def test_the_database_dump_has_no_drafted_tokens():
    dump = {"silicon_data_source": "db-dump/x; silicon_concurrency=64; measured=2026-01-01"}
    rows, _ = cleaned(R1 | dump, R1 | dump | {"silicon_tpot_ms": "13.6"})
    assert len(rows) == 2


def test_cleaned_rows_become_points_of_the_catalogs_models():
    base = {
        "id": "x", "model_path": "meta-llama/Llama-3.1-70B", "system": "h200_sxm", "backend": "trtllm",
        "backend_version": "", "precision": "fp8", "isl": "1024", "osl": "8192", "length_factor": "0.9",
        "concurrency": "64.0", "tp": "4", "dp": "1", "moe_tp": "4", "moe_ep": "1", "gemm_quant": "fp8",
        "moe_quant": "fp8", "ttft_ms": "500", "tpot_ms": "13.7",
    }  # fmt: skip
    assert is_cleaned(base)
    assert not is_raw(base)
    models = {
        ("meta-llama/Llama-3.1-70B", "fp8"): ("llama-3.1-70b", "fp8", "fp8"),
        ("openai/gpt-oss-120b", "fp4"): ("gpt-oss-120b", "auto", "auto"),
        ("deepseek-ai/DeepSeek-V3", "fp8"): ("deepseek-r1", "auto", "fp8"),
        ("deepseek-ai/DeepSeek-R1", "fp4"): ("deepseek-v3.1-nvfp4", "auto", "fp8"),
        ("MiniMaxAI/MiniMax-M2.5", "fp4"): ("minimax-m2.5-nvfp4", "auto", "auto"),
        ("Qwen/Qwen3-235B-A22B-FP8", "fp8"): ("qwen3-235b-a22b-fp8", "auto", "auto"),
        ("meta-llama/Llama-3.1-8B-Instruct", ""): ("llama-3.1-8b", "auto", "auto"),
    }
    rows, left_out = columns([base | {"model_path": m, "precision": p} for m, p in models])
    assert [(r["model"], r["weights_dtype"], r["kv_dtype"]) for r in rows] == list(models.values())
    assert not left_out


def test_a_model_that_is_not_in_the_catalog_is_left_out_by_name():
    kept, left_out = columns([RAW, RAW | {"model_path": "nobody/Nothing-9B", "silicon_tpot_ms": "21"}])
    assert len(kept) == 1
    assert left_out == {"nobody/Nothing-9B is not in the catalog": 1}


def test_a_cold_start_is_no_ttft():
    cold = R1 | {"precision": "fp4", "backend_version": ""}
    (row, other), _ = columns([RAW | cold, RAW | R1 | {"silicon_tpot_ms": "21.0"}])
    assert row["ttft_ms"] is None
    assert other["ttft_ms"] == "400.0"
