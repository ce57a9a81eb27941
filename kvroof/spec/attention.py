"""Attention kinds as geometry: what a layer stores, what it keeps, and which pairs it scores.

A kind is heads (`GroupedAttention`, `LatentAttention`) and a reach (`Full`, `Sliding`, ...). It owns
a few facts and no cost: FLOPs and bytes are written once, in `kvroof.cost` and `kvroof.memory`, over
these facts.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from kvroof.ground.record import record, static
from kvroof.spec.cache import Cache, State
from kvroof.spec.reach import AnyReach, Selected, Strided
from kvroof.spec.weights import Weight, vector

Execution: TypeAlias = Literal["absorbed", "expanded"]


@record
class Indexer:
    """The small attention that picks which `topk` entries a sparse layer reads (DSA).

    It scores every entry with `num_heads` queries against one key of `head_dim`, which is cached where
    `stores` is true; elsewhere the layer reuses an earlier layer's choice. `weights` are its own.
    """

    num_heads: int
    head_dim: int
    topk: int
    stores: bool = static(default=True)
    weights: tuple[Weight, ...] = ()

    @property
    def cached_width(self) -> int:
        """Elements of the index key that one entry stores."""
        return self.head_dim if self.stores else 0


@record
class Scored:
    """Entries that a layer's queries score: of what the `cache` keeps, those that `reach` says.

    An `index` scores every entry first, to pick them.
    """

    cache: Cache
    reach: AnyReach
    index: Indexer | None = None


def _scored(cache: Cache, index: Indexer | None, ratio: int = 1) -> Scored:
    """Return what queries score of `cache`, all it reaches or what `index` picks."""
    reach = cache.reach if index is None else Selected(size=index.topk, ratio=ratio)
    return Scored(cache=cache, reach=reach, index=index)


@record
class GroupedAttention:
    """MHA, GQA or MQA: `num_heads` queries share `num_kv_heads` keys and values.

    `extras` are parameters beside the four projections: biases, query/key norms, sinks. A layer with
    `stores_kv` false reads the cache of an earlier layer. `query_gate` doubles the query projection
    (a sigmoid gate on the output). With `values_are_keys` one projection makes both, and both are cached.
    `input_size` is the width read where it is not the residual's. An `index` limits what is read, not what
    is stored. `shared` weights are stored once for
    several layers (Zamba); each still has its own cache.
    """

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    reach: AnyReach
    stores_kv: bool = static(default=True)
    query_gate: bool = static(default=False)
    values_are_keys: bool = static(default=False)
    input_size: int | None = None
    index: Indexer | None = None
    shared: bool = static(default=False)
    extras: tuple[Weight, ...] = ()

    @property
    def kind(self) -> str:
        """Name under which layers of this kind are reported."""
        return self.reach.kind if self.index is None else "sparse"

    @property
    def cache(self) -> Cache:
        """What one layer stores per token, or reads of an earlier layer's."""
        return Cache(
            kind=self.kind,
            reach=self.reach,
            k_width=self.num_kv_heads * self.head_dim,
            v_width=self.num_kv_heads * self.v_head_dim,
            index_width=self.index.cached_width if self.index is not None else 0,
            split=self.num_kv_heads,
        )

    @property
    def scored(self) -> tuple[Scored, ...]:
        """What a query scores: the one cache."""
        return (_scored(self.cache, self.index),)

    @property
    def caches(self) -> tuple[Cache, ...]:
        """The caches that are this layer's own."""
        return (self.cache,) if self.stores_kv else ()

    @property
    def state(self) -> State | None:
        """No state beside the cache."""
        return None

    def score_dims(self, execution: Execution) -> tuple[int, int]:
        """Return the (query-key, value) widths of one head's scores."""
        return self.head_dim, self.v_head_dim

    @property
    def projections(self) -> tuple[Weight, ...]:
        """The matrices applied to every token."""
        h, n, m = self.hidden_size, self.num_heads, self.num_kv_heads
        queries = n * self.head_dim * (2 if self.query_gate else 1)
        read = h if self.input_size is None else self.input_size
        q = Weight(name="q_proj", shape=(read, queries), split=n, role="attention")
        k = Weight(name="k_proj", shape=(read, m * self.head_dim), split=m, role="attention")
        v = Weight(name="v_proj", shape=(read, m * self.v_head_dim), split=m, role="attention")
        o = Weight(name="o_proj", shape=(n * self.v_head_dim, h), split=n, split_rows=True, role="attention")
        if not self.stores_kv:
            return q, o
        return (q, k, o) if self.values_are_keys else (q, k, v, o)

    @property
    def weights(self) -> tuple[Weight, ...]:
        """Every parameter of the layer's attention."""
        index = self.index.weights if self.index is not None else ()
        return (*self.projections, *index, *self.extras)


