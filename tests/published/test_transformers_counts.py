"""298 model types against transformers: each is either right or refused, never wrong.

`data/transformers_counts.json` holds small random configs (irregular sizes, flags flipped) with what
transformers 5.24.0 counted for them on meta tensors, and the bytes of its real cache tensors after a
prefill shorter than any window, run on the CPU. Nothing in it comes from kvroof.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kvroof.catalog.huggingface import read_architecture
from kvroof.ground.dtypes import parse_dtype
from kvroof.ground.errors import KvroofError
from kvroof.memory.kv import kv
from kvroof.spec.architecture import Architecture
from kvroof.spec.params import params_total
from kvroof.spec.precision import KVFormat, StateFormat

RECORDS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "data" / "transformers_counts.json").read_text()
)
PARAMS_EXPLAINED = {
    "longcat_flash-A": "the class gives weights to zero-computation experts, which hold none",
    "longcat_flash-B": "the class gives weights to zero-computation experts, which hold none",
}
CACHE_EXPLAINED = {
    "falcon-B": "transformers repeats the new decoder's KV heads before it caches them",
    "deepseek_v4-A": "transformers' compressor holds buffers of its own, not the engines'",
}


def read(record: dict[str, Any]) -> Architecture | None:
    """Return the architecture of a record, None where it is refused."""
    try:
        return read_architecture(record["config"], record["id"], record["id"]).architecture
    except KvroofError:
        return None


def counted_wrong(record: dict[str, Any]) -> str | None:
    """Return what the count says where it is not transformers' count."""
    model = read(record)
    if model is None or params_total(model) == record["params"]:
        return None
    return f"{record['id']}: {params_total(model)} for {record['params']}"


def cached_wrong(record: dict[str, Any]) -> str | None:
    """Return what the ledger says where it is not the bytes of the real cache."""
    model, cache = read(record), record.get("cache")
    if model is None or cache is None:
        return None
    dtype = parse_dtype(cache["dtype"])
    reports = [
        kv(
            model,
            tokens=tokens,
            encoder_tokens=cache["encoder_tokens"],
            kv_format=KVFormat(k=dtype, v=dtype),
            state_format=StateFormat(conv=dtype),
        )
        for tokens in cache["tokens"]
    ]
    got = [report.payload_bytes for report in reports]
    return None if got == cache["bytes"] else f"{record['id']}: {got} for {cache['bytes']}"


@pytest.mark.parametrize("record", RECORDS, ids=[r["id"] for r in RECORDS])
def test_a_model_type_is_counted_as_transformers_counts_it_or_refused(record: dict[str, Any]) -> None:
    wrong = counted_wrong(record)
    assert wrong is None or record["id"] in PARAMS_EXPLAINED, wrong


@pytest.mark.parametrize("record", RECORDS, ids=[r["id"] for r in RECORDS])
def test_a_cache_is_as_large_as_transformers_makes_it_or_refused(record: dict[str, Any]) -> None:
    wrong = cached_wrong(record)
    assert wrong is None or record["id"] in CACHE_EXPLAINED, wrong


def test_most_types_are_answered() -> None:
    answered = Counter(read(record) is not None for record in RECORDS)
    assert answered[True] >= 380
