"""Encoder-decoders: T5, BART, Whisper and their relatives.

A decoder layer has a self-attention, cached as usual, and a cross-attention, whose keys and values come
from the encoder once and are cached per encoder token. The encoder is counted as a tower.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from kvroof.catalog.config import Config
from kvroof.catalog.families.blocks import Flag, flag, mlp
from kvroof.catalog.families.family import MAX_LAYERS, Family
from kvroof.catalog.towers.audio import whisper
from kvroof.catalog.towers.counting import block, conv, linear, norm, positives
from kvroof.catalog.towers.counting import mlp as mlp_params
from kvroof.spec.architecture import Tower
from kvroof.spec.attention import GroupedAttention
from kvroof.spec.ffn import FFN, DenseFFN
from kvroof.spec.reach import Encoder, Full
from kvroof.spec.weights import Weight, vector

TIE = "tie_word_embeddings"


def attend(
    config: Config,
    heads: int,
    width: int,
    *,
    cross: bool,
    bias: bool = False,
    key_bias: bool = True,
    out_bias: bool = True,
    kv_heads: int | None = None,
    extras: tuple[Weight, ...] = (),
) -> GroupedAttention:
    """Return the attention of `heads` heads of `width` to earlier tokens, or to the encoder's (`cross`)."""
    hidden, m = config.integer("hidden_size"), heads if kv_heads is None else kv_heads
    own: tuple[Weight, ...] = ()
    if bias:
        own = (
            vector("q_proj.bias", heads * width, split=heads),
            vector("v_proj.bias", m * width, split=m),
        )
        own += (vector("k_proj.bias", m * width, split=m),) if key_bias else ()
        own += (vector("o_proj.bias", hidden),) if out_bias else ()
    return GroupedAttention(
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=m,
        head_dim=width,
        v_head_dim=width,
        reach=Encoder() if cross else Full(),
        extras=own + extras,
    )


def _even(config: Config, key: str) -> tuple[int, int]:
    """Return the number of heads under `key`, and their width, an equal share of the residual's."""
    hidden, n = config.integer("hidden_size"), config.integer(key)
    if hidden % n:
        config.fail(key, f"{hidden} is not a multiple of {n} heads")
    return n, hidden // n


# T5


def _t5_layers(config: Config) -> int:
    """Return the decoder's layers, as many as the encoder's where the file does not say."""
    return config.integer("num_decoder_layers", config.integer("num_layers", maximum=MAX_LAYERS))


def _t5_table(config: Config) -> int:
    """Return the entries of a table of relative positions."""
    return config.integer("relative_attention_num_buckets", 32) * config.integer("num_attention_heads")


def _t5_mixers(every_layer: bool) -> Callable[[Config, int], tuple[GroupedAttention, ...]]:
    def read(config: Config, layer: int) -> tuple[GroupedAttention, ...]:
        n, width = config.integer("num_attention_heads"), config.integer("d_kv")
        table = (vector("relative_attention_bias", _t5_table(config)),) if every_layer or not layer else ()
        itself = attend(config, n, width, cross=False, extras=table)
        return itself, attend(config, n, width, cross=True)

    return read


def _t5_gated(config: Config, default: str) -> bool:
    """Return whether the MLP is gated, which the activation's name says where the file does not."""
    config.read_nothing(("dense_act_fn",))
    return config.boolean("is_gated_act", config.text("feed_forward_proj", default).startswith("gated-"))


def _t5_ffns(default: str) -> Callable[[Config, int], tuple[FFN, ...]]:
    def read(config: Config, layer: int) -> tuple[FFN, ...]:
        return mlp(gated=_t5_gated(config, default))(config, layer)

    return read


def _t5_encoder(default: str, every_layer: bool, by_chunk: bool) -> Callable[[Config], Tower]:
    def read(config: Config) -> Tower:
        h, inner = config.integer("hidden_size"), config.integer("intermediate_size")
        count = config.integer("num_layers", maximum=MAX_LAYERS)
        attention = 4 * h * config.integer("num_attention_heads") * config.integer("d_kv")
        one = attention + mlp_params(h, inner, h, False, _t5_gated(config, default)) + 2 * h
        tables = count if every_layer else 1
        kind = config.text("encoder_attention_type", "local") if by_chunk else "local"
        if kind not in ("local", "transient-global"):
            config.fail("encoder_attention_type", f"{kind!r} is not an attention this family has")
        if kind == "transient-global":
            one, tables = one + h, tables + 1
        return Tower(name="encoder", params=count * one + tables * _t5_table(config) + h)

    return read