@record
class LatentAttention:
    """MLA (DeepSeek-V2 on): one latent of `kv_lora_rank` and one rotary key per token, for all heads.

    Absorbed, the heads score the latent itself; expanded, keys and values are rebuilt from it. With
    `q_lora_rank` None the query has no low-rank step.
    """

    hidden_size: int
    num_heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    reach: AnyReach
    stores_kv: bool = static(default=True)
    index: Indexer | None = None
    shared: bool = static(default=False)
    extras: tuple[Weight, ...] = ()

    @property
    def kind(self) -> str:
        """Name under which layers of this kind are reported."""
        return "mla" if self.index is None else "mla+dsa"

    @property
    def cache(self) -> Cache:
        """What one layer stores per token: latent and rotary key, not times heads, not times two."""
        return Cache(
            kind=self.kind,
            reach=self.reach,
            k_width=self.kv_lora_rank + self.qk_rope_head_dim,
            v_width=0,
            index_width=self.index.cached_width if self.index is not None else 0,
            split=1,
        )

    @property
    def scored(self) -> tuple[Scored, ...]:
        """What a query scores: the one cache."""
        return (_scored(self.cache, self.index),)

    @property
    def caches(self) -> tuple[Cache, ...]:
        """The caches that are this layer's own."""
        return (self.cache,) if self.stores_kv else ()

    @property
    def state(self) -> State | None:
        """No state beside the cache."""
        return None

    def score_dims(self, execution: Execution) -> tuple[int, int]:
        """Return the (query-key, value) widths of one head's scores."""
        if execution == "absorbed":
            return self.kv_lora_rank + self.qk_rope_head_dim, self.kv_lora_rank
        return self.qk_nope_head_dim + self.qk_rope_head_dim, self.v_head_dim

    @property
    def up_projection(self) -> Weight:
        """The matrix that turns latents into keys and values (`kv_b_proj`)."""
        n = self.num_heads
        width = n * (self.qk_nope_head_dim + self.v_head_dim)
        return Weight(name="kv_b_proj", shape=(self.kv_lora_rank, width), split=n, role="attention")

    @property
    def projections(self) -> tuple[Weight, ...]:
        """The matrices applied to every token, the up-projection left out."""
        h, n = self.hidden_size, self.num_heads
        queries = n * (self.qk_nope_head_dim + self.qk_rope_head_dim)
        down = Weight(
            name="kv_a_proj", shape=(h, self.kv_lora_rank + self.qk_rope_head_dim), role="attention"
        )
        out = Weight(
            name="o_proj", shape=(n * self.v_head_dim, h), split=n, split_rows=True, role="attention"
        )
        if self.q_lora_rank is None:
            return Weight(name="q_proj", shape=(h, queries), split=n, role="attention"), down, out
        rank = self.q_lora_rank
        q_down = Weight(name="q_a_proj", shape=(h, rank), role="attention")
        q_up = Weight(name="q_b_proj", shape=(rank, queries), split=n, role="attention")
        return q_down, q_up, down, out

    @property
    def norms(self) -> tuple[Weight, ...]:
        """The norms on the compressed query and on the latent."""
        latent = vector("kv_a_layernorm", self.kv_lora_rank)
        if self.q_lora_rank is None:
            return (latent,)
        return vector("q_a_layernorm", self.q_lora_rank), latent

    @property
    def weights(self) -> tuple[Weight, ...]:
        """Every parameter of the layer's attention."""
        index = self.index.weights if self.index is not None else ()
        return (*self.projections, self.up_projection, *self.norms, *index, *self.extras)


