"""The end-to-end sample of aiconfigurator-core, raw or cleaned, as rows of a points file.

`silicon_sample.csv` in the installed package holds measured TTFT and TPOT of many campaigns, InferenceX
among them. It is a test set: nothing is fitted to it. Its columns do not always mean what they say; rows
that cannot be used are left out and counted by reason. The cleaned form has a column for each thing that is
then known: `CLEANED`.

What the columns do not record but the campaigns publish is restated here: the dtype of the KV cache and how
often SGLang looks at new requests, from the `benchmarks/` scripts of SemiAnalysisAI/InferenceX (2025-10 to
2026-04); lengths of its requests are drawn from 0.8 to 1.0 of the nominal ones.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from kvroof.catalog.models import catalog_name, model_names

CLEANED = (
    "id", "model_path", "system", "backend", "backend_version", "precision", "isl", "osl", "length_factor",
    "concurrency", "tp", "dp", "moe_tp", "moe_ep", "gemm_quant", "moe_quant", "ttft_ms", "tpot_ms",
)  # fmt: skip
SYSTEMS = {
    "a100_sxm": "a100-sxm-80gb", "h100_sxm": "h100-sxm", "h200_sxm": "h200-sxm", "b200_sxm": "b200-sxm",
    "b300_sxm": "b300-sxm", "gb200": "gb200-nvl72", "gb300": "gb300-nvl72", "l40s": "l40s",
}  # fmt: skip
SAME_TENSORS = {"deepseek-r1-nvfp4": "deepseek-v3.1-nvfp4", "deepseek-v3-nvfp4": "deepseek-v3.1-nvfp4"}
"""Checkpoints that are in the catalog under a sibling's name: equal tensors in equal formats."""
WEIGHTS = {"fp4": "nvfp4", "fp8": "fp8", "int4": "int4", "bf16": "auto", "": "auto"}
NARROW_KV = {
    ("llama-3.1-70b", "vllm"), ("llama-3.1-70b", "trtllm"), ("deepseek-r1", "trtllm"),
    ("deepseek-r1", "sglang", "b200_sxm"), ("deepseek-r1", "sglang", "b300_sxm"),
    ("gpt-oss-120b", "vllm", "b200_sxm"), ("gpt-oss-120b", "trtllm", "b200_sxm"),
    ("minimax-m2.5", "vllm", "b200_sxm"), ("minimax-m2.5", "vllm", "b300_sxm"),
    ("minimax-m2.5", "vllm", "h200_sxm"), ("qwen3.5-397b-a17b", "sglang", "h200_sxm"),
}  # fmt: skip
"""(model, engine) or (model, engine, machine) that InferenceX serves with an fp8 KV cache; others: bf16."""
UNADMITTED_MS = 15e3
"""A mean TTFT beyond this is time spent waiting for a slot: the concurrency was not served."""
NODE = 8
MTP_RATIO = 0.8
"""Runs of one configuration further apart than this are one with multi-token prediction and one without."""
NOTES = (
    "KV dtype and receive interval are those of the campaigns' published scripts, not of the rows",
    "the TTFT of one campaign (DeepSeek-R1 in fp4 on B200 under SGLang, version not recorded) is left out: it"
    " holds a cold start of 7.5 s",
)


def is_raw(row: Mapping[str, Any]) -> bool:
    """Return whether a row is of the package's sample."""
    return {"silicon_tpot_ms", "model_path", "tp_size"} <= row.keys()


def is_cleaned(row: Mapping[str, Any]) -> bool:
    """Return whether a row has the columns of the cleaned form."""
    return {"model_path", "moe_ep", "concurrency", "tpot_ms"} <= row.keys()


