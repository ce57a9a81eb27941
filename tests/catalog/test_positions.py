"""The longest context of a config with a RoPE scaling: vLLM's `_get_and_verify_max_len`."""

from __future__ import annotations

from typing import Any

import pytest

from kvroof.catalog.huggingface import read_architecture
from kvroof.catalog.positions import MAX_POSITIONS
from kvroof.ground.errors import BadInput

QWEN: dict[str, Any] = {
    "model_type": "qwen2",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 1000,
    "max_position_embeddings": 32_768,
}


def longest(**changes: Any) -> int | None:
    """Return the context of the small Qwen2.5."""
    return read_architecture(QWEN | changes, "config.json", "small").architecture.max_position_embeddings


@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_yarn_multiplies_the_original_positions(key: str) -> None:
    """Qwen2.5's card: 32,768 and a factor of 4 serve 131,072. DeepSeek-V3 states its 163,840 = 40 x 4,096."""
    scaling = {key: "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768}
    assert longest(rope_scaling=scaling) == longest(rope_parameters=scaling) == 131_072
    stated = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}
    assert longest(max_position_embeddings=163_840, rope_scaling=stated) == 163_840


def test_yarn_without_its_origin_multiplies_the_stated_positions() -> None:
    assert longest(rope_scaling={"rope_type": "yarn", "factor": 4.0}) == 131_072


@pytest.mark.parametrize("kind", ["llama3", "longrope", "su", "default"])
def test_other_files_state_the_stretched_length(kind: str) -> None:
    factor = {} if kind == "default" else {"factor": 8.0}
    assert (
        longest(rope_scaling={"rope_type": kind, "original_max_position_embeddings": 8192} | factor) == 32_768
    )


@pytest.mark.parametrize("kind", ["linear", "dynamic"])
def test_linear_and_dynamic_scalings_multiply_the_stated_positions(kind: str) -> None:
    assert longest(rope_scaling={"type": kind, "factor": 2.0}) == 65_536


def test_gemma_3_states_the_stretched_length() -> None:
    """Gemma-3-27B: linear by 8, and max_position_embeddings is the 131,072 that its card says."""
    scaling = {"rope_type": "linear", "factor": 8.0}
    assert longest(model_type="gemma3_text", rope_scaling=scaling, head_dim=32) == 32_768


def test_parameters_by_kind_of_layer_stretch_alike() -> None:
    layers = {
        "full_attention": {"rope_type": "yarn", "factor": 2.0},
        "sliding_attention": {"rope_type": "default"},
    }
    assert longest(rope_parameters=layers) == 65_536


def test_no_limit_stays_none_and_no_scaling_changes_nothing() -> None:
    assert longest(max_position_embeddings=None, rope_scaling={"type": "yarn", "factor": 4.0}) is None
    assert longest(rope_scaling=None) == longest(rope_scaling={}) == 32_768


@pytest.mark.parametrize("factor", [-1, 1e-9, float(MAX_POSITIONS), "four", True, [4]])
def test_a_factor_that_makes_no_length_is_refused(factor: object) -> None:
    with pytest.raises(BadInput, match="factor"):
        longest(rope_scaling={"type": "yarn", "factor": factor})
