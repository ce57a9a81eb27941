"""Checkpoints that state a scheme for each group of modules: compressed-tensors, and ModelOpt.

Sources: `QuantizationArgs` of compressed-tensors; ModelOpt's `hf_quant_config.json`, whose layers are
listed by name or are all of one algorithm. Scales are one fp32 per fp8 block or channel, fp16 per int4
group, one fp8 per 16 NVFP4 elements, one 8-bit exponent per 32 mxfp4 elements.
"""

from __future__ import annotations

from kvroof.catalog.config import Config
from kvroof.catalog.modules import Modules
from kvroof.catalog.storage import Quantization, Rule
from kvroof.catalog.unread import refuse_unread
from kvroof.ground.dtypes import DTYPES
from kvroof.spec.weights import WHOLE, Format

FP8_BITS, FP16_BITS, FP32_BITS = 8, 16, 32
KV_DTYPES = {"FP8": "fp8", "NVFP4": "nvfp4", "INT8": "int8"}
MODELOPT_KEYS = (
    "config_groups exclude_modules group_size ignore kv_cache_quant_algo kv_cache_scheme moe_quant_algo"
    " quant_algo quantized_layers"
).split()
"""What ModelOpt says in its side file, and again in the config."""
_ELEMENTS = {("float", 8): "fp8", ("int", 8): "int8", ("float", 4): "nvfp4", ("int", 4): "int4"}


def compressed_tensors(config: Config) -> Quantization:
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
        refuse_unread(weights)
        refuse_unread(group)
    _check_dense(config)
    name = config.text("format", "compressed-tensors")
    return Quantization(name=name, rules=tuple(rules), kv_dtype=_kv_scheme(config))


def _check_dense(config: Config) -> None:
    """Refuse weights that are stored without their zeros, and transforms that may store matrices.

    A `sparsity_config` whose format is dense describes weights that are stored whole.
    """
    sparsity = config.child("sparsity_config")
    if sparsity is not None and sparsity.text("format", "dense") != "dense":
        sparsity.fail("format", "is a sparse storage, which is not understood")
    transforms = config.child("transform_config")
    groups = None if transforms is None else transforms.child("config_groups")
    if transforms is not None and groups is not None and groups.data:
        transforms.fail("config_groups", "may store matrices of their own, which are not understood")


def _elements(scheme: Config, kind: str) -> str:
    """Return the dtype of a scheme's elements, whose type is `kind` where it does not say.

    Raises:
        BadInput: A type, or a number of bits of it, that is not known.
    """
    kind, bits = scheme.text("type", kind), scheme.integer("num_bits", 8)
    if (kind, bits) not in _ELEMENTS:
        scheme.fail("num_bits", f"{bits} bits of type {kind!r} are not understood")
    return _ELEMENTS[kind, bits]


def _scheme(weights: Config) -> Format:
    """Return the format of a compressed-tensors weight scheme; zero points are as wide as elements."""
    elements = _elements(weights, "int")
    strategy = weights.text("strategy", "group" if weights.has("group_size") else "tensor")
    group = weights.integer("group_size", 128, minimum=-1) if strategy in ("group", "tensor_group") else WHOLE
    zero = 0 if weights.boolean("symmetric", True) else DTYPES[elements].row_bytes(2) * 4
    if elements == "nvfp4":
        return Format(dtype=DTYPES["mxfp4" if group == 32 else "nvfp4"])
    if elements == "fp8":
        rows = {"block": _block(weights), "channel": (WHOLE, 1), "tensor": (WHOLE, WHOLE)}
        return Format(dtype=DTYPES["fp8"], scale_block=rows.get(strategy, (group, 1)), scale_bits=FP32_BITS)
    return Format(dtype=DTYPES[elements], scale_block=(group, 1), scale_bits=FP16_BITS + zero)


def _block(weights: Config) -> tuple[int, int]:
    """Return the (input, output) features of a block; the file says rows, which are outputs, first."""
    said = weights.array("block_structure", int) or [128, 128]
    if len(said) != 2 or min(said) < 1:
        weights.fail("block_structure", "is not a number of rows and of columns")
    return said[1], said[0]


