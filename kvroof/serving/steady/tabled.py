"""Mixed steps from a table, for those who ask for thousands of them: interpolated, so never the last word."""

from __future__ import annotations

from typing import Any

from kvroof.serving.demand.traffic import Traffic
from kvroof.serving.step_times import StepTimes

TOKENS, CACHED, PROMPTS, SEQS = 14, 3, 6, 12
"""Points of the table along each axis; tokens, prompts and sequences are spaced by their logarithm."""


class TabledTimes:
    """Step times whose mixed steps, at the traffic's mean context, are interpolated in a table made once.

    Args:
        times: What the table is made of, and what answers everything else.
        asked: The requests: their longest prompt bounds the table.
        most_tokens: Prompt tokens of a step at most.
        most_seqs: Sequences at most.
    """

    def __init__(self, times: StepTimes, asked: Traffic, most_tokens: float, most_seqs: int) -> None:
        self._times, self._context = times, asked.context
        self._most = most_tokens, asked.isl.longest, 64.0, float(most_seqs)
        self._table: Any = None

    def prefill_s(self, tokens: Any, cached: Any = 0, prompts: Any = 1) -> Any:
        """Return the prefill, not from the table."""
        return self._times.prefill_s(tokens, cached, prompts)

    def decode_s(self, batch: Any, context: Any) -> Any:
        """Return the decode, not from the table."""
        return self._times.decode_s(batch, context)

    def mixed_s(self, tokens: Any, cached: Any, prompts: Any, batch: Any, context: Any) -> Any:
        """Return the mixed step from the table; beyond it, from its last interval."""
        import numpy as np

        if self._table is None:
            self._table = self._made()
        found = np.broadcast_arrays(*(np.asarray(a, float) for a in (tokens, cached, prompts, batch)))
        return self._table(np.stack(found, axis=-1))

    def _made(self) -> Any:
        import numpy as np
        from scipy.interpolate import RegularGridInterpolator  # type: ignore[import-untyped, unused-ignore]

        tokens, cached, prompts, seqs = self._most
        axes = (
            np.geomspace(1, max(tokens, 2), TOKENS),
            np.linspace(0, max(cached, 1), CACHED),
            np.geomspace(1, prompts, PROMPTS),
            np.concatenate([[0.0], np.geomspace(1, max(seqs, 2), SEQS - 1)]),
        )
        grid = [g.ravel() for g in np.meshgrid(*axes, indexing="ij")]
        none = grid[3] == 0
        values = np.empty(len(none))
        run, before, count, batch = grid
        values[none] = self._times.prefill_s(run[none], before[none], count[none])
        values[~none] = self._times.mixed_s(
            run[~none], before[~none], count[~none], batch[~none], self._context
        )
        shaped = values.reshape([len(axis) for axis in axes])
        return RegularGridInterpolator(axes, shaped, bounds_error=False, fill_value=None)
