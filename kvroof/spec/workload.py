"""What is asked of a model: sequences in a step, requests in a batch."""

from __future__ import annotations

from kvroof.ground.record import record, static


@record
class Sequences:
    """`count` equal sequences of one step: the last `query_len` of `kv_len` tokens are run.

    Decode is `query_len` 1, a prefill chunk any other, verification of k drafted tokens `k + 1`.
    `sampled` positions of each sequence pass through the LM head. Cross-attention sees `encoder_len` tokens,
    whose keys and values the sequence's first step makes; with none it does not run.
    """

    count: int
    query_len: int
    kv_len: int
    sampled: int = 1
    encoder_len: int = static(default=0)


@record
class Step:
    """One forward pass over a batch: groups of equal sequences."""

    groups: tuple[Sequences, ...]

    @property
    def tokens(self) -> int:
        """Tokens run through the layers."""
        return sum(g.count * g.query_len for g in self.groups)

    @property
    def sampled(self) -> int:
        """Positions that pass through the LM head."""
        return sum(g.count * g.sampled for g in self.groups)


def prefill(batch: int, isl: int, cached: int = 0, encoder_len: int = 0) -> Step:
    """Return the step that runs `batch` prompts of `isl` tokens, the first `cached` of them in cache."""
    group = Sequences(count=batch, query_len=isl - cached, kv_len=isl, encoder_len=encoder_len)
    return Step(groups=(group,))


def decode(batch: int, kv_len: int, encoder_len: int = 0) -> Step:
    """Return the step that gives each of `batch` sequences its next token, with `kv_len` then cached."""
    return Step(groups=(Sequences(count=batch, query_len=1, kv_len=kv_len, encoder_len=encoder_len),))
