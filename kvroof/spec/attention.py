"""Attention kinds as geometry: what a layer stores, what it keeps, and which pairs it scores.

A kind is heads (`GroupedAttention`, `LatentAttention`) and a reach (`Full`, `Sliding`, `Chunked`).
It owns a few facts and no cost: FLOPs and bytes are written once, in `kvroof.cost` and
`kvroof.memory`, over these facts.
"""

from __future__ import annotations

from typing import Literal, Protocol, TypeAlias

from kvroof.ground.numeric import floor_div, maximum, minimum, triangle
from kvroof.ground.record import record, static
from kvroof.spec.weights import Weight, vector

Execution: TypeAlias = Literal["absorbed", "expanded"]


class Reach(Protocol):
    """Which earlier tokens a query sees."""

    @property
    def kind(self) -> str:
        """Name of the reach: full, sliding or chunked."""
        ...

    @property
    def window(self) -> int | None:
        """Most tokens a query sees, None when unbounded."""
        ...

    def kept(self, tokens: int) -> int:
        """Return how many of `tokens` are still needed by the next query."""
        ...

    def pairs(self, tokens: int) -> int:
        """Return the query-key pairs scored over the first `tokens` tokens."""
        ...

    def read(self, query_len: int, kv_len: int) -> int:
        """Return the tokens whose K and V the last `query_len` of `kv_len` tokens touch."""
        ...


@record
class Full:
    """Every earlier token: `n (n + 1) / 2` pairs."""

    @property
    def kind(self) -> str:
        """Name of the reach."""
        return "full"

    @property
    def window(self) -> int | None:
        """Unbounded."""
        return None

    def kept(self, tokens: int) -> int:
        """Return `tokens`."""
        return tokens

    def pairs(self, tokens: int) -> int:
        """Return `n (n + 1) / 2`."""
        return triangle(tokens)

    def read(self, query_len: int, kv_len: int) -> int:
        """Return `kv_len`."""
        return kv_len


@record
class Sliding:
    """The last `size` tokens, the query's own included."""

    size: int

    @property
    def kind(self) -> str:
        """Name of the reach."""
        return "sliding"

    @property
    def window(self) -> int | None:
        """Tokens in the window."""
        return self.size

    def kept(self, tokens: int) -> int:
        """Return `min(n, W)`."""
        return minimum(tokens, self.size)

    def pairs(self, tokens: int) -> int:
        """Return `tri(min(n, W)) + W max(n - W, 0)`."""
        return triangle(minimum(tokens, self.size)) + self.size * maximum(tokens - self.size, 0)

    def read(self, query_len: int, kv_len: int) -> int:
        """Return the union of the queries' windows, `min(kv, W + q - 1)`."""
        return minimum(kv_len, self.size + query_len - 1)


@record
class Chunked:
    """The tokens of the query's own block of `size` (Llama-4's local layers)."""

    size: int

    @property
    def kind(self) -> str:
        """Name of the reach."""
        return "chunked"

    @property
    def window(self) -> int | None:
        """Tokens in a chunk."""
        return self.size

    def kept(self, tokens: int) -> int:
        """Return `min(n, C)`: the cache of a chunk is as large as a window's."""
        return minimum(tokens, self.size)

    def pairs(self, tokens: int) -> int:
        """Return `(n // C) tri(C) + tri(n % C)`."""
        chunks = floor_div(tokens, self.size)
        return chunks * triangle(self.size) + triangle(tokens - chunks * self.size)

    def read(self, query_len: int, kv_len: int) -> int:
        """Return the tokens from the start of the first query's chunk on."""
        return kv_len - floor_div(kv_len - query_len, self.size) * self.size


@record
class GroupedAttention:
    """MHA, GQA or MQA: `num_heads` queries share `num_kv_heads` keys and values.

    `extras` are parameters beside the four projections: biases, query/key norms, sinks. A layer with
    `stores_kv` false reads the cache of an earlier layer. `query_gate` doubles the query projection
    (a sigmoid gate on the output).
    """

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    reach: Full | Sliding | Chunked
    stores_kv: bool = static(default=True)
    query_gate: bool = static(default=False)
    extras: tuple[Weight, ...] = ()

    @property
    def kind(self) -> str:
        """Name under which layers of this kind are reported."""
        return self.reach.kind

    @property
    def k_width(self) -> int:
        """Key elements per token."""
        return self.num_kv_heads * self.head_dim

    @property
    def v_width(self) -> int:
        """Value elements per token."""
        return self.num_kv_heads * self.v_head_dim

    @property
    def kv_width(self) -> int:
        """Elements per token."""
        return self.k_width + self.v_width

    @property
    def kv_split(self) -> int:
        """Most tensor-parallel ranks that divide the cache among themselves."""
        return self.num_kv_heads

    @property
    def state_elements(self) -> int:
        """Elements held per sequence whatever its length."""
        return 0

    def score_dims(self, execution: Execution) -> tuple[int, int]:
        """Return the (query-key, value) widths of one head's scores."""
        return self.head_dim, self.v_head_dim

    @property
    def projections(self) -> tuple[Weight, ...]:
        """The matrices applied to every token."""
        h, n, m = self.hidden_size, self.num_heads, self.num_kv_heads
        queries = n * self.head_dim * (2 if self.query_gate else 1)
        q = Weight(name="q_proj", shape=(h, queries), split=n, role="attention")
        k = Weight(name="k_proj", shape=(h, m * self.head_dim), split=m, role="attention")
        v = Weight(name="v_proj", shape=(h, m * self.v_head_dim), split=m, role="attention")
        o = Weight(name="o_proj", shape=(n * self.v_head_dim, h), split=n, split_rows=True, role="attention")
        return (q, k, v, o) if self.stores_kv else (q, o)

    @property
    def weights(self) -> tuple[Weight, ...]:
        """Every parameter of the layer's attention."""
        return self.projections + self.extras


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
    reach: Full | Sliding | Chunked
    stores_kv: bool = static(default=True)
    extras: tuple[Weight, ...] = ()

    @property
    def kind(self) -> str:
        """Name under which layers of this kind are reported."""
        return "mla"

    @property
    def k_width(self) -> int:
        """Elements stored per token: the latent and the rotary key."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def v_width(self) -> int:
        """Nothing: values are rebuilt from the latent."""
        return 0

    @property
    def kv_width(self) -> int:
        """Elements stored per token: not times heads, not times two."""
        return self.k_width

    @property
    def kv_split(self) -> int:
        """One: every tensor-parallel rank needs the whole latent."""
        return 1

    @property
    def state_elements(self) -> int:
        """Elements held per sequence whatever its length."""
        return 0

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
        down = Weight(name="kv_a_proj", shape=(h, self.kv_width), role="attention")
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
        return (*self.projections, self.up_projection, *self.norms, *self.extras)


Attention: TypeAlias = GroupedAttention | LatentAttention
