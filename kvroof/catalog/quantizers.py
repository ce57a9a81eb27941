"""Checkpoints of quantisers whose config is a tree of its own: AMD's Quark, HQQ, torchao, BitNet.

Sources: Quark's documentation of its exported config, and vLLM's `quark` schemes; HQQ's
`BaseQuantizeConfig`; torchao's `config_to_dict` and `quantize_`; transformers' `pack_weights` of BitNet.
"""

from __future__ import annotations

from kvroof.catalog.config import Config
from kvroof.catalog.modules import Modules
from kvroof.catalog.schemes import FP16_BITS, FP32_BITS
from kvroof.catalog.storage import Quantization, Rule
from kvroof.catalog.unread import refuse_unread
from kvroof.ground.dtypes import DTYPES, Dtype
from kvroof.spec.weights import WHOLE, Format

TERNARY = Dtype(name="int2", block_elements=4, block_bytes=1)
"""BitNet's weights, four of them in a byte."""
_BY_HAND = "give the storage by hand with --weights-dtype and --ignore-key quantization_config"
_INTS = {4: "int4", 8: "int8"}
_QUARK = {"fp8_e4m3": "fp8", "int8": "int8", "fp4": "mxfp4", "fp4_e2m1": "mxfp4"}
_BLOCKS = {"per_tensor": (WHOLE, WHOLE), "per_channel": (WHOLE, 1)}
_QUARK_SAYS_HOW = (
    "algo_config",
    "ch_axis",
    "export",
    "group_size",
    "is_dynamic",
    "kv_cache_post_rope",
    "log_severity_level",
    "mx_element_dtype",
    "observer_cls",
    "quant_mode",
    "round_method",
    "scale_calculation_mode",
    "scale_type",
    "softmax_quant_spec",
    "symmetric",
    "zero_point_type",
)
_TORCHAO = {
    "Float8DynamicActivationFloat8WeightConfig": Format(
        dtype=DTYPES["fp8"], scale_block=(WHOLE, 1), scale_bits=FP32_BITS
    ),
    "Float8WeightOnlyConfig": Format(dtype=DTYPES["fp8"], scale_block=(WHOLE, 1), scale_bits=FP32_BITS),
    "Int8DynamicActivationInt8WeightConfig": Format(
        dtype=DTYPES["int8"], scale_block=(WHOLE, 1), scale_bits=FP16_BITS
    ),
    "Int8WeightOnlyConfig": Format(dtype=DTYPES["int8"], scale_block=(WHOLE, 1), scale_bits=FP16_BITS),
}


def _everywhere(name: str, format_: Format, excluded: Modules) -> Quantization:
    rule = Rule(format=format_, included=Modules.linear(), excluded=excluded)
    return Quantization(name=name, rules=(rule,))


def hqq(config: Config, text: Config) -> Quantization:
    """Return HQQ's packed integers with a scale and a zero of 16 bits per group.

    Raises:
        BadInput: Another number of bits, or scales that are quantised themselves.
    """
    outer = config.child("quant_config")
    params = outer.child("weight_quant_params") if outer is not None else None
    if outer is None or params is None:
        config.fail("quant_config", "has no weight_quant_params for all layers", _BY_HAND)
    for key in ("scale_quant_params", "zero_quant_params"):
        if outer.has(key):
            outer.fail(key, "scales that are quantised themselves are not understood", _BY_HAND)
    bits = params.integer("nbits", 4)
    if bits not in _INTS:
        params.fail("nbits", f"{bits} bits are not understood", _BY_HAND)
    params.read_nothing(("axis", "channel_wise", "optimize", "round_zero", "view_as_float"))
    outer.read_nothing(("offload_meta",))
    block = (params.integer("group_size", 64), 1)
    format_ = Format(dtype=DTYPES[_INTS[bits]], scale_block=block, scale_bits=2 * FP16_BITS)
    for part in (params, outer):
        refuse_unread(part)
    return _everywhere("hqq", format_, Modules.of(config.array("skip_modules", str) or ["lm_head"]))