def columns(rows: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Return the usable rows with a points file's columns, and how many were left out for which reason."""
    left_out: dict[str, int] = {}
    cleaned = clean(rows, left_out) if is_raw(rows[0]) else list(rows)
    kept = []
    for row in cleaned:
        found = as_columns(row)
        if found is None:
            _count(left_out, f"{row['model_path']} is not in the catalog")
        else:
            kept.append(found)
    return kept, left_out


def as_columns(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a cleaned row with a points file's columns; None where the catalog lacks its model."""
    found = _checkpoint(row["model_path"], row["precision"])
    if found is None or row["system"] not in SYSTEMS:
        return None
    model, weights = found
    base, engine = _base(row["model_path"]), row["backend"]
    narrow = {(base, engine), (base, engine, row["system"])} & NARROW_KV
    slow_look = base == "deepseek-r1" and engine == "sglang" and row["system"] in ("b200_sxm", "b300_sxm")
    concurrency = int(float(row["concurrency"]))
    cold = slow_look and row["precision"] == "fp4" and not row["backend_version"]
    return {
        "name": row["id"],
        "model": model,
        "hw": SYSTEMS[row["system"]],
        "framework": engine,
        "version": row["backend_version"],
        "weights_dtype": weights,
        "kv_dtype": "fp8" if narrow else "auto",
        "tp": row["tp"],
        "dp": row["dp"],
        "ep": row["moe_ep"],
        "isl": row["isl"],
        "osl": row["osl"],
        "concurrency": concurrency,
        "length_factor": row["length_factor"],
        "receive_interval": (30 if concurrency >= 16 else 10) if slow_look else 1,
        "ttft_ms": None if cold else row["ttft_ms"],
        "tpot_ms": row["tpot_ms"],
        "source": "aiconfigurator-core's end-to-end sample",
    }


def clean(rows: Sequence[Mapping[str, Any]], left_out: dict[str, int]) -> list[dict[str, Any]]:
    """Return the raw rows that can be used, in the cleaned form; counts the others by reason.

    Attention DP and expert ranks are sometimes recorded as products of themselves; two dumps hold many runs
    twice; runs of DeepSeek-R1 outside the database dump may use multi-token prediction.
    """
    kept: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        made, reason = _cleaned(row)
        if made is None:
            _count(left_out, reason)
            continue
        key = (*(made[k] for k in ("model_path", "system", "backend", "isl", "osl", "concurrency")),
               *(f"{float(made[k]):.7g}" for k in ("ttft_ms", "tpot_ms")))  # fmt: skip
        if key in kept:
            _count(left_out, "the same measurement as another row")
        kept[key] = made
    return _without_mtp(list(kept.values()), left_out)


def _cleaned(row: Mapping[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """Return a raw row in the cleaned form, or None and the reason."""
    if row["mode"] != "agg":
        return None, "prefill and decode on pools of their own: not predicted by this command yet"
    said = re.search(r"silicon_concurrency=(\d+)", row["silicon_data_source"])
    tp, moe_tp, moe_ep = (_whole(row[k]) for k in ("tp_size", "moe_tp_size", "moe_ep_size"))
    dp = _whole(row["attention_dp_size"] or 1)
    if not all((tp, dp, moe_tp, moe_ep)):
        return None, "a layout with no ranks along an axis"
    if row["pp_size"] and _whole(row["pp_size"]) > 1:
        return None, "pipeline stages"
    tp, dp, experts, moe_ep = _unsquared(tp, dp, moe_tp * moe_ep, moe_tp, moe_ep)
    if tp * dp > NODE:
        return None, "more ranks than one worker has"
    if experts not in (tp * dp, 1):
        return None, "attention and experts on different numbers of ranks"
    concurrency = int(said[1]) if said else _whole(row["batch_size"] or 1) * dp
    if float(row["silicon_ttft_ms"] or 0) > UNADMITTED_MS:
        return None, f"a TTFT over {UNADMITTED_MS / 1e3:.0f} s: requests waited for a slot"
    if not (row["silicon_ttft_ms"] and row["silicon_tpot_ms"]):
        return None, "a time is missing"
    inference_x = "gap-analysis" not in row["silicon_data_source"]
    return {
        "id": row["id"],
        "model_path": row["model_path"],
        "system": row["system"],
        "backend": row["backend"],
        "backend_version": row["backend_version"],
        "precision": row["precision"] or "bf16",
        "isl": row["isl"],
        "osl": row["osl"],
        "length_factor": 0.9 if inference_x else 1.0,
        "concurrency": concurrency,
        "tp": tp,
        "dp": dp,
        "moe_ep": moe_ep,
        "ttft_ms": row["silicon_ttft_ms"],
        "tpot_ms": row["silicon_tpot_ms"],
        "dump": row["silicon_data_source"].startswith("db-dump"),
        "date": (re.search(r"measured=([\d-]+)", row["silicon_data_source"]) or ("", ""))[1],
    }, ""


def _unsquared(tp: int, dp: int, experts: int, moe_tp: int, moe_ep: int) -> tuple[int, int, int, int]:
    """Return TP, attention DP, ranks of the experts and EP as they were, from what may be recorded squared.

    The sample has attention DP of n x n with n x n experts' ranks, TP n beside DP n with EP n x n, and TP
    n x n with n x n experts' ranks; each of them is n ranks.
    """
    root = math.isqrt(experts)
    if dp > 1 and moe_tp == moe_ep and dp == experts and tp == 1:
        return 1, root, root, root
    if dp > 1 and dp == tp and experts == tp * dp:
        return 1, dp, dp, moe_ep // dp
    if dp == 1 and tp > NODE and moe_tp == moe_ep and tp == experts:
        return root, 1, root, root
    return tp, dp, experts, moe_ep


def _without_mtp(rows: list[dict[str, Any]], left_out: dict[str, int]) -> list[dict[str, Any]]:
    """Return the rows less those that may use multi-token prediction, which no column records.

    Outside the database dump, a configuration of DeepSeek-R1 has TPOTs far apart: the lower ones are with
    it. In a campaign that has such runs, one that no other campaign measured too cannot be told.
    """
    config = (
        "model_path",
        "system",
        "backend",
        "precision",
        "isl",
        "osl",
        "concurrency",
        "tp",
        "dp",
        "moe_ep",
    )
    campaign = ("model_path", "system", "backend", "precision", "backend_version", "date")
    runs: dict[tuple[Any, ...], list[float]] = {}
    suspects = [row for row in rows if not row["dump"] and _base(row["model_path"]) == "deepseek-r1"]
    for row in suspects:
        runs.setdefault(_key(row, config), []).append(float(row["tpot_ms"]))
    slowest = {key: max(tpots) for key, tpots in runs.items() if min(tpots) < MTP_RATIO * max(tpots)}
    fast = [r for r in suspects if float(r["tpot_ms"]) < MTP_RATIO * slowest.get(_key(r, config), 0.0)]
    mixed = {_key(row, campaign) for row in fast}
    unsure = [row for row in suspects if _key(row, campaign) in mixed and _key(row, config) not in slowest]
    dropped = {row["id"] for row in (*fast, *unsure)}
    for _ in dropped:
        _count(left_out, "may use multi-token prediction, which is not recorded")
    return [row for row in rows if row["id"] not in dropped]


def _key(row: Mapping[str, Any], names: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(row[name] for name in names)


def _checkpoint(hub_id: str, precision: str) -> tuple[str, str] | None:
    """Return the catalog's name of a checkpoint and the weights' dtype, None where it has none.

    A quantised sibling that is in the catalog is taken; else the weights are stored in the precision said,
    unless the checkpoint has that precision by itself.
    """
    known, name = set(model_names()), _base(hub_id)
    suffix = {"fp4": "-nvfp4", "fp8": "-fp8"}.get(precision, "")
    for candidate in (name + suffix, SAME_TENSORS.get(name + suffix, "")):
        if suffix and candidate in known:
            return candidate, "auto"
    if name not in known:
        return None
    own = name.startswith(("gpt-oss", "deepseek-r1", "minimax")) or name.endswith(suffix or "-none")
    return name, "auto" if own else WEIGHTS.get(precision, "auto")


def _base(hub_id: str) -> str:
    """Return the catalog's name of a hub id; the sample's DeepSeek-V3 is R1."""
    name = catalog_name(hub_id)
    name = re.sub(r"-(fp8|nvfp4)$", "", name) if hub_id.startswith("nvidia/") else name
    return "deepseek-r1" if name == "deepseek-v3" else name


def _whole(text: Any) -> int:
    return int(float(text or 0))


def _count(left_out: dict[str, int], reason: str) -> None:
    left_out[reason] = left_out.get(reason, 0) + 1
