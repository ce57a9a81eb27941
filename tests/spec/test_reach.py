"""Every reach against the plainest oracle: write down which tokens each query sees, and count."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvroof.spec.reach import Chunked, Encoder, Full, Sliding, Strided

lengths = st.integers(0, 60)
windows = st.integers(1, 40)


def sees(reach, query):
    """Return the positions that the query at `query` (from 0) sees, its own included."""
    if isinstance(reach, Sliding):
        return set(range(max(0, query - reach.size + 1), query + 1))
    if isinstance(reach, Chunked):
        return set(range(query // reach.size * reach.size, query + 1))
    if isinstance(reach, Strided):  # entries, of which the one at e covers tokens up to (e + 1) ratio
        return {entry for entry in range(query + 1) if (entry + 1) * reach.ratio <= query + 1}
    return set(range(query + 1))


attending = st.one_of(
    st.just(Full()),
    st.builds(Sliding, size=windows),
    st.builds(Chunked, size=windows),
    st.builds(Strided, ratio=windows),
)


@given(attending, lengths)
def test_pairs_are_the_tokens_each_query_sees(reach, n):
    assert reach.pairs(n) == sum(len(sees(reach, i)) for i in range(n))


@given(attending.filter(lambda r: not isinstance(r, Strided)), lengths, st.data())
def test_read_is_the_union_of_what_the_queries_see(reach, kv_len, data):
    query_len = data.draw(st.integers(0 if kv_len == 0 else 1, kv_len))
    seen = set().union(*(sees(reach, i) for i in range(kv_len - query_len, kv_len)))
    assert reach.read(query_len, kv_len) == len(seen) or query_len == 0


@given(st.builds(Strided, ratio=windows), st.integers(1, 60), st.data())
def test_compressed_entries_are_read_once_each(reach, kv_len, data):
    query_len = data.draw(st.integers(1, kv_len))
    seen = set().union(*(sees(reach, i) for i in range(kv_len - query_len, kv_len)))
    assert reach.read(query_len, kv_len) == len(seen)


@given(windows, lengths)
def test_a_window_keeps_its_last_tokens(size, n):
    assert Sliding(size=size).kept(n) == len(sees(Sliding(size=size), n - 1) if n else ())
    assert Full().kept(n) == n
    assert Strided(ratio=size).kept(n) == n // size


@given(windows, lengths)
def test_a_chunk_keeps_at_least_what_the_next_query_sees(size, n):
    """The cache of a chunk is held like a window's, so it is never below the chunk's own tokens."""
    reach = Chunked(size=size)
    assert len(sees(reach, n)) - 1 <= reach.kept(n) <= min(n, size)


@given(lengths)
def test_cross_attention_adds_nothing_for_decoder_tokens(n):
    reach = Encoder()
    assert (reach.kept(n), reach.pairs(n), reach.read(min(n, 1), n)) == (0, 0, 0)


@settings(max_examples=30)
@given(attending, st.integers(0, 2**40), st.integers(0, 2**40))
def test_pairs_of_long_contexts_are_exact_integers(reach, a, b):
    a, b = sorted((a, b))
    assert isinstance(reach.pairs(b), int)
    assert 0 <= reach.pairs(b) - reach.pairs(a) <= (b - a) * b


@pytest.mark.parametrize(
    ("reach", "kind", "window"),
    [(Full(), "full", None), (Sliding(size=9), "sliding", 9), (Chunked(size=9), "chunked", 9)],
)
def test_a_reach_says_what_it_is(reach, kind, window):
    assert (reach.kind, reach.window) == (kind, window)


def test_the_windows_of_gemma_and_llama_4_at_their_own_sizes():
    assert Sliding(size=1024).kept(131_072) == 1024
    assert Sliding(size=1024).pairs(131_072) == 1024 * 1025 // 2 + 1024 * (131_072 - 1024)
    assert Chunked(size=8192).pairs(3 * 8192 + 5) == 3 * (8192 * 8193 // 2) + 15
