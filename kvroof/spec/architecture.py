"""What a model is: layers of attention and feed-forward kinds, an embedding, a head."""

from __future__ import annotations

from typing import Literal, TypeAlias

from kvroof.ground.record import record, static
from kvroof.spec.attention import Attention
from kvroof.spec.ffn import FFN
from kvroof.spec.recurrent import Recurrent
from kvroof.spec.weights import Weight, WeightFormats

Mixer: TypeAlias = Attention | Recurrent
"""What moves information between tokens."""


HostPart: TypeAlias = Literal["layer", "experts", "kv"]
"""What of a layer may live in host memory: all of it, its routed experts, or its cache."""


@record
class Layer:
    """One block of the residual stream: its mixers, its feed-forward parts, and its norms.

    `parallel` says that attention and MLP read the same input and are summed once (Falcon, GPT-NeoX),
    which saves one all-reduce. `formats` is set where a checkpoint stores this layer unlike the rest,
    `on_host` where parts of it live in host memory.
    """

    mixers: tuple[Mixer, ...]
    ffns: tuple[FFN, ...]
    norms: tuple[Weight, ...] = ()
    parallel: bool = static(default=False)
    formats: WeightFormats | None = None
    on_host: tuple[HostPart, ...] = static(default=())

    @property
    def weights(self) -> tuple[Weight, ...]:
        """Every parameter that the layer runs through."""
        parts = (*self.mixers, *self.ffns)
        return tuple(w for part in parts for w in part.weights) + self.norms

    @property
    def own_weights(self) -> tuple[Weight, ...]:
        """Every parameter that is stored for this layer alone."""
        parts = (*self.mixers, *self.ffns)
        return tuple(w for part in parts if not part.shared for w in part.weights) + self.norms


@record
class LayerGroup:
    """`count` equal layers, wherever they stand in the stack."""

    layer: Layer
    count: int


@record
class Tower:
    """A vision or audio encoder and its projector: they occupy memory, and are reported apart."""

    name: str = static()
    params: int


@record
class Architecture:
    """A model as it is served: what is stored and what a token runs through, and nothing else.

    `shared` are weights stored once that several layers run through. `order` gives the group of each
    layer from the input up. With `tied`, the head reads the embedding's matrix and stores none of its
    own. `kv_dtype` and `state_dtype` are set only where the checkpoint says how its cache or its recurrence
    is stored, `checkpoint_bytes` only where the headers of its files were read. A stretched RoPE counts in
    `max_position_embeddings`. `mtp_layers` draft tokens and are not in the stack: neither their weights nor
    their cache are counted. A stage of a pipeline takes tokens only if it is the first, and gives logits
    only if it is the last.
    """

    name: str = static()
    model_type: str = static()
    hidden_size: int
    vocab_size: int
    layers: tuple[LayerGroup, ...]
    order: tuple[int, ...] = static()
    embedding: tuple[Weight, ...]
    lm_head: Weight
    tied: bool = static()
    final: tuple[Weight, ...] = ()
    shared: tuple[Weight, ...] = ()
    towers: tuple[Tower, ...] = ()
    formats: WeightFormats
    checkpoint_bytes: int | None = None
    dtype: str = static()
    kv_dtype: str | None = static(default=None)
    state_dtype: str | None = static(default=None)
    max_position_embeddings: int | None = static(default=None)
    mtp_layers: int = static(default=0)
    takes_tokens: bool = static(default=True)
    gives_logits: bool = static(default=True)
    notes: tuple[str, ...] = static(default=())

    @property
    def num_layers(self) -> int:
        """Layers in the stack."""
        return sum(group.count for group in self.layers)


def stack(layers: list[Layer]) -> tuple[tuple[LayerGroup, ...], tuple[int, ...]]:
    """Return the distinct layers with their counts, and for each layer the index of its group."""
    index: dict[Layer, int] = {}
    order = tuple(index.setdefault(layer, len(index)) for layer in layers)
    groups = tuple(LayerGroup(layer=layer, count=order.count(i)) for layer, i in index.items())
    return groups, order
