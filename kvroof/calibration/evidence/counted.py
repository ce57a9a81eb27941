"""Parameters and cache bytes against what others counted: the catalog's totals, and transformers' own.

`models/counted/transformers.json` holds small random configs (irregular sizes, flags flipped) with what
transformers 5.24.0 counted for them on meta tensors, and the bytes of its real cache tensors after a
prefill shorter than any window, run on the CPU. Nothing in it comes from kvroof.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec

from kvroof.calibration.evidence.evidence import Case, Evidence, Refused
from kvroof.catalog.huggingface import read_architecture
from kvroof.catalog.models import load_model, model_names, read_entry
from kvroof.catalog.names import data_folder
from kvroof.ground.dtypes import parse_dtype
from kvroof.ground.errors import KvroofError
from kvroof.memory.kv import kv
from kvroof.spec.architecture import Architecture
from kvroof.spec.params import params_total
from kvroof.spec.precision import KVFormat, StateFormat

_ZERO_EXPERTS = "the class gives weights to zero-computation experts, which hold none"
PARAMS_EXPLAINED = {"longcat_flash-A": _ZERO_EXPERTS, "longcat_flash-B": _ZERO_EXPERTS}
CACHE_EXPLAINED = {
    "falcon-B": "transformers repeats the new decoder's KV heads before it caches them",
    "deepseek_v4-A": "transformers' compressor holds buffers of its own, not the engines'",
}


class CachedBytes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bytes of the real cache tensors at some lengths."""

    tokens: list[int]
    bytes: list[int]
    dtype: str
    encoder_tokens: int


class CountedModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, eq=False):
    """A config with what transformers counted of it."""

    id: str
    config: dict[str, Any]
    params: int
    cache: CachedBytes | None = None


@cache
def counted_models() -> tuple[CountedModel, ...]:
    """Return the counted configs that are built in."""
    path = data_folder("models") / "counted" / "transformers.json"
    return msgspec.json.decode(path.read_bytes(), type=tuple[CountedModel, ...])


@cache
def read(counted: CountedModel) -> Architecture:
    """Return the architecture of a counted config.

    Raises:
        KvroofError: It is refused.
    """
    return read_architecture(counted.config, counted.id, counted.id).architecture


def cached_bytes(model: Architecture, held: CachedBytes) -> list[int]:
    """Return the ledger's payload at the lengths whose real cache was measured."""
    dtype = parse_dtype(held.dtype)
    reports = (
        kv(
            model,
            tokens=tokens,
            encoder_tokens=held.encoder_tokens,
            kv_format=KVFormat(k=dtype, v=dtype),
            state_format=StateFormat(conv=dtype),
        )
        for tokens in held.tokens
    )
    return [report.payload_bytes for report in reports]


def catalog_evidence() -> Evidence:
    """Return every model of the catalog against the count that it was checked with."""
    entries = [read_entry(name) for name in model_names()]
    return Evidence(
        kind="parameters, catalog",
        against=f"{len(entries)} published models, counted on meta tensors or read from checkpoint headers",
        cases=tuple(
            _case(entry.name, entry.params_total, params_total(load_model(entry.name))) for entry in entries
        ),
        exact=True,
        notes=("models/*.json name where each count is from; the exporter refuses an entry that disagrees",),
    )


def counts_evidence() -> Evidence:
    """Return the parameters of every counted config."""
    cases, refused = [], []
    for counted in counted_models():
        try:
            total = params_total(read(counted))
        except KvroofError as error:
            refused.append(Refused(name=counted.id, why=error.reason))
            continue
        cases.append(_case(counted.id, counted.params, total, PARAMS_EXPLAINED.get(counted.id, "")))
    return Evidence(
        kind="parameters, model types",
        against="small random configs of 298 model types, as transformers 5.24 counts them",
        cases=tuple(cases),
        refused=tuple(refused),
        exact=True,
    )


def caches_evidence() -> Evidence:
    """Return the cache bytes of every counted config whose real cache was measured, length by length."""
    refused = []

    def cases() -> Iterator[Case]:
        for counted in counted_models():
            if counted.cache is None:
                continue
            try:
                found = cached_bytes(read(counted), counted.cache)
            except KvroofError as error:
                refused.append(Refused(name=counted.id, why=error.reason))
                continue
            why = CACHE_EXPLAINED.get(counted.id, "")
            for tokens, known, got in zip(counted.cache.tokens, counted.cache.bytes, found, strict=True):
                yield _case(f"{counted.id}, {tokens} tokens", known, got, why, " B")

    made = tuple(cases())
    return Evidence(
        kind="caches",
        against="the tensors of transformers' own caches after a prefill, at two lengths for each config",
        cases=made,
        refused=tuple(refused),
        exact=True,
    )


def _case(name: str, known: int, predicted: int, why: str = "", unit: str = "") -> Case:
    return Case(
        name=name,
        known=f"{known:,}{unit}",
        predicted=f"{predicted:,}{unit}",
        error=predicted / known - 1 if known else float(predicted != known),
        why=why,
    )
