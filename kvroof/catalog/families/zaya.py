"""ZAYA: attention whose queries and keys pass two convolutions first (CCA), experts behind a router's MLP.

Values are half of this token and half of the one before. Per sequence a layer holds the last inputs of the
convolutions and the half of the values that the next token takes. Source: ZayaForCausalLM of transformers
5.24; vLLM's state has the same shape. Ranks share all of it by KV heads, as attention does elsewhere; vLLM's
first ZAYA holds it whole on every rank.
"""

from __future__ import annotations

from dataclasses import replace

from kvroof.catalog.config import Config
from kvroof.catalog.families.blocks import Reach, experts, heads
from kvroof.catalog.families.family import Family, layer_count
from kvroof.catalog.families.llama_like import BIAS, grouped
from kvroof.spec.architecture import Mixer
from kvroof.spec.cache import State
from kvroof.spec.ffn import FFN, MoE
from kvroof.spec.reach import Full, Sliding
from kvroof.spec.recurrent import Recurrent
from kvroof.spec.weights import Weight, vector

_shape = grouped(128)


def _reach(config: Config, layer: int) -> Reach:
    """Return a window on the layers listed as `hybrid_sliding`; without a list all are full."""
    types = config.array("layer_types", str, layer_count(config))
    kind = "hybrid" if types is None else types[layer]
    if kind == "hybrid_sliding":
        return Sliding(size=config.integer("sliding_window"))
    if kind != "hybrid":
        config.fail("layer_types", f"{kind[:40]!r} is not a layer this family has")
    config.read_nothing(("sliding_window",))
    return Full()


def _temperature(config: Config, layer: int) -> tuple[Weight, ...]:
    """Return the learned scale of each KV head's keys."""
    m = _shape(config, layer).kv_heads
    return (vector("qk_norm.temp", m, split=m),)


def _convolutions(config: Config, layer: int) -> Recurrent:
    """Return the convolutions over queries and keys: one by channel, then one by head, which mixes its width.

    The second is a product per head over `cca_time1` tokens.
    """
    n, m, width, _ = _shape(config, layer)
    if m * width % 2:
        config.fail("head_dim", f"{m} x {width} values have no halves")
    channels = (n + m) * width
    first, second = config.integer("cca_time0", 2), config.integer("cca_time1", 2)
    return Recurrent(
        kind="cca",
        projections=(
            Weight(
                name="conv_qk_grouped", shape=(second * width, width), count=n + m, split=m, role="attention"
            ),
        ),
        held=State(
            conv_channels=channels,
            conv_kernel=first + second - 1,
            dropped_columns=1,
            recurrent_elements=m * width // 2,
            in_model_dtype=True,
            split=m,
        ),
        scan_flops=2 * channels * first,
        extras=(
            vector("conv_qk_depthwise", channels, first, split=m),
            vector("conv_qk.bias", channels, count=2, split=m),
        ),
    )


_ATTENTION = heads(shape=_shape, qkv_bias=BIAS, o_bias=BIAS, reach=_reach, extras=_temperature)


def _mixers(config: Config, layer: int) -> tuple[Mixer, ...]:
    """Return the attention, and the convolutions before it.

    Raises:
        BadInput: A file of the first release, which counts attention and experts as layers of their own.
    """
    for key in ("zaya_layers", "zaya_mlp_expansion"):
        if config.has(key):
            config.fail(key, "is of ZAYA's first layout", "take the config.json that transformers 5.13 reads")
    return (*_ATTENTION(config, layer), _convolutions(config, layer))


def _ffns(config: Config, layer: int) -> tuple[FFN, ...]:
    """Return experts and one choice that skips them, chosen by an MLP over a narrow copy of the residual.

    From the second layer on the narrow copy adds the one of the layer before.
    """
    (moe,) = experts()(config, layer)
    assert isinstance(moe, MoE)
    narrow = config.integer("router_hidden_size", 256)
    router = (
        Weight(name="router.down_proj", shape=(moe.hidden_size, narrow), role="router"),
        Weight(name="router.fc", shape=(narrow, narrow), count=2, role="router"),
        vector("router.bias", narrow, count=3),
        vector("router.norm", narrow),
        *((vector("router.states_scale", narrow),) if layer else ()),
    )
    return (replace(moe, zero_experts=1, router_input_size=narrow, extras=router),)


def _scaled_residual(config: Config, layer: int) -> tuple[Weight, ...]:
    """Return scale and bias of both summands of both sums of a layer."""
    return (vector("residual_scale", config.integer("hidden_size"), count=8),)


def _scaled_embedding(config: Config) -> tuple[Weight, ...]:
    """Return the embedding's scale and bias."""
    return (vector("input_hidden_states", config.integer("hidden_size"), count=2),)


ZAYA = Family(
    mixers=_mixers,
    ffns=_ffns,
    tied=True,
    head_bias="lm_head_bias",
    layer_extras=_scaled_residual,
    embedding_extras=_scaled_embedding,
)

FAMILIES = {"zaya": ZAYA}
