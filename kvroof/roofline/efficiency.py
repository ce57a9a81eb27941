"""How much of a machine's peaks is reached. Identity by default: an uncalibrated time is a bound.

A kernel's time is an overhead plus a soft maximum of what keeps it busy: bytes, arithmetic, work items,
the chain of its longest item, and the exponentials of softmax. Few parameters, each positive, smooth, and
written once for floats, NumPy and JAX.
"""

from __future__ import annotations

import math
from dataclasses import field, replace
from functools import reduce

from kvroof.ground.numeric import maximum, minimum
from kvroof.ground.record import record, static

UNIT_S = 1e-6
"""Times are raised to a power in microseconds, which keeps them far from the ends of float64."""
TINY = 1e-30
"""The least sum of powers, so that no work has a slope instead of none."""
DEPTH_UNIT = 1024
TREE_RANKS = 16
"""Ranks from which a tree is weighed against a ring; among fewer a one-shot is quicker than either."""
MISS_POWER = 12
"""How sharply a working set stops fitting a cache that is swept from end to end (LRU: at once)."""


@record
class Kernel:
    """Seconds of one family of kernels; the default is the pure bound `max(bytes / BW, flops / peak)`.

    `t0_s` is paid by every launch. `hbm` and `compute` are the shares of the peaks that are reached.
    `item_s` is the time per work item once they queue (sequences x KV heads in decode, query tiles in
    prefill, output tiles of a product, tiles of experts); `depth_s` that of a chain of 1024 (cached
    tokens, or the inner dimension), to the power `depth_power`: 1 where one item walks its whole chain,
    1/2 where the kernel splits it so that the walk and the merging balance. `score_s` is per query-key
    pair and head: exponentials. `sharpness` p of the soft maximum `(sum x**p) ** (1 / p)`; None is the
    hard maximum. A cache of `llc_bytes` serves a working set that fits `llc_gain` times faster, where the
    data are still there (`warm`): repeated benchmarks, not a serving step, which has read other layers
    in between.
    """

    t0_s: float = 0.0
    hbm: float = 1.0
    compute: float = 1.0
    sharpness: float | None = None
    item_s: float = 0.0
    depth_s: float = 0.0
    score_s: float = 0.0
    llc_bytes: float = 0.0
    llc_gain: float = 1.0
    depth_power: float = static(default=1.0)

    def seconds(
        self,
        flops: float,
        hbm_bytes: float,
        peak_flops_per_s: float,
        hbm_bytes_per_s: float,
        *,
        items: float = 0.0,
        depth: float = 0.0,
        scores: float = 0.0,
        warm: bool = False,
    ) -> float:
        """Return `t0 + (sum of busy**p)**(1/p)` over the parts that keep the kernel busy.

        Numbers, NumPy or JAX arrays alike; monotone in every argument but the peaks.
        """
        memory_s = hbm_bytes / (self.hbm * hbm_bytes_per_s)
        if warm:
            memory_s = memory_s * self._slowed(hbm_bytes)
        parts = [memory_s, flops / (self.compute * peak_flops_per_s)]
        if _is_there(self.item_s):
            parts.append(items * self.item_s)
        if _is_there(self.depth_s):
            parts.append(self.depth_s * ((depth + 1) / DEPTH_UNIT) ** self.depth_power)
        if _is_there(self.score_s):
            parts.append(scores * self.score_s)
        if self.sharpness is None:
            largest: float = reduce(maximum, parts)
            return self.t0_s + largest
        total: float = sum((part / UNIT_S) ** self.sharpness for part in parts)
        smooth: float = UNIT_S * maximum(total, TINY) ** (1 / self.sharpness)
        return smooth + self.t0_s

    def _slowed(self, working_set: float) -> float:
        """Return the time per byte relative to HBM's: 1 / gain in the cache, 1 well beyond it."""
        fits: float = minimum(self.llc_bytes / maximum(working_set, 1.0), 1e3) ** MISS_POWER
        missed = 1 / (1 + fits)
        return missed + (1 - missed) / self.llc_gain


def _is_there(parameter: float) -> bool:
    """Return whether a part may take time: a plain 0 says that the kernel has none."""
    return not isinstance(parameter, (int, float)) or parameter != 0


