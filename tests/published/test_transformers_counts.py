"""298 model types against transformers: each is either right or refused, never wrong.

`models/counted/transformers.json` says how they were counted; nothing in it comes from kvroof.
"""

from __future__ import annotations

import pytest

from kvroof.calibration.evidence.counted import (
    CACHE_EXPLAINED,
    PARAMS_EXPLAINED,
    CountedModel,
    cached_bytes,
    caches_evidence,
    counted_models,
    counts_evidence,
    read,
)
from kvroof.ground.errors import KvroofError
from kvroof.spec.params import params_total

MODELS = counted_models()
NAMES = [model.id for model in MODELS]


@pytest.mark.parametrize("counted", MODELS, ids=NAMES)
def test_a_model_type_is_counted_as_transformers_counts_it_or_refused(counted: CountedModel) -> None:
    try:
        model = read(counted)
    except KvroofError:
        return
    assert (params_total(model) == counted.params) is (counted.id not in PARAMS_EXPLAINED)


@pytest.mark.parametrize("counted", [m for m in MODELS if m.cache], ids=[m.id for m in MODELS if m.cache])
def test_a_cache_is_as_large_as_transformers_makes_it_or_refused(counted: CountedModel) -> None:
    assert counted.cache is not None
    try:
        found = cached_bytes(read(counted), counted.cache)
    except KvroofError:
        return
    assert (found == counted.cache.bytes) is (counted.id not in CACHE_EXPLAINED)


def test_most_types_are_answered() -> None:
    assert len(counts_evidence().cases) >= 380


def test_the_page_of_evidence_hides_no_model_type() -> None:
    counts, caches = counts_evidence(), caches_evidence()
    assert len(counts.cases) + len(counts.refused) == len(MODELS)
    assert {case.name for case in counts.worst} == set(PARAMS_EXPLAINED)
    assert {case.name.split(",")[0] for case in caches.cases if case.error} == set(CACHE_EXPLAINED)
    lengths = sum(len(model.cache.tokens) for model in MODELS if model.cache)
    assert len(caches.cases) + 2 * len(caches.refused) == lengths
