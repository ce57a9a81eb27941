"""What a simulated step runs, summed up so that its seconds can be asked a million times."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from kvroof.schedule.rounds import Round
from kvroof.spec.workload import Sequences, Step


class StepBatch:
    """One step: decodes by their number and their tokens in cache, prompts one by one.

    Attributes:
        decodes: Sequences that run one token.
        decode_kv: Tokens they have in cache then, all together, the new ones included.
        prefills: `(query_len, kv_len)` of the others.
        swapped_blocks: Blocks that are copied to or from the host before the step.
    """

    __slots__ = ("_first_kv", "_lengths", "decode_kv", "decodes", "prefills", "swapped_blocks")

    def __init__(self, round_: Round) -> None:
        lengths, prefills = [], []
        for _, query_len, kv_len, _ in round_.members:
            if query_len == 1:
                lengths.append(kv_len)
            else:
                prefills.append((query_len, kv_len))
        self._lengths = lengths
        self.decodes = len(lengths)
        self.decode_kv = self._first_kv = sum(lengths)
        self.prefills = tuple(prefills)
        self.swapped_blocks = len(round_.swapped_out) + len(round_.swapped_in)

    @property
    def decode_lengths(self) -> list[int]:
        """Tokens in cache of each decode, in the order of the round."""
        if not self.decodes:
            return []
        later = (self.decode_kv - self._first_kv) // self.decodes
        return [length + later for length in self._lengths]

    @property
    def tokens(self) -> int:
        """Tokens run in the step."""
        return self.decodes + sum(query_len for query_len, _ in self.prefills)

    def step(self) -> Step:
        """Return the step with every sequence in it, equal decodes in one group."""
        counts: dict[int, int] = {}
        for length in self.decode_lengths:
            counts[length] = counts.get(length, 0) + 1
        groups = [Sequences(count=n, query_len=1, kv_len=kv, phase="decode") for kv, n in counts.items()]
        groups += [Sequences(count=1, query_len=q, kv_len=kv, phase="prefill") for q, kv in self.prefills]
        return Step(groups=tuple(groups))


StepSeconds: TypeAlias = Callable[[StepBatch], float]
"""Seconds of a step. The same batch always takes the same time."""