def t5_like(act: str = "relu", every_layer: bool = False, by_chunk: bool = False) -> Family:
    """Return a relative of T5 whose activation defaults to `act`.

    Tables of relative positions are on every layer, or on the first alone; `by_chunk` is LongT5, whose
    encoder attends locally. A file that says `tie_word_embeddings: false` (T5 1.1) has its own head.
    """
    return Family(
        mixers=_t5_mixers(every_layer),
        ffns=_t5_ffns(act),
        norms=3,
        tied=True,
        layers=_t5_layers,
        encoder=_t5_encoder(act, every_layer, by_chunk),
        meaningless=frozenset({"num_hidden_layers", "relative_attention_max_distance"}),
    )


# BART


@dataclass(frozen=True, kw_only=True)
class Bart:
    """What distinguishes BART's relatives.

    Args:
        bias: Whether attention has biases.
        key_bias: Whether the key projection has one too.
        offset: Unused rows before the table of learned positions, None where positions are computed.
        positions: The key of the decoder's table.
        embedding_norm: Whether embeddings are normed.
        final_norm: Whether the last layer is followed by a norm.
        encoder: Counts the encoder.
    """

    bias: Flag = True
    key_bias: bool = True
    offset: int | None = None
    positions: str = "max_position_embeddings"
    embedding_norm: bool = False
    final_norm: bool = False
    encoder: Literal["text", "led", "pegasus_x", "speech_to_text", "whisper"] = "text"

    def mixers(self, config: Config, layer: int) -> tuple[GroupedAttention, ...]:
        """Return the two attentions of a decoder layer."""
        n, width = _even(config, "decoder_attention_heads")
        bias = flag(config, self.bias)
        return (
            attend(config, n, width, cross=False, bias=bias, key_bias=self.key_bias),
            attend(config, n, width, cross=True, bias=bias, key_bias=self.key_bias),
        )

    def embedding(self, config: Config) -> list[Weight]:
        """Return the decoder's positions and the norm of its embeddings."""
        h, found = config.integer("hidden_size"), []
        if self.offset is not None:
            rows = config.integer(self.positions) + self.offset
            found.append(Weight(name="embed_positions", shape=(rows, h), role="embedding"))
        if self.encoder not in ("speech_to_text", "whisper") and not config.boolean(TIE, True):
            # An untied file has the shared table, and one of each side's own (transformers 5).
            shape = (config.integer("vocab_size"), h)
            found.append(Weight(name="embed_tokens.sides", shape=shape, count=2, role="embedding"))
        return found + ([vector("layernorm_embedding", 2 * h)] if self.embedding_norm else [])

    def tower(self, config: Config) -> Tower:
        """Return the encoder: its own ends, layers, and the norms the family has."""
        if self.encoder == "whisper":
            return Tower(name="encoder", params=whisper(config))
        h, inner = config.integer("hidden_size"), config.integer("encoder_ffn_dim")
        count, bias = config.integer("encoder_layers", maximum=MAX_LAYERS), flag(config, self.bias)
        _even(config, "encoder_attention_heads")
        one = block(h, inner, qkv_bias=bias, out_bias=bias)
        ends = norm(h) * (self.embedding_norm + self.final_norm)
        rows = "max_encoder_position_embeddings" if self.encoder == "led" else self.positions
        if self.offset is not None:
            ends += (config.integer(rows) + self.offset) * h
        if self.encoder == "led":
            one += 3 * linear(h, h)
        elif self.encoder == "pegasus_x":
            one, ends = one + norm(h), ends + config.integer("num_global_tokens", 32) * h
        elif self.encoder == "speech_to_text":
            ends += _subsampler(config, h)
        return Tower(name="encoder", params=ends + count * one)

    def family(self, *meaningless: str) -> Family:
        """Return the family, whose files carry `meaningless` keys."""
        return Family(
            mixers=self.mixers,
            ffns=_bart_ffns,
            norms=3,
            norm_bias=True,
            final_norms=1 if self.final_norm else 0,
            tied=True,
            layers=_bart_layers,
            embedding_extras=lambda config: tuple(self.embedding(config)),
            encoder=self.tower,
            meaningless=frozenset({"num_hidden_layers", "add_final_layer_norm", *meaningless}),
        )


def _bart_layers(config: Config) -> int:
    return config.integer("decoder_layers", maximum=MAX_LAYERS)


def _bart_ffns(config: Config, layer: int) -> tuple[FFN, ...]:
    hidden, inner = config.integer("hidden_size"), config.integer("decoder_ffn_dim")
    return (DenseFFN(hidden_size=hidden, intermediate_size=inner, gated=False, bias=True),)