def _kv_scheme(config: Config) -> str | None:
    """Return the dtype of a `kv_cache_scheme`, None for none; its scales are one per tensor or head.

    Raises:
        BadInput: A dtype that no engine keeps a cache in, or one whose bytes are not known.
    """
    scheme = config.child("kv_cache_scheme")
    if scheme is None:
        return None
    found = _elements(scheme, "float")
    if found not in KV_DTYPES.values():
        scheme.fail("num_bits", f"a cache in {found} is not understood", "give it with --kv-dtype")
    if found == "nvfp4" and scheme.integer("group_size", 16) != 16:
        scheme.fail("group_size", "is not NVFP4's 16", "give the cache's dtype with --kv-dtype")
    scheme.read_nothing(("group_size", "strategy", "symmetric"))
    refuse_unread(scheme)
    return found


def modelopt(config: Config, beside: Config, rest: tuple[Rule, ...]) -> Quantization:
    """Return ModelOpt's algorithm, its exclusions, and what it says of the KV cache.

    Args:
        config: What states the algorithm, the side file where there is one.
        beside: The `quantization_config`, whose exclusions and KV scheme count where `config` has none.
        rest: How the method that ModelOpt started from stores what it leaves alone.
    """
    excluded = Modules.of(
        config.array("exclude_modules", str) or config.array("ignore", str) or beside.array("ignore", str)
    )
    listed = config.child("quantized_layers")
    algorithm = config.text("quant_algo", "MIXED_PRECISION" if listed is not None else "")
    rules: list[Rule] = []
    if listed is not None:
        named: dict[Format, list[str]] = {}
        for module in listed.data:
            entry = listed.child(module)
            if entry is not None:
                named.setdefault(_algorithm(entry), []).append(module)
                refuse_unread(entry)
        rules += [
            Rule(format=chosen, included=Modules.of(modules), excluded=Modules.of(None))
            for chosen, modules in named.items()
        ]
    elif algorithm:
        rules.append(Rule(format=_algorithm(config), included=Modules.linear(), excluded=excluded))
    if rules:
        # They say once more what the algorithm says; AWQ's own scales are one vector to a matrix.
        config.read_nothing(("config_groups", "group_size", "moe_quant_algo", "pre_quant_scale"))
    kv_dtype = _kv_algorithm(config) or _kv_scheme(beside)
    name = algorithm.lower() or "modelopt"
    return Quantization(name=name, rules=(*rules, *rest), head=_head(rules), kv_dtype=kv_dtype)


def _head(rules: list[Rule]) -> Format | None:
    """Return the format of a head that is named, None where the rules speak of layers."""
    named = (r for r in rules if r.included != Modules.linear() and r.included.match("lm_head"))
    return next((rule.format for rule in named), None)


def _kv_algorithm(config: Config) -> str | None:
    """Return the KV dtype that ModelOpt names."""
    algorithm = config.text("kv_cache_quant_algo", "")
    if algorithm and algorithm not in KV_DTYPES:
        config.fail("kv_cache_quant_algo", f"{algorithm!r} is not understood")
    return KV_DTYPES[algorithm] if algorithm else None


def _algorithm(config: Config) -> Format:
    """Return the format of one of ModelOpt's algorithms."""
    name = config.text("quant_algo", "")
    if "NVFP4" in name:
        _group(config, 16)
        return Format(dtype=DTYPES["nvfp4"])
    if name == "FP8":
        return Format(dtype=DTYPES["fp8"], scale_block=(WHOLE, WHOLE), scale_bits=FP32_BITS)
    if name in ("W4A16_AWQ", "W4A8_AWQ"):
        group = config.integer("group_size", 128)
        return Format(dtype=DTYPES["int4"], scale_block=(group, 1), scale_bits=FP16_BITS)
    if name in ("MXFP4", "W4A8_MXFP4_FP8"):
        _group(config, 32)
        return Format(dtype=DTYPES["mxfp4"])
    if name == "MXFP8":
        _group(config, 32)
        return Format(dtype=DTYPES["fp8"], scale_block=(32, 1), scale_bits=8)
    config.fail("quant_algo", f"{name!r} is not understood")


def _group(config: Config, size: int) -> None:
    """Refuse elements that share a scale by another number than their dtype says."""
    if config.integer("group_size", size) != size:
        config.fail("group_size", f"is not {size}, the elements that share a scale in this format")
