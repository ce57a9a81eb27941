"""Which tensors a GGUF file quantises: by llama.cpp's `llama_tensor_get_type`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvroof.catalog.models import load_model
from kvroof.ground.dtypes import DTYPES
from kvroof.spec.gguf import GGUF_TYPES, gguf_formats
from kvroof.spec.params import stored_weights


def kinds(name: str, dtype: str, tied: bool | None = None) -> dict[str, str]:
    """Return the type of each tensor of a catalog model."""
    model = load_model(name)
    if tied is not None:
        model = replace(model, tied=tied)
    formats = gguf_formats(DTYPES[dtype], model)
    return {weight.name: formats.of(weight).dtype.name for weight, *_ in stored_weights(model)}


@pytest.mark.parametrize("dtype", GGUF_TYPES)
def test_matrices_have_the_files_type_and_norms_are_fp32(dtype: str) -> None:
    found = kinds("llama-3.1-8b", dtype)
    matrices = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj", "embed_tokens"}
    assert {found[name] for name in matrices} == {dtype}
    assert {kind for name, kind in found.items() if name not in matrices | {"lm_head"}} == {"fp32"}


def test_the_head_is_stored_in_more_bits_and_so_is_an_embedding_that_is_also_the_head() -> None:
    assert kinds("llama-3.1-8b", "q4_0")["lm_head"] == "q6_k"
    assert kinds("llama-3.1-8b", "q8_0")["lm_head"] == "q8_0"
    assert kinds("llama-3.1-8b", "q4_0", tied=True)["embed_tokens"] == "q6_k"
    assert kinds("llama-3.1-8b", "q8_0", tied=True)["embed_tokens"] == "q8_0"


def test_rows_that_do_not_fill_a_block_of_256_are_stored_in_q8_0() -> None:
    """Qwen2.5-0.5B is 896 wide, and its embedding is the head."""
    assert kinds("qwen2.5-0.5b", "q4_0")["embed_tokens"] == "q8_0"


def test_routers_stay_fp32_and_eight_experts_widen_keys_and_values() -> None:
    found = kinds("mixtral-8x7b-v0.1", "q4_0")
    assert (found["router"], found["k_proj"], found["v_proj"]) == ("fp32", "q8_0", "q8_0")
    assert found["q_proj"] == found["experts.down_proj"] == "q4_0"
    assert kinds("qwen3-30b-a3b", "q4_0")["k_proj"] == "q4_0"