def _subsampler(config: Config, h: int) -> int:
    """Return Speech2Text's convolutions over the spectrogram, each followed by a gated linear unit."""
    width = config.integer("input_feat_per_channel", 80) * config.integer("input_channels", 1)
    count = config.integer("num_conv_layers", 2, maximum=64)
    kernels = positives(config, "conv_kernel_sizes", (5,) * count)
    middle, total = config.integer("conv_channels", 1024), 0
    for i, kernel in enumerate(kernels):
        out = 2 * h if i == count - 1 else middle
        total, width = total + conv(width, out, kernel), out // 2
    return total


def _mvp(config: Config, layer: int) -> tuple[GroupedAttention, ...]:
    """Return BART's attentions; the prompts that MVP can add are not understood."""
    if config.boolean("use_prompt", False):
        config.fail("use_prompt", "learned prompts are not understood")
    return Bart(offset=2, embedding_norm=True).mixers(config, layer)


def _marian(config: Config, layer: int) -> tuple[GroupedAttention, ...]:
    """Return Marian's attentions; two vocabularies are not understood."""
    shared = config.boolean("share_encoder_decoder_embeddings", True)
    if not shared or config.integer("decoder_vocab_size", config.integer("vocab_size")) != config.integer(
        "vocab_size"
    ):
        config.fail("share_encoder_decoder_embeddings", "two vocabularies are not understood")
    return Bart(offset=0).mixers(config, layer)


# Moonshine


def _moonshine_mixers(config: Config, layer: int) -> tuple[GroupedAttention, ...]:
    n, width = _even(config, "decoder_num_attention_heads")
    m, bias = config.integer("decoder_num_key_value_heads", n), config.boolean("attention_bias", False)
    return (
        attend(config, n, width, cross=False, bias=bias, out_bias=False, kv_heads=m),
        attend(config, n, width, cross=True, bias=bias, out_bias=False, kv_heads=m),
    )


def _moonshine_encoder(config: Config) -> Tower:
    h, inner = config.integer("hidden_size"), config.integer("intermediate_size")
    n, width = _even(config, "encoder_num_attention_heads")
    narrow = config.integer("encoder_num_key_value_heads", n) * width
    bias = config.boolean("attention_bias", False)
    one = block(h, inner, qkv_bias=bias, out_bias=False, norm_bias=False, kv_width=narrow)
    front = conv(1, h, 127, bias=False) + conv(h, 2 * h, 7) + conv(2 * h, h, 3) + norm(h)
    count = config.integer("encoder_num_hidden_layers", maximum=MAX_LAYERS)
    return Tower(name="encoder", params=front + count * one + h)


def _moonshine_layers(config: Config) -> int:
    return config.integer("decoder_num_hidden_layers", maximum=MAX_LAYERS)


MOONSHINE = Family(
    mixers=_moonshine_mixers,
    ffns=mlp(bias=True),
    norms=3,
    tied=True,
    layers=_moonshine_layers,
    encoder=_moonshine_encoder,
    meaningless=frozenset({"pad_head_dim_to_multiple_of"}),
)

BART = Bart(offset=2, embedding_norm=True).family()

MARIAN = replace(Bart(offset=0).family(), mixers=_marian)
MVP = replace(BART, mixers=_mvp)

FAMILIES: dict[str, Family] = {
    "bart": BART,
    "bigbird_pegasus": Bart(bias="use_bias", offset=0, embedding_norm=True).family(
        "attention_type", "num_random_blocks"
    ),
    "blenderbot": Bart(offset=0, final_norm=True).family(),
    "blenderbot-small": Bart(offset=0, embedding_norm=True).family(),
    "led": Bart(
        offset=0, positions="max_decoder_position_embeddings", embedding_norm=True, encoder="led"
    ).family("attention_window"),
    "longt5": t5_like(by_chunk=True),
    "m2m_100": Bart(final_norm=True).family(),
    "marian": MARIAN,
    "mbart": Bart(offset=2, embedding_norm=True, final_norm=True).family(),
    "moonshine": MOONSHINE,
    "mt5": t5_like("gated-gelu"),
    "mvp": MVP,
    "pegasus": Bart(offset=0, final_norm=True).family(),
    "pegasus_x": Bart(bias=False, final_norm=True, encoder="pegasus_x").family(),
    "plbart": BART,
    "speech_to_text": Bart(final_norm=True, encoder="speech_to_text").family(),
    "t5": t5_like(),
    "umt5": t5_like("gated-gelu", every_layer=True),
    "whisper": Bart(
        key_bias=False, offset=0, positions="max_target_positions", final_norm=True, encoder="whisper"
    ).family("encoder_attention_heads"),
}
