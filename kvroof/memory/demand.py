"""What is asked of a cache: how many sequences, how long, and what they share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from kvroof.ground.numeric import ceil_div, minimum
from kvroof.ground.record import record


@record
class Demand:
    """Sequences as `(cached tokens, how many)`; the first `shared_prefix` tokens are the same in all.

    Each has `encoder_tokens` beside them where the model has an encoder.
    """

    lengths: tuple[tuple[int, int], ...]
    shared_prefix: int = 0
    encoder_tokens: int = 0

    @property
    def seqs(self) -> int:
        """Sequences in all."""
        return sum(count for _, count in self.lengths)

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return max(length for length, _ in self.lengths)

    @property
    def shortest(self) -> int:
        """Tokens of the shortest sequence."""
        return min(length for length, _ in self.lengths)

    @property
    def tokens(self) -> int:
        """Tokens of all sequences, the shared prefix once."""
        return sum(length * count for length, count in self.lengths) - self.shared_prefix * (self.seqs - 1)


def equal_lengths(tokens: int, seqs: int, shared_prefix: int = 0, encoder_tokens: int = 0) -> Demand:
    """Return `seqs` sequences of `tokens` each."""
    return Demand(lengths=((tokens, seqs),), shared_prefix=shared_prefix, encoder_tokens=encoder_tokens)


def ragged(lengths: Iterable[int], shared_prefix: int = 0, encoder_tokens: int = 0) -> Demand:
    """Return sequences of the given lengths."""
    counted = tuple(Counter(lengths).items())
    return Demand(lengths=counted, shared_prefix=shared_prefix, encoder_tokens=encoder_tokens)


def busiest(demand: Demand, groups: int) -> Demand:
    """Return what the fullest of `groups` holds when each takes an even share of the sequences.

    Of lengths that differ the longest are taken: no engine balances their sum exactly.
    """
    if groups == 1:
        return demand
    left, taken = ceil_div(demand.seqs, groups), []
    for length, count in sorted(demand.lengths, reverse=True):
        taken.append((length, minimum(count, left)))
        left -= taken[-1][1]
        if not left:
            break
    return replace(demand, lengths=tuple(taken))


def along_context(demand: Demand, ranks: int) -> Demand:
    """Return what one of `ranks` holds that share the tokens of every sequence among themselves."""
    if ranks == 1:
        return demand
    return replace(
        demand,
        lengths=tuple((ceil_div(length, ranks), count) for length, count in demand.lengths),
        shared_prefix=demand.shared_prefix // ranks,
    )
