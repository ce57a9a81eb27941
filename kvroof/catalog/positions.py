"""The longest context that a checkpoint is served with: its positions, stretched as its RoPE scaling says."""

from __future__ import annotations

from kvroof.catalog.config import Config

MAX_POSITIONS = 2**40
_STATED = ("max_position_embeddings", "max_target_positions")
_ALREADY_COUNTED = ("llama3", "longrope", "su")
"""Scalings whose files state the stretched length."""


def longest_context(config: Config, model_type: str) -> int | None:
    """Return the tokens of the longest sequence, None where the file states no limit.

    A scaling multiplies the stated positions by its `factor`, YaRN the original ones, where it names them.
    Gemma 3 states the stretched length.

    Raises:
        BadInput: A factor that makes no length.

    Source: `_get_and_verify_max_len` of vLLM.
    """
    found = (config.optional_integer(key, maximum=MAX_POSITIONS) for key in _STATED)
    limit = next((tokens for tokens in found if tokens is not None), None)
    if limit is None or model_type.startswith("gemma3"):
        return limit
    factor = 1.0
    for scaling in _scalings(config):
        kind = scaling.text("rope_type", "") or scaling.text("type", "")
        if kind in _ALREADY_COUNTED:
            continue
        factor = scaling.optional_number("factor") or factor
        if kind == "yarn":
            limit = scaling.integer("original_max_position_embeddings", limit, maximum=MAX_POSITIONS)
        if not 1 <= limit * factor <= MAX_POSITIONS:
            scaling.fail("factor", f"{factor:g} makes no context of {limit} positions")
    return int(limit * factor)


def _scalings(config: Config) -> tuple[Config, ...]:
    """Return the RoPE parameters, which a file may give for each kind of layer."""
    whole = config.child("rope_parameters") or config.child("rope_scaling")
    if whole is None:
        return ()
    nested = tuple(whole.child(key) for key, value in whole.data.items() if isinstance(value, dict))
    return tuple(one for one in nested if one is not None) or (whole,)
