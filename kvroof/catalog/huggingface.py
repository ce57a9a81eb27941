"""A Hugging Face `config.json` -> `Architecture`: which family, which part is the decoder, what is unread."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from kvroof.catalog.config import Config
from kvroof.catalog.families import FAMILIES, build
from kvroof.catalog.multimodal import Parts, filled, is_tied, take_apart
from kvroof.catalog.names import closest
from kvroof.catalog.positions import longest_context
from kvroof.catalog.quantization import read_quantization, stored_dtype
from kvroof.catalog.storage import store
from kvroof.catalog.towers import TOWER_KEYS, TOWERS, read_towers
from kvroof.ground.dtypes import DTYPES, parse_dtype
from kvroof.ground.errors import BadInput, Unsupported
from kvroof.spec.architecture import Architecture
from kvroof.spec.weights import unquantised

_STRUCTURE = frozenset(
    "attention attn cache window head heads expert experts layer layers rank state states kv moe mla ssm"
    " compress indexer latent yoco".split()
)
"""Words that say a key is about structure, and so about cost."""

_HARMLESS = frozenset(
    """
    _attn_implementation _attn_implementation_autoset _flash_attn_2_enabled adapter_layer_norm_eps
    attention_dropout attention_dropout_prob attention_multiplier attention_probs_dropout_prob
    attention_softmax_in_fp32 attention_value_scale attn_dropout_prob attn_implementation
    attn_logit_softcapping attn_pdrop cache_implementation compress_rope_theta ep_size expert_dropout
    experts_per_token flash_attn head_dtype initial_context_length insert_layer_id layer_norm_eps
    layer_norm_epsilon layer_norm_rms_epsilon layerdrop mla_use_nope mm_vision_select_layer moe_loss_weight
    moe_router_dtype num_reward_heads output_attentions output_hidden_states output_router_logits
    projection_layer_norm_eps pruned_heads qk_head_dim query_pre_attn_scalar router_aux_loss_coef
    scale_attention_softmax_in_fp32 scale_attn_weights select_layer use_cache use_flash_attention
    use_flash_attention_2 use_flash_attn vision_feature_layer vision_feature_select_strategy
    """.split()
)
"""Structural-sounding keys of known families that change no shape, no cache and no cost."""

_SCALING_ONLY = frozenset(
    {"rope_scaling", "rope_parameters", "auto_map", "generation_config", "task_specific_params"}
)

MTP_KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
_NO_TOWER = "the file describes no vision or audio tower, so none is counted"
_NO_DTYPE = "the config names no dtype: bf16 is taken for what is not quantised"
_RENAMED = "if it is a renamed llama or qwen2, set model_type to that"


class Imported(NamedTuple):
    """An architecture, and the parts of its config and of the side file that decided it."""

    architecture: Architecture
    config: dict[str, Any]
    side: dict[str, Any] | None


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
    root = Config(filled(_without(data, frozenset(ignore))), where)
    parts = take_apart(root, FAMILIES)
    text, model_type = parts.text, _family_name(parts)
    family = FAMILIES[model_type]
    decoder = build(text, family)
    said = stored_dtype(root, text)
    dtype = said or DTYPES["bf16"]
    beside = Config(side, where) if side is not None else None
    quantization = read_quantization(root, text, beside)
    towers = read_towers(parts.scope, parts.outer, decoder.hidden_size)
    state_dtype, mtp_layers = _state_dtype(text), _mtp_layers(text)
    for config in {id(c): c for c in (root, parts.scope, text)}.values():
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
        tied=is_tied(parts, decoder.tied),
        final=decoder.final,
        shared=decoder.shared,
        towers=decoder.towers + towers,
        formats=unquantised(dtype),
        dtype=dtype.name,
        state_dtype=state_dtype,
        mtp_layers=mtp_layers,
        max_position_embeddings=longest_context(text, model_type),
        notes=(*(_NO_TOWER,) * (parts.outer in TOWERS and not towers), *(_NO_DTYPE,) * (said is None)),
    )
    if quantization is not None:
        architecture = store(architecture, quantization, family.parts)
    return Imported(architecture, root.kept(), beside.kept() if beside is not None else None)


def model_types() -> dict[str, str]:
    """Return every `model_type` that is read, sorted, with what it is: a family's, or a model with towers."""
    around = dict.fromkeys(TOWERS, "Towers of pictures, video or sound before a decoder of its own type.")
    return dict(sorted((around | FAMILIES.described()).items()))


def _state_dtype(config: Config) -> str | None:
    """Return the dtype in which the checkpoint says a recurrence is kept, None where it does not say."""
    said = [config.text(key, "") for key in ("mamba_ssm_cache_dtype", "mamba_ssm_dtype")]
    named = [name for name in said if name not in ("", "auto")]
    return parse_dtype(named[0], config.where).name if named else None


def _mtp_layers(config: Config) -> int:
    """Return the layers that a checkpoint has to draft tokens with."""
    said = (config.optional_integer(key, minimum=0, maximum=64) for key in MTP_KEYS)
    return next((layers for layers in said if layers), 0)


def _family_name(parts: Parts) -> str:
    """Return the known `model_type` of the decoder, or refuse one that is not known."""
    wrapped = parts.text is not parts.scope and bool(parts.outer)
    unknown = wrapped and parts.outer not in TOWERS and parts.outer not in FAMILIES
    found = parts.outer if unknown else parts.inner
    if not found:
        raise BadInput("missing, so the architecture is unknown", where=parts.scope.where, key="model_type")
    if unknown or found not in FAMILIES:
        raise Unsupported(
            f"{found!r} is not an architecture kvroof understands",
            where=parts.scope.where,
            key="model_type",
            way_out=f"{closest(found, FAMILIES) or 'see `kvroof list families`;'} {_RENAMED}",
        )
    return found


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