def torchao(config: Config, text: Config) -> Quantization:
    """Return torchao's weights: int4 with a bf16 scale and zero per group, else one scale per row.

    Raises:
        BadInput: Another type of weights, or embeddings that are quantised too.
    """
    if config.boolean("include_input_output_embeddings", False):
        config.fail("include_input_output_embeddings", "quantised embeddings are not understood", _BY_HAND)
    if not isinstance(config.data.get("quant_type"), dict):
        config.fail("quant_type", "is not a torchao config with a name", _BY_HAND)
    chosen = config.child("quant_type")
    default = chosen.child("default") if chosen is not None and set(chosen.data) == {"default"} else None
    if default is None:
        config.fail("quant_type", "does not say one type for all layers", _BY_HAND)
    name, data = default.text("_type"), default.child("_data") or default
    format_ = _TORCHAO.get(name)
    if name == "Int4WeightOnlyConfig":
        block = (data.integer("group_size", 128), 1)
        format_ = Format(dtype=DTYPES["int4"], scale_block=block, scale_bits=2 * FP16_BITS)
    if format_ is None:
        default.fail("_type", f"{name!r:.60} is not understood", _BY_HAND)
    config.read_nothing(("quant_type_kwargs", "untie_embedding_weights"))
    return _everywhere("torchao", format_, Modules.of(config.array("modules_to_not_convert", str)))


def bitnet(config: Config, text: Config) -> Quantization:
    """Return BitNet's ternary weights, with one scale of 16 bits per matrix."""
    config.read_nothing(("linear_class", "quantization_mode", "rms_norm_eps", "use_rms_norm"))
    format_ = Format(dtype=TERNARY, scale_block=(WHOLE, WHOLE), scale_bits=FP16_BITS)
    return _everywhere("bitnet", format_, Modules.of(config.array("modules_to_not_convert", str)))


def quark(config: Config, text: Config) -> Quantization:
    """Return Quark's weights: those of a layer's own pattern first, then those of all other layers.

    Raises:
        BadInput: A dtype, or a scheme of scales, whose bytes are not known.
    """
    excluded = Modules.of(config.array("exclude", str))
    whole, own = config.child("global_quant_config"), config.child("layer_quant_config")
    if whole is None:
        config.fail("global_quant_config", "missing, and it decides the size", _BY_HAND)
    if config.data.get("layer_type_quant_config"):
        config.fail("layer_type_quant_config", "is not understood", _BY_HAND)
    listed = [] if own is None else [(pattern, own.child(pattern)) for pattern in own.data]
    rules = [
        Rule(format=_quark_weight(part), included=Modules.of([pattern]), excluded=excluded)
        for pattern, part in listed
        if part is not None
    ]
    rules.append(Rule(format=_quark_weight(whole), included=Modules.linear(), excluded=excluded))
    config.read_nothing(("layer_type_quant_config", *_QUARK_SAYS_HOW))
    return Quantization(name="quark", rules=tuple(rules), kv_dtype=_quark_cache(config, own))


def _quark_weight(part: Config) -> Format | None:
    """Return the format of a part's weights, None where it leaves them as they were."""
    if not part.has("weight"):
        return None
    if not isinstance(part.data["weight"], dict):
        part.fail("weight", "several stages of quantising are not understood", _BY_HAND)
    weight = part.child("weight")
    assert weight is not None
    dtype, scheme = weight.text("dtype"), weight.text("qscheme", "per_tensor")
    weight.read_nothing((*_QUARK_SAYS_HOW, "scale_format"))
    refuse_unread(weight)
    if dtype not in _QUARK:
        weight.fail("dtype", f"{dtype!r:.40} is not understood", _BY_HAND)
    if _QUARK[dtype] == "mxfp4":
        if scheme != "per_group" or weight.integer("group_size", 32) != 32:
            weight.fail("qscheme", "fp4 is understood with one scale per group of 32", _BY_HAND)
        if weight.text("scale_format", "e8m0") != "e8m0":
            weight.fail("scale_format", "fp4 is understood with scales in e8m0", _BY_HAND)
        return Format(dtype=DTYPES["mxfp4"])
    if scheme not in _BLOCKS:
        weight.fail("qscheme", f"{scheme!r:.40} is not understood of {dtype}", _BY_HAND)
    return Format(dtype=DTYPES[_QUARK[dtype]], scale_block=_BLOCKS[scheme], scale_bits=FP32_BITS)


def _quark_cache(config: Config, own: Config | None) -> str | None:
    """Return the dtype of the outputs of the key and value projections, which is the cache's."""
    said = config.child("kv_cache_quant_config")
    said = own if said is None or not said.data else said
    found = set()
    for pattern in said.data if said is not None else ():
        if said is not None and pattern.endswith(("k_proj", "v_proj")):
            part = said.child(pattern)
            output = part.child("output_tensors") if part is not None else None
            found |= {output.text("dtype", "")} if output is not None else set()
    if not found:
        return None
    if found != {"fp8_e4m3"}:
        config.fail("kv_cache_quant_config", "is not an fp8 cache", "give the cache's dtype with --kv-dtype")
    return "fp8"
