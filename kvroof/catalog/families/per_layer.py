"""Dense decoders whose layers differ by a list in the file: searched architectures (NAS), OpenELM, DeciLM."""

from __future__ import annotations

from kvroof.catalog.config import MAX_COUNT, Config
from kvroof.catalog.families.blocks import Reach, Shape, head_shape, heads
from kvroof.catalog.families.family import Family
from kvroof.ground.numeric import ceil_div
from kvroof.spec.architecture import Mixer
from kvroof.spec.cache import State
from kvroof.spec.ffn import FFN, DenseFFN
from kvroof.spec.reach import Full, Sliding
from kvroof.spec.recurrent import Recurrent
from kvroof.spec.weights import Weight

_ATTENTION_OFF = ("num_sink_tokens", "sparsify", "unshifted_sink", "use_prefill_window_in_sink_attention")


def _block(config: Config, layer: int, part: str) -> Config:
    """Return what `block_configs` says of a layer's `attention` or `ffn`.

    Raises:
        BadInput: The list is missing or has another length, or the layer's entry lacks the part.
    """
    blocks = config.array("block_configs", dict, config.integer("num_hidden_layers"))
    if blocks is None:
        config.fail("block_configs", "missing, and it decides the size", "add block_configs")
    block = Config(blocks[layer], config.where, f"{config.path}block_configs[{layer}].")
    found = block.child(part)
    if found is None:
        block.fail(part, "missing, and it decides the size")
    for other in sorted(set(block.data) - {"attention", "ffn"}):
        if block.data[other] not in (None, False, [], {}):
            block.fail(other, "is not a part of a block that kvroof knows")
    return found


def _linear(config: Config, name: str) -> Recurrent:
    """Return the one matrix that stands where attention or an MLP was; it remembers nothing."""
    hidden = config.integer("hidden_size")
    matrix = Weight(name=name, shape=(hidden, hidden), split=hidden, role="ffn")
    return Recurrent(kind="linear", projections=(matrix,), held=State(), scan_flops=0)


