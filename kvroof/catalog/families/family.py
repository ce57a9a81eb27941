"""What a family of decoders is, as data, and the one function that builds an architecture from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from kvroof.catalog.config import Config
from kvroof.catalog.families.blocks import Flag, flag, mlp
from kvroof.spec.architecture import Layer, LayerGroup, Mixer, Tower, stack
from kvroof.spec.ffn import FFN
from kvroof.spec.weights import Weight, vector

MAX_LAYERS = 10_000

MixersOf: TypeAlias = Callable[[Config, int], tuple[Mixer, ...]]
FFNsOf: TypeAlias = Callable[[Config, int], tuple[FFN, ...]]


WeightsOf: TypeAlias = Callable[[Config], tuple[Weight, ...]]


@dataclass(frozen=True, kw_only=True)
class Family:
    """The layout that models of one `model_type` share.

    Args:
        mixers: Reads the attention of a layer.
        ffns: Reads the feed-forward part of a layer.
        norms: Norms of the residual width per layer.
        norm_bias: Whether norms have a bias beside their scale.
        final_norms: Norms after the last layer.
        tied: What `tie_word_embeddings` means when the file leaves it out; None where the class never ties.
        vocab_size: The class's vocabulary, where real files leave it out.
        embedding_width: The config key of the token table's width, where it may not be the residual's.
        positions: The config key of a learned position table, None where positions are computed.
        parallel: Whether attention and MLP read the same input and are summed once.
        head_bias: Whether the LM head has a bias.
        layers: Reads the number of layers, where it is not `num_hidden_layers`.
        layer_extras: Parameters of a layer beside attention, MLP and norms.
        embedding_extras: Parameters beside the token table (norms, projections, per-layer tables).
        final_extras: Parameters after the last layer beside its norm.
        shared: Weights stored once that several layers run through.
        encoder: The encoder of an encoder-decoder, counted as a tower.
        meaningless: Keys that the family's files carry and its class never reads.
        parts: What its checkpoints call the parts of a layer, where `modules.PARTS` does not say so.
    """

    mixers: MixersOf
    ffns: FFNsOf = mlp()
    norms: int | Callable[[Config, int], int] = 2
    norm_bias: Flag = False
    final_norms: int = 1
    tied: bool | None = False
    vocab_size: int | None = None
    embedding_width: str | None = None
    positions: str | None = None
    parallel: Flag = False
    head_bias: Flag = False
    layers: Callable[[Config], int] | None = None
    layer_extras: Callable[[Config, int], tuple[Weight, ...]] | None = None
    embedding_extras: WeightsOf | None = None
    final_extras: WeightsOf | None = None
    shared: WeightsOf | None = None
    encoder: Callable[[Config], Tower] | None = None
    meaningless: frozenset[str] = frozenset()
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """The text part of a model, as read from its config."""

    hidden_size: int
    vocab_size: int
    layers: tuple[LayerGroup, ...]
    order: tuple[int, ...]
    embedding: tuple[Weight, ...]
    lm_head: Weight
    tied: bool
    final: tuple[Weight, ...]
    shared: tuple[Weight, ...]
    towers: tuple[Tower, ...]


def layer_count(config: Config) -> int:
    """Return `num_hidden_layers`."""
    return config.integer("num_hidden_layers", maximum=MAX_LAYERS)


def build(config: Config, family: Family) -> Decoder:
    """Return the decoder that `config` describes, read the way `family` is laid out.

    Raises:
        BadInput: A key that decides the size is missing, of another type or out of bounds.
    """
    config.read_nothing(family.meaningless)
    hidden = config.integer("hidden_size")
    count = (
        family.layers(config) if family.layers else config.integer("num_hidden_layers", maximum=MAX_LAYERS)
    )
    vocab = (
        config.integer("vocab_size", family.vocab_size) if family.vocab_size else config.integer("vocab_size")
    )
    layers = [_layer(config, family, i, hidden) for i in range(count)]
    groups, order = stack(layers)
    width = config.integer(family.embedding_width, hidden) if family.embedding_width else hidden
    norm_bias = flag(config, family.norm_bias)
    embedding = [Weight(name="embed_tokens", shape=(vocab, width), split=vocab, role="embedding")]
    if family.positions:
        rows = config.integer(family.positions)
        embedding.append(Weight(name="embed_positions", shape=(rows, hidden), role="embedding"))
    if family.embedding_extras:
        embedding += family.embedding_extras(config)
    final = _norms("norm", family.final_norms, norm_bias, hidden)
    if flag(config, family.head_bias):
        final += (vector("lm_head.bias", vocab, split=vocab),)
    if family.final_extras:
        final += family.final_extras(config)
    return Decoder(
        hidden_size=hidden,
        vocab_size=vocab,
        layers=groups,
        order=order,
        embedding=tuple(embedding),
        lm_head=Weight(name="lm_head", shape=(width, vocab), split=vocab, role="lm_head"),
        tied=_tied(config, family),
        final=final,
        shared=family.shared(config) if family.shared else (),
        towers=(family.encoder(config),) if family.encoder else (),
    )


def _tied(config: Config, family: Family) -> bool:
    """Return whether the head reads the embedding's matrix."""
    said = config.boolean("tie_word_embeddings", bool(family.tied))
    if said and family.tied is None:
        config.fail("tie_word_embeddings", "this family's class stores its head apart, and engines tie it")
    return said


def _layer(config: Config, family: Family, index: int, hidden: int) -> Layer:
    extras = family.layer_extras(config, index) if family.layer_extras else ()
    norms = family.norms if isinstance(family.norms, int) else family.norms(config, index)
    return Layer(
        mixers=family.mixers(config, index),
        ffns=family.ffns(config, index),
        norms=_norms("layernorm", norms, flag(config, family.norm_bias), hidden) + extras,
        parallel=flag(config, family.parallel),
    )


def _norms(name: str, count: int, bias: bool, hidden: int) -> tuple[Weight, ...]:
    scale = (vector(f"{name}.weight", hidden, count=count),) if count else ()
    return scale + ((vector(f"{name}.bias", hidden, count=count),) if count and bias else ())