@record
class Wire:
    """Seconds of one collective: the cheaper of a one-shot and a two-step (or ring) algorithm.

    One-shot: `start_s + (n - 1) m / B`, every rank sending all to all. Two-step or ring:
    `ring_s + p (n - 1) / n m / B` with p = 2 passes for an all-reduce and 1 for the others. Starts grow
    by `per_rank` of themselves with each rank beyond two. `B = net (2 / n)**crowding` of the link's rate,
    one way; crowding is what ranks behind one switch or bridge take from each other. Without `start_s`
    there is no one-shot. All-reduces may also take a double tree, whose start grows with the `2 log2 n` hops
    it takes and which sends `2 m`, or, with `in_switch`, a switch that sums what passes through it, so that
    each rank sends `m`; a fitted ring already holds what the switch gave.

    Source: Sanders, Speck and Traeff 2009 (double trees); NVIDIA's Hopper white paper (NVLink SHARP);
    Patarasuk and Yuan 2009 (ring); TensorRT-LLM's and vLLM's custom all-reduce (one and two steps).
    """

    ring_s: float = 0.0
    per_rank: float = 0.0
    net: float = 1.0
    crowding: float = 0.0
    start_s: float | None = None
    in_switch: bool = static(default=False)

    def seconds(
        self,
        message_bytes: float,
        ranks: float,
        bytes_per_s: float,
        passes: float = 1.0,
        *,
        in_switch: bool = False,
    ) -> float:
        """Return the seconds to move a message of `message_bytes` (gathered size) among `ranks`.

        `in_switch` says that the collective is an all-reduce on links whose switch can sum.
        """
        crowded: float = (2 / ranks) ** self.crowding
        rate = self.net * crowded * bytes_per_s
        growth = 1 + self.per_rank * (ranks - 2)
        best = self.ring_s * growth + passes * (ranks - 1) / ranks * message_bytes / rate
        if self.start_s is not None:
            best = minimum(best, self.start_s * growth + (ranks - 1) * message_bytes / rate)
        if passes == 2 and isinstance(ranks, int) and ranks >= TREE_RANKS:
            hops = 2 * math.log2(ranks)
            tree = self.ring_s * (1 + self.per_rank * (hops - 2)) + 2 * message_bytes / rate
            best = minimum(best, tree)
        if in_switch and self.in_switch:
            best = minimum(best, self.ring_s + message_bytes / rate)
        return best


@record
class Efficiency:
    """Shares of the peaks that are reached, and the seconds that launches and the host cost.

    The identity reaches every peak and launches for free. `kernels` and `wires` are by family
    (`gemm.bf16`, `attention.decode`, `all_reduce`); what has none runs at `compute`, `hbm` and `net`.
    `sigma` is the standard deviation of log residuals by family, `mape` the held-out error (a share, not
    percent) and `held_out_mape` their median; without a calibration there is none to state. `host_step_s`
    and `host_seq_s` are the host's time per step and per running sequence. `sources` and `notes` say
    where it all comes from and what it is not.
    """

    name: str | None = static(default=None)
    compute: float = 1.0
    hbm: float = 1.0
    net: float = 1.0
    launch_s: float = 0.0
    held_out_mape: float | None = None
    kernels: dict[str, Kernel] = field(default_factory=dict)
    wires: dict[str, Wire] = field(default_factory=dict)
    mape: dict[str, float] = field(default_factory=dict)
    sigma: dict[str, float] = field(default_factory=dict)
    host_step_s: float = 0.0
    host_seq_s: float = 0.0
    sources: tuple[str, ...] = static(default=())
    notes: tuple[str, ...] = static(default=())

    def family(self, wanted: str) -> str | None:
        """Return the fitted family that `wanted` is priced with: itself or its nearest relative, or None.

        `attention.decode.fp8` falls back to `attention.decode`, `gemm.fp8_block` to `gemm.fp8` and then
        `gemm.bf16`, `moe.x` to any other experts' and then to `gemm.x`.
        """
        return next((name for name in _relatives(wanted) if name in self.kernels), None)

    def kernel(self, wanted: str) -> Kernel:
        """Return the kernel for a family; without a fitted one, the shares `compute` and `hbm`."""
        found = self.family(wanted)
        return (
            self.kernels[found] if found else Kernel(t0_s=self.launch_s, hbm=self.hbm, compute=self.compute)
        )

    def wire(self, collective: str) -> Wire:
        """Return the collective's wire; without a fitted one, the all-reduce's ring, or the share `net`."""
        if collective in self.wires:
            return self.wires[collective]
        known = self.wires.get("all_reduce")
        if known is None:
            return Wire(ring_s=self.launch_s, net=self.net, in_switch=True)
        return replace(known, start_s=None)

    def spread(self, wanted: str) -> float:
        """Return the log-residual standard deviation of what `wanted` is priced with; 0 for a bound."""
        found = self.family(wanted)
        return self.sigma.get(found or wanted, self.sigma.get("all_reduce", 0.0) if found is None else 0.0)


def _relatives(wanted: str) -> tuple[str, ...]:
    """Return `wanted` and the families that may stand in for it, nearest first."""
    head, _, kind = wanted.partition(".")
    if head in ("scan", "vector", "lookup"):
        return (wanted, head, "elementwise")
    if head in ("attention", "mla"):
        phase = kind.partition(".")[0]
        return (wanted, f"{head}.{phase}", f"attention.{phase}")
    near = {"fp8_block": "fp8", "fp8": "fp8_block", "mxfp4": "nvfp4", "int4": "bf16", "nvfp4": "fp8_block"}
    kinds = dict.fromkeys((kind, near.get(kind, "bf16"), "fp8" if "fp" in kind else "bf16", "bf16"))
    own = tuple(f"{head}.{k}" for k in kinds) if kind else (wanted,)
    return (*own, *(f"gemm.{k}" for k in kinds)) if head == "moe" else own


IDENTITY = Efficiency()
"""Reaches every peak and launches for free: what is priced with it is a bound."""
GENERIC = "generic"
"""The name of the shipped calibration of a typical machine."""
