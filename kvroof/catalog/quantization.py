"""How a checkpoint stores its weights and its KV cache, read from its quantization config.

Sources: the quantizer configs of transformers, GPTQModel and vLLM (`fp8`, `fbgemm_fp8`, `awq`, `gptq`,
`mxfp4`, `bitsandbytes`). Scales are counted: one fp32 per fp8 block or channel, fp16 per int4 group
(and AWQ's or GPTQ's packed zero points), one 8-bit exponent per 32 mxfp4 elements.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kvroof.catalog.config import Config
from kvroof.catalog.modules import STEMS, Modules
from kvroof.catalog.quantizers import bitnet, hqq, quark, torchao
from kvroof.catalog.schemes import FP8_BITS, FP16_BITS, FP32_BITS, MODELOPT_KEYS, compressed_tensors, modelopt
from kvroof.catalog.storage import Quantization, Rule
from kvroof.catalog.unread import refuse_unread
from kvroof.ground.dtypes import DTYPES, Dtype, parse_dtype
from kvroof.ground.errors import Unsupported
from kvroof.spec.weights import WHOLE, Format

_PLACES = ("quantization_config", "compression_config", "quantization")
"""Where a config says how it is stored; the second is older, the third is MLX's, which is not understood."""
_HEADS = ("lm_head", "model.lm_head", "language_model.lm_head")


def read_quantization(root: Config, text: Config, side: Config | None) -> Quantization | None:
    """Return what `quantization_config`, or ModelOpt's side file, says; None for a plain checkpoint.

    Raises:
        Unsupported: A method, a number of bits or a key that is not known; its bytes are not guessed.
    """
    places = (part.child(key) for part in (root, text) for key in _PLACES)
    config = next((place for place in places if place is not None), None)
    said = side if side is not None else config
    beside = None if said is None else said.child("quantization") or side
    if config is None and beside is None:
        return None
    found = _by_method(config or Config({}, root.where), text, beside)
    for part in (beside, config):
        if part is not None:
            refuse_unread(part)
    return found


def _by_method(config: Config, text: Config, side: Config | None) -> Quantization:
    """Return what the config says, or the side file, which says more than the config beside it."""
    method = config.text("quant_method", "")
    if side is not None or method in ("modelopt", "modelopt_fp4") or config.has("quant_algo"):
        if side is not None:
            config.read_nothing(MODELOPT_KEYS)
        return modelopt(side or config, config, _fp8(config, text).rules if method == "fp8" else ())
    if not method and (config.boolean("load_in_4bit", False) or config.boolean("load_in_8bit", False)):
        method = "bitsandbytes"
    if method == "compressed-tensors":
        return compressed_tensors(config)
    if method in _METHODS:
        return _METHODS[method](config, text)
    raise Unsupported(
        f"quantization method {method!r} is not understood",
        where=config.where,
        key=config.path + "quant_method",
        way_out="give the storage by hand with --weights-dtype and --ignore-key quantization_config",
    )


def stored_dtype(root: Config, text: Config) -> Dtype | None:
    """Return the dtype of what is not quantised, None where the config does not say."""
    name = root.text("torch_dtype", "") or text.text("torch_dtype", "")
    return parse_dtype(name, root.where) if name else None


def _rule(format_: Format, excluded: Modules) -> Rule:
    return Rule(format=format_, included=Modules.linear(), excluded=excluded)


def _but(config: Config, *keys: str) -> Modules:
    """Return the modules that the lists under `keys` leave as they were."""
    return Modules.of(name for key in keys for name in config.array(key, str) or ())


def _fp8(config: Config, text: Config) -> Quantization:
    """Return fp8 with one fp32 scale per block, or one per tensor.

    DeepSeek-V4's experts may be in fp4, with an 8-bit exponent per 32 elements; all scales are 8-bit
    exponents then.

    Source: `expert_dtype` in DeepSeek-V4's config and in vLLM, which reads it.
    """
    block = config.array("weight_block_size", int)
    if block is not None and (len(block) != 2 or min(block) < 1):
        config.fail("weight_block_size", f"{block[:4]} is not a number of rows and of columns")
    scale = (block[1], block[0]) if block else (WHOLE, WHOLE)
    excluded = _but(config, "modules_to_not_convert", "ignored_layers")
    experts = text.text("expert_dtype", "fp8")
    if experts not in ("fp4", "fp8"):
        text.fail("expert_dtype", f"{experts!r} is not understood")
    four = (Rule(format=Format(dtype=DTYPES["mxfp4"]), included=Modules.of(("experts",)), excluded=excluded),)
    bits = FP8_BITS if experts == "fp4" else FP32_BITS
    rest = _rule(Format(dtype=DTYPES["fp8"], scale_block=scale, scale_bits=bits), excluded)
    return Quantization(name="fp8", rules=(*(four if experts == "fp4" else ()), rest))


