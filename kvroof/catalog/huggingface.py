"""A Hugging Face `config.json` -> `Architecture`: which family, which part is the decoder, what is unread."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from kvroof.catalog.config import Config
from kvroof.catalog.families import FAMILIES, build
from kvroof.catalog.names import closest
from kvroof.catalog.quantization import read_quantization, store, stored_dtype
from kvroof.catalog.towers import TOWER_KEYS, read_towers
from kvroof.ground.errors import BadInput, Unsupported
from kvroof.spec.architecture import Architecture
from kvroof.spec.weights import unquantised

NESTED = ("text_config", "language_config", "llm_config")
"""Where multimodal configs keep their decoder."""

_STRUCTURE = frozenset(
    "attention attn cache window head heads expert experts layer layers rank state states kv moe".split()
)
"""Words that say a key is about structure, and so about cost."""

_HARMLESS = frozenset(
    """
    attention_dropout attention_probs_dropout_prob attention_softmax_in_fp32 attn_implementation
    attn_dropout_prob attn_logit_softcapping attn_pdrop attention_value_scale cache_implementation
    _attn_implementation _attn_implementation_autoset layer_norm_eps layer_norm_epsilon layerdrop
    output_attentions output_hidden_states query_pre_attn_scalar router_aux_loss_coef use_cache
    moe_router_dtype output_router_logits qk_head_dim ep_size moe_loss_weight
    layer_norm_rms_epsilon expert_dropout attention_multiplier head_dtype initial_context_length
    experts_per_token pruned_heads use_flash_attn scale_attn_weights flash_attn
    """.split()
)
"""Structural-sounding keys of known families that change no shape, no cache and no cost."""

_SCALING_ONLY = frozenset(
    {"rope_scaling", "rope_parameters", "auto_map", "generation_config", "task_specific_params"}
)


class Imported(NamedTuple):
    """An architecture, and the part of its config that decided it."""

    architecture: Architecture
    config: dict[str, Any]


def read_architecture(
    data: Mapping[str, Any],
    where: str,
    name: str,
    ignore: Collection[str] = (),
    side: Mapping[str, Any] | None = None,
) -> Imported:
    """Return the architecture that a `config.json` describes.

    Args:
        data: The file's object.
        where: How errors name the file.
        name: What the model is called.
        ignore: Keys to treat as absent (`--ignore-key`), at any depth.
        side: ModelOpt's `hf_quant_config.json` beside the config.

    Raises:
        BadInput: A key that decides the size is missing, of another type or out of bounds.
        Unsupported: An unknown `model_type`, quantization or tower, or a structural key that is not
            understood.
    """
    root = Config(_without(data, frozenset(ignore)), where)
    text = next((child for key in NESTED if (child := root.child(key)) is not None), root)
    model_type = _family_name(root, text)
    decoder = build(text, FAMILIES[model_type])
    dtype = stored_dtype(root, text)
    quantization = read_quantization(root, text, Config(side, where) if side is not None else None)
    towers = read_towers(root, root.text("model_type", ""), decoder.hidden_size)
    limit = text.optional_integer("max_position_embeddings", maximum=2**40)
    for config in {id(c): c for c in (root, text)}.values():
        _refuse_unread(config)
    architecture = Architecture(
        name=name,
        model_type=model_type,
        hidden_size=decoder.hidden_size,
        vocab_size=decoder.vocab_size,
        layers=decoder.layers,
        order=decoder.order,
        embedding=decoder.embedding,
        lm_head=decoder.lm_head,
        tied=decoder.tied,
        final=decoder.final,
        shared=decoder.shared,
        towers=decoder.towers + towers,
        formats=unquantised(dtype),
        dtype=dtype.name,
        max_position_embeddings=limit,
    )
    if quantization is not None:
        architecture = store(architecture, quantization)
    return Imported(architecture, root.kept())


def _family_name(root: Config, text: Config) -> str:
    """Return the known `model_type`: the file's own, else that of its nested decoder."""
    outer, inner = root.text("model_type", ""), text.text("model_type", "")
    for candidate in (outer, inner):
        if candidate in FAMILIES:
            return candidate
    found = outer or inner
    if not found:
        raise BadInput("missing, so the architecture is unknown", where=root.where, key="model_type")
    raise Unsupported(
        f"{found!r} is not an architecture kvroof understands",
        where=root.where,
        key="model_type",
        way_out=closest(found, FAMILIES) or "CONTRIBUTING.md says how to add a family",
    )


def _refuse_unread(config: Config) -> None:
    """Refuse a key that names structure and that no builder asked for; null, false and empty are off."""
    for key, value in config.data.items():
        if key in config.read | config.known or key in _HARMLESS or key in _SCALING_ONLY or key in TOWER_KEYS:
            continue
        off = value is None or value is False or value == [] or value == {}
        if off or not _STRUCTURE & set(re.split(r"[_.\-\s]+", key.lower())):
            continue
        raise Unsupported(
            "names structure, and this family is not known to have it",
            where=config.where,
            key=config.path + key,
            way_out=f"if it changes neither shapes nor cache, pass --ignore-key {key}",
        )


def _without(data: Mapping[str, Any], ignore: frozenset[str]) -> dict[str, Any]:
    return {
        key: _without(value, ignore) if isinstance(value, dict) else value
        for key, value in data.items()
        if key not in ignore
    }
