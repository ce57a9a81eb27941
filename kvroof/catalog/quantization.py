"""How a checkpoint stores its weights and its KV cache, read from its quantization config.

Sources: the quantizer configs of transformers and vLLM (`fp8`, `fbgemm_fp8`, `compressed-tensors`,
`awq`, `gptq`, `mxfp4`, `bitsandbytes`), and ModelOpt's `hf_quant_config.json`. Scales are counted: one
fp32 per fp8 block or channel, fp16 per int4 group (and AWQ's or GPTQ's packed zero points), one fp8 per
16 NVFP4 elements, one 8-bit exponent per 32 mxfp4 elements.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvroof.catalog.config import Config
from kvroof.catalog.modules import Modules, layer_modules, stems_in
from kvroof.ground.dtypes import DTYPES, Dtype, parse_dtype
from kvroof.ground.errors import Unsupported
from kvroof.spec.architecture import Architecture, Layer, stack
from kvroof.spec.weights import WHOLE, Format, StoredAs, WeightFormats

FP16_BITS, FP32_BITS = 16, 32
KV_DTYPES = {"FP8": "fp8", "NVFP4": "nvfp4", "INT8": "int8"}


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Modules that are stored in `format`: those `included`, less those `excluded`."""

    format: Format
    included: Modules
    excluded: Modules


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """What a checkpoint says of its storage: rules in order, the first that names a module decides."""

    name: str
    rules: tuple[Rule, ...]
    kv_dtype: str | None = None

    def format_of(self, modules: Sequence[str]) -> Format | None:
        """Return the format of a matrix by the names it may have, None where it is not quantised."""
        for rule in self.rules:
            named = any(rule.included.match(m) for m in modules)
            if named and not any(rule.excluded.match(m) for m in modules):
                return rule.format
        return None

    @functools.cached_property
    def stems(self) -> tuple[str, ...]:
        """The spellings of the layer list that the rules use."""
        return stems_in(m for rule in self.rules for m in (rule.included, rule.excluded))

    def formats(self, layer: Layer, index: int, rest: Format) -> WeightFormats:
        """Return the storage of the layer at `index`, what is not quantised as `rest`."""
        stored = []
        for weight in layer.weights:
            modules = tuple(layer_modules(weight, index, self.stems))
            found = self.format_of(modules) if modules else None
            if found is not None:
                stored.append(StoredAs(what=weight.name, format=found))
        return WeightFormats(name=self.name, default=rest, exceptions=tuple(stored))


def store(model: Architecture, quantization: Quantization) -> Architecture:
    """Return `model` with every layer stored as the checkpoint says, equal layers grouped anew."""
    rest = model.formats.default
    layers = [model.layers[group].layer for group in model.order]
    stored = [
        replace(layer, formats=quantization.formats(layer, index, rest)) for index, layer in enumerate(layers)
    ]
    groups, order = stack(stored)
    named = replace(model.formats, name=quantization.name)
    return replace(model, layers=groups, order=order, formats=named, kv_dtype=quantization.kv_dtype)


def read_quantization(root: Config, text: Config, side: Config | None) -> Quantization | None:
    """Return what `quantization_config`, or ModelOpt's side file, says; None for a plain checkpoint.

    Raises:
        Unsupported: A method or a number of bits that is not known; its bytes are not guessed.
    """
    config = root.child("quantization_config") or text.child("quantization_config")
    if side is not None:
        return _modelopt(side.child("quantization") or side, config)
    if config is None:
        return None
    method = config.text("quant_method", "")
    if not method and config.boolean("load_in_4bit", False):
        method = "bitsandbytes"
    if method in ("modelopt", "modelopt_fp4") or (not method and config.has("quant_algo")):
        return _modelopt(config, config)
    if method == "compressed-tensors":
        return _compressed_tensors(config)
    if method in _METHODS:
        excluded = Modules.of(config.array("modules_to_not_convert", str))
        return Quantization(name=method, rules=(_linear(_METHODS[method](config), excluded),))
    raise Unsupported(
        f"quantization method {method!r} is not understood",
        where=root.where,
        key="quantization_config.quant_method",
        way_out="give the storage by hand with --weights-dtype and --ignore-key quantization_config",
    )


