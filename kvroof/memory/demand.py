"""What is asked of a cache: how many sequences, how long, and what they share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

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
