"""What is asked of a model: sequences in a step, requests in a batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, TypeAlias

from kvroof.ground.numeric import whole_blocks
from kvroof.ground.record import record, static

Phase: TypeAlias = Literal["prefill", "decode"]


@record
class Sequences:
    """`count` equal sequences of one step: the last `query_len` of `kv_len` tokens are run.

    Decode is `query_len` 1, a prefill chunk any other, verification of k drafted tokens `k + 1`.
    `sampled` positions of each sequence pass through the LM head. Cross-attention sees `encoder_len` tokens,
    whose keys and values the sequence's first step makes; with none it does not run. `phase` says what
    kernels run them, where the length is an array that cannot be asked.
    """

    count: int
    query_len: int
    kv_len: int
    sampled: int = 1
    encoder_len: int = static(default=0)
    phase: Phase | None = static(default=None)

    @property
    def kind(self) -> Phase:
        """Decode where one token is run, else prefill; as said, where it was said."""
        if self.phase is not None:
            return self.phase
        return "decode" if self.query_len == 1 else "prefill"


@record
class Step:
    """One forward pass over a batch: groups of equal sequences, of one phase or of both."""

    groups: tuple[Sequences, ...]

    @property
    def phases(self) -> tuple[tuple[Phase, Step], ...]:
        """The step's sequences by the kernels that run them: a mixed step has both."""
        kinds = tuple(dict.fromkeys(group.kind for group in self.groups))
        if len(kinds) == 1:
            return ((kinds[0], self),)
        return tuple((k, Step(groups=tuple(g for g in self.groups if g.kind == k))) for k in kinds)

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

    def shared(self, ranks: int) -> Step:
        """Return what the fullest of `ranks` runs when each takes an even share of every group."""
        if isinstance(ranks, int) and ranks == 1:
            return self
        return Step(groups=tuple(replace(g, count=whole_blocks(g.count, ranks)) for g in self.groups))


def prefill(batch: int, isl: int, cached: int = 0, encoder_len: int = 0) -> Step:
    """Return the step that runs `batch` prompts of `isl` tokens, the first `cached` of them in cache."""
    group = Sequences(
        count=batch, query_len=isl - cached, kv_len=isl, encoder_len=encoder_len, phase="prefill"
    )
    return Step(groups=(group,))


def decode(batch: int, kv_len: int, encoder_len: int = 0) -> Step:
    """Return the step that gives each of `batch` sequences its next token, with `kv_len` then cached."""
    group = Sequences(count=batch, query_len=1, kv_len=kv_len, encoder_len=encoder_len, phase="decode")
    return Step(groups=(group,))


def mixed(*steps: Step) -> Step:
    """Return one step that runs what several would: a chunk of a prompt beside running decodes."""
    return Step(groups=tuple(group for step in steps for group in step.groups))


def verify(batch: int, kv_len: int, drafted: int, encoder_len: int = 0) -> Step:
    """Return the step that checks `drafted` tokens of each sequence and samples one more.

    `kv_len` tokens are then cached. The kernels are those of decode: few queries, a long cache.
    """
    run = drafted + 1
    group = Sequences(
        count=batch, query_len=run, kv_len=kv_len, sampled=run, encoder_len=encoder_len, phase="decode"
    )
    return Step(groups=(group,))
