"""Reaches: which earlier tokens a query sees, and so which tokens a layer keeps."""

from __future__ import annotations

from typing import ClassVar, Protocol, TypeAlias

from kvroof.ground.numeric import floor_div, maximum, minimum, triangle
from kvroof.ground.record import record


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

    kind: ClassVar[str] = "full"
    window: ClassVar[int | None] = None

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

    kind: ClassVar[str] = "sliding"

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

    kind: ClassVar[str] = "chunked"

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
class Encoder:
    """The tokens of an encoder, all of them, fixed once the prompt is encoded (cross-attention)."""

    kind: ClassVar[str] = "cross"
    window: ClassVar[int | None] = None

    def kept(self, tokens: int) -> int:
        """Return 0: decoder tokens add nothing; the encoder's are counted apart."""
        return 0 * tokens

    def pairs(self, tokens: int) -> int:
        """Return 0: pairs with encoder tokens are not causal pairs."""
        return 0 * tokens

    def read(self, query_len: int, kv_len: int) -> int:
        """Return 0: the decoder's cache is not read."""
        return 0 * kv_len


@record
class Strided:
    """One compressed entry per `ratio` tokens (DeepSeek-V4): a query sees every entry complete before it."""

    ratio: int

    kind: ClassVar[str] = "compressed"
    window: ClassVar[int | None] = None

    def kept(self, tokens: int) -> int:
        """Return the complete entries, `n // ratio`."""
        return floor_div(tokens, self.ratio)

    def pairs(self, tokens: int) -> int:
        """Return the sum of `i // ratio` over queries i = 1 ... n."""
        entries = floor_div(tokens, self.ratio)
        rest = tokens - entries * self.ratio
        return self.ratio * (triangle(entries) - entries) + entries * (rest + 1)

    def read(self, query_len: int, kv_len: int) -> int:
        """Return every complete entry."""
        return floor_div(kv_len, self.ratio)


@record
class Selected:
    """The `size` entries that an indexer picks for each query, of one per `ratio` tokens; all are kept."""

    size: int
    ratio: int = 1

    kind: ClassVar[str] = "selected"

    @property
    def window(self) -> int | None:
        """Most entries a query sees."""
        return self.size

    def kept(self, tokens: int) -> int:
        """Return every entry: what is picked changes from query to query."""
        return Strided(ratio=self.ratio).kept(tokens)

    def pairs(self, tokens: int) -> int:
        """Return the pairs of all entries while they are at most `size`, then `size` per query."""
        few = self.size * self.ratio
        return Strided(ratio=self.ratio).pairs(minimum(tokens, few)) + self.size * maximum(tokens - few, 0)

    def read(self, query_len: int, kv_len: int) -> int:
        """Return at most `size` entries per query, and no more than there are."""
        return minimum(self.kept(kv_len), self.size * query_len)


AnyReach: TypeAlias = Full | Sliding | Chunked | Encoder | Strided | Selected