def _fp8_channels(config: Config, text: Config) -> Quantization:
    """Return fp8 with one fp32 scale per output feature (FBGEMM)."""
    format_ = Format(dtype=DTYPES["fp8"], scale_block=(WHOLE, 1), scale_bits=FP32_BITS)
    return Quantization(name="fbgemm_fp8", rules=(_rule(format_, _but(config, "modules_to_not_convert")),))


def _mxfp4(config: Config, text: Config) -> Quantization:
    """Return mxfp4, its scales in the dtype."""
    format_ = Format(dtype=DTYPES["mxfp4"])
    return Quantization(name="mxfp4", rules=(_rule(format_, _but(config, "modules_to_not_convert")),))


def _int_groups(config: Config, bits: int, group: int, zero_points: bool) -> Format:
    """Return packed integers with an fp16 scale, and maybe a zero point, per group of inputs."""
    if bits not in (4, 8):
        raise Unsupported(f"integers of {bits} bits are not understood", where=config.where, key=config.path)
    if group == 0:
        config.fail("group_size", "0 is not a number of inputs", "-1 means all of them")
    scale = (WHOLE if group < 1 else group, 1)
    dtype = DTYPES["int4" if bits == 4 else "int8"]
    return Format(dtype=dtype, scale_block=scale, scale_bits=FP16_BITS + (bits if zero_points else 0))


def _first(config: Config, keys: tuple[str, str], default: int, minimum: int) -> int:
    """Return the number under either spelling."""
    return config.integer(keys[0] if config.has(keys[0]) else keys[1], default, minimum=minimum)


def _awq(config: Config, text: Config) -> Quantization:
    """Return AWQ's packed integers, in AutoAWQ's or llm-awq's spelling; zero points are packed alike."""
    bits = _first(config, ("bits", "w_bit"), 4, 1)
    group = _first(config, ("group_size", "q_group_size"), 128, -1)
    format_ = _int_groups(config, bits, group, config.boolean("zero_point", True))
    return Quantization(name="awq", rules=(_rule(format_, _but(config, "modules_to_not_convert")),))


def _gptq(config: Config, text: Config) -> Quantization:
    """Return GPTQ's packed integers; zero points are stored even when symmetric.

    `modules_in_block_to_quantize` names all that is quantised. `dynamic` maps regexes to what is else
    with the modules they match from their start: `-:` leaves them as they were, `+:` gives them other
    bits or groups, and the first that matches decides.

    Source: GPTQModel's README (dynamic quantization); vLLM's `gptq_utils`.
    """
    bits, group = config.integer("bits", 4), config.integer("group_size", 128, minimum=-1)
    base = _int_groups(config, bits, group, True)
    if config.text("checkpoint_format", "gptq") not in ("gptq", "gptq_v2"):
        config.fail("checkpoint_format", "is a packing whose bytes are not known")
    if config.text("block_name_to_quantize", STEMS[0]) not in STEMS:
        config.fail("block_name_to_quantize", "is not the list of layers")
    only = []
    if listed := config.array("modules_in_block_to_quantize", (str, list)):
        names = [name for entry in listed for name in (entry if isinstance(entry, list) else [entry])]
        if not all(isinstance(name, str) for name in names):
            config.fail("modules_in_block_to_quantize", "holds something else than names")
        only.append(Rule(format=None, included=Modules.linear(), excluded=Modules.of(names)))
    dynamic = config.child("dynamic")
    rules = [_dynamic(dynamic, pattern, bits, group) for pattern in dynamic.data] if dynamic else []
    rules.append(_rule(base, _but(config, "modules_to_not_convert")))
    found = Quantization(name="gptq", rules=(*only, *rules))
    head = replace(found, rules=tuple(rules)).format_of(_HEADS) if config.boolean("lm_head", False) else None
    return replace(found, head=head)