def stored_dtype(root: Config, text: Config) -> Dtype:
    """Return the dtype of what is not quantised: the config's, else bf16."""
    name = root.text("torch_dtype", "") or text.text("torch_dtype", "") or "bf16"
    return parse_dtype(name, root.where)


def _linear(format_: Format, excluded: Modules) -> Rule:
    return Rule(format=format_, included=Modules.linear(), excluded=excluded)


def _fp8(config: Config) -> Format:
    """Return fp8 with one fp32 scale per block, or one per tensor."""
    block = config.array("weight_block_size", int)
    if block is not None and (len(block) != 2 or min(block) < 1):
        config.fail("weight_block_size", f"{block[:4]} is not a number of rows and of columns")
    scale = (block[1], block[0]) if block else (WHOLE, WHOLE)
    return Format(dtype=DTYPES["fp8"], scale_block=scale, scale_bits=FP32_BITS)


def _fp8_channels(config: Config) -> Format:
    """Return fp8 with one fp32 scale per output feature (FBGEMM)."""
    return Format(dtype=DTYPES["fp8"], scale_block=(WHOLE, 1), scale_bits=FP32_BITS)


def _int_groups(config: Config, bits_key: str, zero_points: bool) -> Format:
    """Return packed integers with an fp16 scale, and maybe a zero point, per group of inputs."""
    bits = config.integer(bits_key, 4)
    group = config.integer("group_size", 128, minimum=-1)
    if group == 0:
        config.fail("group_size", "0 is not a number of inputs", "-1 means all of them")
    zero = bits if zero_points else 0
    return _grouped_ints(config, bits, WHOLE if group < 1 else group, FP16_BITS + zero)


def _grouped_ints(config: Config, bits: int, group: int, scale_bits: int) -> Format:
    if bits not in (4, 8):
        raise Unsupported(f"integers of {bits} bits are not understood", where=config.where, key=config.path)
    dtype = DTYPES["int4"] if bits == 4 else DTYPES["int8"]
    return Format(dtype=dtype, scale_block=(group, 1), scale_bits=scale_bits)


def _awq(config: Config) -> Format:
    """Return AWQ's packed integers; the zero points are packed alike."""
    key = "bits" if config.has("bits") else "w_bit"
    return _int_groups(config, key, config.boolean("zero_point", True))


def _gptq(config: Config) -> Format:
    """Return GPTQ's packed integers; zero points are stored even when symmetric."""
    return _int_groups(config, "bits", True)


def _mxfp4(config: Config) -> Format:
    """Return mxfp4, its scales in the dtype."""
    return Format(dtype=DTYPES["mxfp4"])


def _bitsandbytes(config: Config) -> Format:
    """Return NF4 or fp4 with an fp32 maximum per 64 elements, or int8 with one scale per row."""
    if config.boolean("load_in_4bit", False):
        return Format(dtype=DTYPES["int4"], scale_block=(64, 1), scale_bits=FP32_BITS)
    return Format(dtype=DTYPES["int8"], scale_block=(WHOLE, 1), scale_bits=FP32_BITS)


_METHODS = {
    "fp8": _fp8,
    "fbgemm_fp8": _fp8_channels,
    "awq": _awq,
    "gptq": _gptq,
    "mxfp4": _mxfp4,
    "bitsandbytes": _bitsandbytes,
}


def _compressed_tensors(config: Config) -> Quantization:
    """Return the groups of a compressed-tensors config, and its KV scheme."""
    excluded = Modules.of(config.array("ignore", str))
    groups = config.child("config_groups")
    rules = []
    for key in groups.data if groups is not None else ():
        group = groups.child(key) if groups is not None else None
        weights = group.child("weights") if group is not None else None
        if group is None or weights is None:
            continue
        included = Modules.of(group.array("targets", str))
        rules.append(Rule(format=_scheme(weights), included=included, excluded=excluded))
    scheme = config.child("kv_cache_scheme")
    kv_dtype = None
    if scheme is not None:
        kv_dtype = "fp8" if scheme.text("type", "float") == "float" else "int8"
    name = config.text("format", "compressed-tensors")
    return Quantization(name=name, rules=tuple(rules), kv_dtype=kv_dtype)


