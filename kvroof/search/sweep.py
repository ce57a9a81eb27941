"""The step model over millions of points: vmapped, in chunks of bounded memory, sharded over all devices.

The distribution is JAX's own. Each process holds the devices it sees; with several hosts call
`jax.distributed.initialize()` in each of them first, and run the same sweep everywhere: every process gets
all results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Literal, TypeAlias

from kvroof.ground.errors import BadInput
from kvroof.roofline.plan import Plan
from kvroof.search.points import Steps
from kvroof.serving.step_times import check_not_crossing
from kvroof.spec.workload import decode, prefill

Phase: TypeAlias = Literal["prefill", "decode"]
Columns: TypeAlias = dict[str, Any]

MOST_POINTS = 2**18
"""Points that are in flight at once: about 2 MiB for each quantity of an operation."""
LENGTHS = {"decode": "kv_len", "prefill": "isl"}
"""What the second axis of each phase is called."""


def double_precision() -> Any:
    """Return a context in which JAX computes in 64 bits."""
    import jax

    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(True)
    return import_module("jax.experimental").enable_x64()


def keep_compilations(folder: str) -> None:
    """Let JAX keep what it compiles in `folder`, and find it there in the next process, unless it has one."""
    config: Any = import_module("jax").config
    if config.jax_compilation_cache_dir is None:
        config.update("jax_compilation_cache_dir", folder)
        config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        config.update("jax_persistent_cache_min_entry_size_bytes", 0)


class StepSweep:
    """A plan's steps of one phase, compiled once and evaluated at as many points as are asked.

    Args:
        plan: The deployment.
        phase: `decode`, of `batch` sequences with `kv_len` cached tokens, or `prefill`, of `batch` prompts
            of `isl` tokens.
        devices: JAX devices to share the points among; None takes all.
        most_points: Points in flight at once.

    Raises:
        BadInput: Another phase, or no points in flight.
        Unsupported: A model with cross-attention.
    """

    def __init__(
        self,
        plan: Plan,
        phase: Phase = "decode",
        *,
        devices: Sequence[Any] | None = None,
        most_points: int = MOST_POINTS,
    ) -> None:
        import jax
        import numpy as np

        if phase not in LENGTHS:
            raise BadInput(f"{phase!r} is neither prefill nor decode", where="phase")
        if most_points < 1:
            raise BadInput(f"{most_points} points", where="most_points")
        check_not_crossing(plan.model)
        self.plan, self.phase, self.most_points = plan, phase, most_points
        self._mesh = jax.sharding.Mesh(np.array(devices or jax.devices()), ("points",))
        step, steps = (decode if phase == "decode" else prefill), Steps(plan=plan)
        self._one: Callable[[Any, Any], Any] = lambda batch, length: steps.seconds(step(batch, length))
        self._compiled: dict[bool, Any] = {}

    def grid(self, batches: Any, lengths: Any) -> Columns:
        """Return the columns of every batch with every length, the lengths innermost.

        What depends on the batch alone is computed once per batch.

        Raises:
            BadInput: An axis without values, or with one that is not positive.
        """
        import numpy as np

        batches, lengths = _axis(batches, "batch"), _axis(lengths, LENGTHS[self.phase])
        seconds = self._evaluated(batches, lengths, grid=True).ravel()
        return self._columns(np.repeat(batches, len(lengths)), np.tile(lengths, len(batches)), seconds)

    def points(self, batches: Any, lengths: Any) -> Columns:
        """Return the columns of a list of points.

        Raises:
            BadInput: Lists of different lengths, or a value that is not positive.
        """
        batches, lengths = _axis(batches, "batch"), _axis(lengths, LENGTHS[self.phase])
        if len(batches) != len(lengths):
            raise BadInput(f"{len(batches)} batches and {len(lengths)} lengths are no points", where="sweep")
        return self._columns(batches, lengths, self._evaluated(batches, lengths, grid=False))

    def _columns(self, batches: Any, lengths: Any, seconds: Any) -> Columns:
        tokens = batches if self.phase == "decode" else batches * lengths
        return {
            "batch": batches,
            LENGTHS[self.phase]: lengths,
            "seconds": seconds,
            "tokens_per_s": tokens / seconds,
        }

    def _evaluated(self, batches: Any, lengths: Any, grid: bool) -> Any:
        """Return the seconds of all points, chunk after chunk."""
        import numpy as np

        count = self._mesh.size
        rows = max(self.most_points // (len(lengths) if grid else 1) // count, 1) * count
        rows = min(rows, -(-len(batches) // count) * count)
        found = []
        with double_precision():
            run = self._run(grid)
            for start in range(0, len(batches), rows):
                part = batches[start : start + rows]
                other = lengths if grid else lengths[start : start + rows]
                kept = len(part)
                part = np.pad(part, (0, rows - kept), mode="edge")
                if not grid:
                    other = np.pad(other, (0, rows - kept), mode="edge")
                found.append(_gathered(run(self._placed(part), self._placed(other, whole=grid)))[:kept])
        return np.concatenate(found)

    def _run(self, grid: bool) -> Any:
        import jax

        if grid not in self._compiled:
            lengthwise = jax.vmap(self._one, (None, 0)) if grid else self._one
            both = jax.vmap(lengthwise, (0, None) if grid else (0, 0))
            self._compiled[grid] = jax.jit(both, out_shardings=self._sharding())
        return self._compiled[grid]

    def _sharding(self, whole: bool = False) -> Any:
        import jax

        spec: Any = jax.sharding.PartitionSpec
        return jax.sharding.NamedSharding(self._mesh, spec() if whole else spec("points"))

    def _placed(self, values: Any, whole: bool = False) -> Any:
        """Return an array of all processes, each of which puts its share of it on its devices."""
        import jax

        return jax.make_array_from_callback(values.shape, self._sharding(whole), lambda index: values[index])


def _axis(values: Any, name: str) -> Any:
    import numpy as np

    found = np.atleast_1d(np.asarray(values, np.float64))
    if found.ndim != 1 or not found.size or not (found > 0).all():
        raise BadInput("a sweep needs positive numbers", where=name)
    return found


def _gathered(array: Any) -> Any:
    """Return an array on the host, in every process."""
    import jax
    import numpy as np

    if jax.process_count() > 1:
        from jax.experimental.multihost_utils import process_allgather

        return np.asarray(process_allgather(array, tiled=True))
    return np.asarray(array)
