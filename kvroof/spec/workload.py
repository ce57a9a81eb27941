"""What is asked of a model: sequences in a step, requests in a batch."""

from __future__ import annotations

from typing import Literal, TypeAlias

from kvroof.ground.record import record, static

Phase: TypeAlias = Literal["prefill", "decode"]


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
    """One forward pass over a batch: groups of equal sequences.

    `phase` says what kernels run it, where the lengths are arrays that cannot be asked.
    """

    groups: tuple[Sequences, ...]
    phase: Phase | None = static(default=None)

    @property
    def kind(self) -> Phase:
        """Decode where every sequence runs one token, else prefill; as said, where it was said."""
        if self.phase is not None:
            return self.phase
        return "decode" if all(g.query_len == 1 for g in self.groups) else "prefill"

    @property
    def seqs(self) -> int:
        """Sequences in the step."""
        return sum(g.count for g in self.groups)

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
    return Step(groups=(group,), phase="prefill")


def decode(batch: int, kv_len: int, encoder_len: int = 0) -> Step:
    """Return the step that gives each of `batch` sequences its next token, with `kv_len` then cached."""
    group = Sequences(count=batch, query_len=1, kv_len=kv_len, encoder_len=encoder_len)
    return Step(groups=(group,), phase="decode")