def _scheme(weights: Config) -> Format:
    """Return the format of a compressed-tensors weight scheme."""
    bits, kind = weights.integer("num_bits", 8), weights.text("type", "int")
    strategy = weights.text("strategy", "group" if weights.has("group_size") else "tensor")
    group = weights.integer("group_size", 128, minimum=-1) if strategy in ("group", "tensor_group") else WHOLE
    if (bits, kind) == (4, "float"):
        return Format(dtype=DTYPES["mxfp4" if group == 32 else "nvfp4"])
    if (bits, kind) == (8, "float"):
        block = {"block": (128, 128), "channel": (WHOLE, 1), "tensor": (WHOLE, WHOLE)}.get(
            strategy, (group, 1)
        )
        return Format(dtype=DTYPES["fp8"], scale_block=block, scale_bits=FP32_BITS)
    if (bits, kind) == (8, "int"):
        return Format(dtype=DTYPES["int8"], scale_block=(group, 1), scale_bits=FP16_BITS)
    return _grouped_ints(weights, bits, group, FP16_BITS)


def _modelopt(config: Config, groups: Config | None) -> Quantization:
    """Return ModelOpt's algorithm, its exclusions, and what it says of the KV cache."""
    excluded = Modules.of(
        config.array("exclude_modules", str)
        or config.array("ignore", str)
        or (groups.array("ignore", str) if groups is not None else None)
    )
    listed = config.child("quantized_layers")
    algorithm = config.text("quant_algo", "MIXED_PRECISION" if listed is not None else "")
    rules: list[Rule] = []
    if listed is not None:
        named: dict[Format, list[str]] = {}
        for module in listed.data:
            entry = listed.child(module)
            chosen = _algorithm(listed, entry.text("quant_algo", "") if entry is not None else "")
            named.setdefault(chosen, []).append(module)
        rules += [
            Rule(format=chosen, included=Modules.of(modules), excluded=Modules.of(None))
            for chosen, modules in named.items()
        ]
    elif algorithm:
        rules.append(_linear(_algorithm(config, algorithm), excluded))
    return Quantization(
        name=algorithm.lower() or "modelopt", rules=tuple(rules), kv_dtype=_kv_dtype(config, groups)
    )


def _kv_dtype(config: Config, groups: Config | None) -> str | None:
    """Return the KV dtype that ModelOpt names, else the scheme beside it."""
    algorithm: Any = config.text("kv_cache_quant_algo", "")
    if algorithm:
        if algorithm not in KV_DTYPES:
            config.fail("kv_cache_quant_algo", f"{algorithm!r} is not understood")
        return KV_DTYPES[algorithm]
    scheme = groups.child("kv_cache_scheme") if groups is not None else None
    if scheme is None:
        return None
    return "fp8" if scheme.integer("num_bits", 8) == 8 else "nvfp4"


def _algorithm(config: Config, name: str) -> Format:
    """Return the format of one of ModelOpt's algorithms."""
    if "NVFP4" in name:
        return Format(dtype=DTYPES["nvfp4"])
    if name == "FP8":
        return Format(dtype=DTYPES["fp8"], scale_block=(WHOLE, WHOLE), scale_bits=FP32_BITS)
    if name in ("W4A16_AWQ", "W4A8_AWQ"):
        return Format(dtype=DTYPES["int4"], scale_block=(128, 1), scale_bits=FP16_BITS)
    if name in ("MXFP4", "W4A8_MXFP4_FP8"):
        return Format(dtype=DTYPES["mxfp4"])
    config.fail("quant_algo", f"{name!r} is not understood")