@record
class Compressor:
    """What makes one entry of every `ratio` tokens (DeepSeek-V4), `head_dim` wide, K = V.

    Blocks overlap where `overlap` is 2: each of the two projections is then that many times as wide, and
    the state that waits for a block to fill is held for both. `index` keys are compressed alike.
    """

    ratio: int
    head_dim: int
    overlap: int = 1
    index: Indexer | None = None
    weights: tuple[Weight, ...] = ()

    @property
    def state_elements(self) -> int:
        """Elements of keys and scores, in fp32, that wait for a block to fill."""
        width = self.head_dim + (self.index.head_dim if self.index is not None else 0)
        return 2 * self.overlap**2 * self.ratio * width


@record
class CompressedAttention:
    """DeepSeek-V4's: a window of single tokens, and behind it one entry per `ratio` tokens.

    All heads share one key that is also the value. Queries have a low-rank step; heads are mixed in
    `o_groups` groups of rank `o_lora_rank`, then together. Without a `compressor` the layer has the
    window alone.
    """

    hidden_size: int
    num_heads: int
    head_dim: int
    q_lora_rank: int
    o_groups: int
    o_lora_rank: int
    reach: AnyReach
    compressor: Compressor | None = None
    shared: bool = static(default=False)
    extras: tuple[Weight, ...] = ()

    @property
    def kind(self) -> str:
        """Name under which layers of this kind are reported."""
        if self.compressor is None:
            return self.reach.kind
        return "compressed" if self.compressor.index is None else "compressed+dsa"

    @property
    def cache(self) -> Cache:
        """The window of single tokens; key and value are stored once."""
        return Cache(kind=self.reach.kind, reach=self.reach, k_width=self.head_dim, v_width=0)

    @property
    def scored(self) -> tuple[Scored, ...]:
        """What a query scores: the window, and the entries behind it that the index picks, or all."""
        window = _scored(self.cache, None)
        if self.compressor is None:
            return (window,)
        index, ratio = self.compressor.index, self.compressor.ratio
        entries = Cache(
            kind=self.kind,
            reach=Strided(ratio=ratio),
            k_width=self.head_dim,
            v_width=0,
            index_width=index.cached_width if index is not None else 0,
        )
        return window, _scored(entries, index, ratio)

    @property
    def stores_kv(self) -> bool:
        """Every layer stores its own."""
        return True

    @property
    def index(self) -> Indexer | None:
        """The indexer over the compressed entries."""
        return self.compressor.index if self.compressor is not None else None

    @property
    def caches(self) -> tuple[Cache, ...]:
        """The caches that are this layer's own."""
        return tuple(part.cache for part in self.scored)

    @property
    def state(self) -> State | None:
        """The tokens that wait to be compressed."""
        if self.compressor is None:
            return None
        return State(recurrent_elements=self.compressor.state_elements)

    def score_dims(self, execution: Execution) -> tuple[int, int]:
        """Return the (query-key, value) widths of one head's scores."""
        return self.head_dim, self.head_dim

    @property
    def projections(self) -> tuple[Weight, ...]:
        """The matrices applied to every token, the compressor's left out."""
        h, n, g = self.hidden_size, self.num_heads, self.o_groups
        wide = n * self.head_dim
        q_down = Weight(name="q_a_proj", shape=(h, self.q_lora_rank), role="attention")
        q_up = Weight(name="q_b_proj", shape=(self.q_lora_rank, wide), split=n, role="attention")
        kv = Weight(name="kv_proj", shape=(h, self.head_dim), role="attention")
        mix = Weight(
            name="o_a_proj",
            shape=(wide // g, self.o_lora_rank),
            count=g,
            split=g,
            dealt=True,
            role="attention",
        )
        out = Weight(
            name="o_b_proj", shape=(g * self.o_lora_rank, h), split=g, split_rows=True, role="attention"
        )
        return q_down, q_up, kv, mix, out

    @property
    def weights(self) -> tuple[Weight, ...]:
        """Every parameter of the layer's attention."""
        norms = (vector("q_a_norm", self.q_lora_rank), vector("kv_norm", self.head_dim))
        made = self.compressor.weights if self.compressor is not None else ()
        index = self.index.weights if self.index is not None else ()
        return (*self.projections, *norms, *made, *index, *self.extras)


Attention: TypeAlias = GroupedAttention | LatentAttention | CompressedAttention