def _dynamic(dynamic: Config, pattern: str, bits: int, group: int) -> Rule:
    """Return the rule of one regex of GPTQModel's `dynamic`; what it leaves out is as for the rest."""
    own, found = dynamic.child(pattern), None
    if own is not None and not pattern.startswith("-:"):
        group = own.integer("group_size", group, minimum=-1)
        found = _int_groups(own, own.integer("bits", bits), group, True)
        refuse_unread(own)
    named = Modules.of([f"re:{pattern.removeprefix('-:').removeprefix('+:')}"])
    return Rule(format=found, included=named, excluded=Modules.of(None))


def _auto_round(config: Config, text: Config) -> Quantization:
    """Return AutoRound's integers, packed as GPTQ or AWQ pack them; `extra_config` has its own for a module.

    Source: AutoRound's `packing_format`; AutoGPTQ and AutoAWQ both pack a zero point per group.
    """
    packed = config.text("packing_format", "auto_round:auto_gptq").removeprefix("auto_round:")
    if packed not in ("auto_round", "auto_gptq", "gptq", "auto_awq", "awq"):
        config.fail("packing_format", "is a packing whose bytes are not known")
    if config.text("data_type", "int") != "int":
        config.fail("data_type", "is not int, and its bytes are not known")
    bits, group = config.integer("bits", 4), config.integer("group_size", 128, minimum=-1)
    config.read_nothing(("block_name_to_quantize", "model_free", "to_quant_block_names"))
    rules, own = [], config.child("extra_config")
    for module in own.data if own is not None else ():
        part = own.child(module) if own is not None else None
        if part is not None:
            own_bits, own_group = part.integer("bits", bits), part.integer("group_size", group, minimum=-1)
            format_ = None if own_bits >= FP16_BITS else _int_groups(part, own_bits, own_group, True)
            named = Modules.of([f"re:{module}" if "\\" in module or ".*" in module else module])
            rules.append(Rule(format=format_, included=named, excluded=Modules.of(None)))
    base = _int_groups(config, bits, group, True)
    return Quantization(
        name="auto-round", rules=(*rules, _rule(base, _but(config, "modules_to_not_convert")))
    )


def _bitsandbytes(config: Config, text: Config) -> Quantization:
    """Return NF4 or fp4 with a maximum per 64 elements, or int8 with one scale per row.

    A maximum is fp32, or with double quantisation 8 bits and an fp32 per 256 maxima. A list of what to
    skip replaces the usual one, which has the head.

    Source: `BitsAndBytesConfig` and `get_modules_to_not_convert` of transformers; QLoRA (arXiv 2305.14314).
    """
    four, eight = config.boolean("load_in_4bit", False), config.boolean("load_in_8bit", False)
    if four == eight:
        said = "are both true" if four else "say nothing"
        config.fail("load_in_4bit and load_in_8bit", said, "say true of one of them")
    if config.boolean("llm_int8_has_fp16_weight", False):
        config.fail("llm_int8_has_fp16_weight", "keeps the weights in fp16", "leave quantization_config out")
    if not four:
        format_ = Format(dtype=DTYPES["int8"], scale_block=(WHOLE, 1), scale_bits=FP32_BITS)
    elif config.boolean("bnb_4bit_use_double_quant", False):
        format_ = Format(dtype=DTYPES["int4"], scale_block=(64, 64), scale_bits=64 * 8 + FP32_BITS // 4)
    else:
        format_ = Format(dtype=DTYPES["int4"], scale_block=(64, 1), scale_bits=FP32_BITS)
    skipped = _but(config, "llm_int8_skip_modules")
    found = Quantization(name="bitsandbytes", rules=(_rule(format_, skipped),))
    return replace(found, head=found.format_of(_HEADS)) if skipped.patterns else found


_METHODS: dict[str, Callable[[Config, Config], Quantization]] = {
    "fp8": _fp8,
    "fbgemm_fp8": _fp8_channels,
    "awq": _awq,
    "gptq": _gptq,
    "mxfp4": _mxfp4,
    "bitsandbytes": _bitsandbytes,
    "auto-round": _auto_round,
    "bitnet": bitnet,
    "hqq": hqq,
    "quark": quark,
    "torchao": torchao,
}
