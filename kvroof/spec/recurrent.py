"""Layers with a fixed state in place of a growing cache: Mamba, gated delta rules, short convolutions."""

from __future__ import annotations

from kvroof.ground.record import record, static
from kvroof.spec.cache import Cache, State
from kvroof.spec.weights import Weight


@record
class Recurrent:
    """A mixer that folds each token into a state of fixed size.

    `projections` are the matrices applied to every token, the output's last. `scan_flops` are the FLOPs
    per token of the convolution and of the recurrence itself. `extras` are small parameters: the
    convolution, decay, time-step biases, norms.
    """

    kind: str = static()
    projections: tuple[Weight, ...]
    held: State
    scan_flops: int
    shared: bool = static(default=False)
    extras: tuple[Weight, ...] = ()

    @property
    def caches(self) -> tuple[Cache, ...]:
        """Nothing grows with tokens."""
        return ()

    @property
    def state(self) -> State | None:
        """What is held per sequence."""
        return self.held

    @property
    def weights(self) -> tuple[Weight, ...]:
        """Every parameter of the mixer."""
        return self.projections + self.extras