def _nas_shape(config: Config, layer: int) -> Shape:
    """Return the heads of a layer; `n_heads_in_group` is how many queries share one KV head."""
    n, group = config.integer("num_attention_heads"), _block(config, layer, "attention")
    size = group.integer("n_heads_in_group")
    if n % size:
        group.fail("n_heads_in_group", f"{size} does not divide {n} attention heads")
    return head_shape(config)._replace(heads=n, kv_heads=n // size)


def _nas_reach(config: Config, layer: int) -> Reach:
    """Return the layer's window, if it has one."""
    size = _block(config, layer, "attention").optional_integer("window_length")
    return Full() if size is None else Sliding(size=size)


_NAS_HEADS = heads(shape=_nas_shape, qkv_bias="attention_bias", o_bias="attention_bias", reach=_nas_reach)


def _nas_mixers(config: Config, layer: int) -> tuple[Mixer, ...]:
    """Return a layer's attention, nothing where it is a `no_op`, and the matrices that replace parts."""
    attention, ffn = _block(config, layer, "attention"), _block(config, layer, "ffn")
    for key in _ATTENTION_OFF:
        if attention.data.get(key) not in (None, False):
            attention.fail(key, "is not known")
    mixers: tuple[Mixer, ...] = ()
    if attention.boolean("replace_with_linear", False):
        mixers = (_linear(config, "linear_attn"),)
    elif not attention.boolean("no_op", False):
        mixers = _NAS_HEADS(config, layer)
    return (*mixers, _linear(config, "linear_mlp")) if ffn.boolean("replace_with_linear", False) else mixers


def _nas_ffns(config: Config, layer: int) -> tuple[FFN, ...]:
    """Return a layer's MLP of `ffn_mult` times two thirds of the residual, rounded up to 256."""
    ffn, hidden = _block(config, layer, "ffn"), config.integer("hidden_size")
    if ffn.boolean("no_op", False) or ffn.boolean("replace_with_linear", False):
        return ()
    for key in ("sparsify", "moe"):
        if ffn.data.get(key) is not None:
            ffn.fail(key, "is not known")
    inner = ffn.optional_integer("intermediate_size")
    if inner is None:
        factor = ffn.optional_number("ffn_mult")
        if factor is None or not 0 < factor <= 1024:
            ffn.fail("ffn_mult", "is not a factor between 0 and 1024, and it decides the size")
        inner = ceil_div(int(2 * factor * hidden / 3), 256) * 256
    bias = config.boolean("mlp_bias", False)
    return (DenseFFN(hidden_size=hidden, intermediate_size=inner, bias=bias),)


def _nas_norms(config: Config, layer: int) -> int:
    """Return one norm for each part that is not a `no_op`."""
    return sum(not _block(config, layer, part).boolean("no_op", False) for part in ("attention", "ffn"))


NEMOTRON_NAS = Family(
    mixers=_nas_mixers,
    ffns=_nas_ffns,
    norms=_nas_norms,
    meaningless=frozenset({"num_attention_heads", "num_key_value_heads", "intermediate_size"}),
)


def _listed(config: Config, key: str, layer: int) -> int:
    """Return the layer's entry of a list of counts.

    Raises:
        BadInput: The list is missing, has another length or holds a number below 1.
    """
    counts = config.array(key, int, config.integer("num_hidden_layers"))
    if counts is None:
        config.fail(key, "missing, and it decides the size", f"add {key}")
    if not 1 <= counts[layer] <= MAX_COUNT:
        config.fail(key, f"layer {layer} is not between 1 and {MAX_COUNT}")
    return int(counts[layer])


def _deci_shape(config: Config, layer: int) -> Shape:
    """Return DeciLM's heads, whose KV heads are listed by layer."""
    kv_heads = _listed(config, "num_key_value_heads_per_layer", layer)
    hidden, n = config.integer("hidden_size"), config.integer("num_attention_heads")
    if hidden % n:
        config.fail("hidden_size", f"{hidden} is not a multiple of {n} heads")
    return Shape(n, kv_heads, hidden // n, hidden // n)


DECI = Family(mixers=heads(shape=_deci_shape), meaningless=frozenset({"num_key_value_heads"}))


def _openelm_shape(config: Config, layer: int) -> Shape:
    """Return OpenELM's heads, whose numbers are listed by layer."""
    if not config.boolean("share_input_output_layers", False):
        config.fail("share_input_output_layers", "OpenELM is known with one matrix for embedding and head")
    n, m = _listed(config, "num_query_heads", layer), _listed(config, "num_kv_heads", layer)
    return Shape(n, m, config.integer("head_dim"), config.integer("head_dim"))


def _openelm_ffns(config: Config, layer: int) -> tuple[FFN, ...]:
    """Return OpenELM's MLP, a listed multiple of the residual rounded to `ffn_dim_divisor`."""
    factors = config.array("ffn_multipliers", (int, float), config.integer("num_hidden_layers"))
    if factors is None:
        config.fail("ffn_multipliers", "missing, and it decides the size")
    if not 0 < factors[layer] <= 1024:
        config.fail("ffn_multipliers", f"layer {layer} is not between 0 and 1024")
    hidden, divisor = config.integer("hidden_size"), config.integer("ffn_dim_divisor", 256)
    exact = factors[layer] * hidden
    inner = max(divisor, int(exact + divisor / 2) // divisor * divisor)
    inner += divisor if inner < 0.9 * exact else 0
    gated = config.boolean("ffn_with_glu", True)
    return (DenseFFN(hidden_size=hidden, intermediate_size=inner, gated=gated),)


OPENELM = Family(
    mixers=heads(shape=_openelm_shape, qk_norm="head", qk_norm_if="normalize_qk_projections"),
    ffns=_openelm_ffns,
    tied=True,
    meaningless=frozenset({"num_gqa_groups", "qkv_multipliers"}),
)

FAMILIES = {
    "deci": DECI,
    "nemotron-nas": NEMOTRON_NAS,
    "openelm": OPENELM,
}
