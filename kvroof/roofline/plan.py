"""A deployment: a model on a machine, with every choice that its cost depends on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kvroof.catalog.models import load_model
from kvroof.catalog.profiles import load_hardware
from kvroof.cost.forward import Run, forward
from kvroof.cost.op import Op
from kvroof.ground.dtypes import DTYPES, parse_dtype
from kvroof.ground.record import record, static
from kvroof.memory.allocators import Allocator, parse_allocator
from kvroof.roofline.efficiency import IDENTITY, Efficiency
from kvroof.roofline.roofline import Host, Timed, arithmetic, price_all, serial_s
from kvroof.spec.architecture import Architecture
from kvroof.spec.attention import Execution, LatentAttention
from kvroof.spec.hardware import Hardware
from kvroof.spec.parallel import Layout, check_layout
from kvroof.spec.params import parse_formats, weight_bytes
from kvroof.spec.precision import KVFormat, parse_kv_format
from kvroof.spec.weights import WeightFormats
from kvroof.spec.workload import Step


@record
class Plan:
    """A model on `layout.devices` machines, with the dtypes and the efficiency it runs at."""

    model: Architecture
    hardware: Hardware
    layout: Layout = Layout()
    kv_format: KVFormat
    formats: WeightFormats | None = None
    allocator: Allocator = Allocator()
    compute_dtype: str | None = static(default=None)
    io_aware: bool = static(default=True)
    efficiency: Efficiency = IDENTITY
    host: Host = Host()

    @classmethod
    def of(
        cls,
        model: Architecture | str | Path,
        hardware: Hardware | str | Path,
        *,
        tp: int = 1,
        kv_dtype: str = "auto",
        weights_dtype: str = "auto",
        compute_dtype: str | None = None,
        block_size: int = 16,
        allocator: str = "paged",
        io_aware: bool = True,
        efficiency: Efficiency = IDENTITY,
        host_bytes_per_s: float | None = None,
    ) -> Plan:
        """Return a plan from names or records, checked.

        Args:
            model: A catalog name, a path to a config, or an architecture.
            hardware: A catalog name, a path to a profile, or a machine.
            tp: Tensor-parallel ranks.
            kv_dtype: `auto`, a dtype, or a pair `K/V`.
            weights_dtype: Storage of the layers' matrices: `auto` or a dtype.
            compute_dtype: Arithmetic forced on every matrix; None takes what the chip has.
            block_size: Tokens in a KV block.
            allocator: What is set aside for the sequences.
            io_aware: Whether attention keeps its scores on chip.
            efficiency: A calibration; the identity gives bounds.
            host_bytes_per_s: Bandwidth of host memory, where the host runs what is offloaded to it.

        Raises:
            BadInput: An impossible layout, dtype or name.
        """
        arch = model if isinstance(model, Architecture) else load_model(model)
        machine = hardware if isinstance(hardware, Hardware) else load_hardware(str(hardware))
        layout = Layout(tp=tp)
        check_layout(arch, layout)
        return cls(
            model=arch,
            hardware=machine,
            layout=layout,
            kv_format=parse_kv_format(kv_dtype, arch),
            formats=parse_formats(weights_dtype, arch),
            allocator=parse_allocator(allocator, block_size, limit=arch.max_position_embeddings),
            compute_dtype=None
            if compute_dtype is None
            else parse_dtype(compute_dtype, "--compute-dtype").name,
            io_aware=io_aware,
            efficiency=efficiency,
            host=Host(bytes_per_s=host_bytes_per_s),
        )

    @property
    def weights_bytes(self) -> int:
        """Weights on the fullest rank."""
        return weight_bytes(self.model, self.formats, self.layout.tp)

    def run(self, latent: Execution) -> Run:
        """Return how the model is executed, latent attention in the given form."""
        return Run(
            formats=self.formats,
            kv_format=self.kv_format,
            activation=DTYPES[self.model.dtype],
            compute=self.compute_dtype,
            tp=self.layout.tp,
            latent=latent,
            io_aware=self.io_aware,
        )

    def cheaper(self, step: Step) -> tuple[Timed, ...]:
        """Return the operations of one step with latent attention in whichever form takes less time.

        Raises:
            BadInput: A compute dtype that the machine lacks.
            Unsupported: A peak or a link that is not known.
        """
        absorbed = self.time(step, "absorbed")
        if not any(isinstance(m, LatentAttention) for g in self.model.layers for m in g.layer.mixers):
            return absorbed
        return min(absorbed, self.time(step, "expanded"), key=serial_s)

    def time(self, step: Step, latent: Execution = "absorbed") -> tuple[Timed, ...]:
        """Return the operations of one step with their seconds.

        Raises:
            BadInput: A compute dtype that the machine lacks.
            Unsupported: A peak or a link that is not known.
        """
        ops = forward(self.model, step, self.run(latent))
        timed = price_all(ops, self.hardware, self.efficiency, self.host)
        return timed if self.efficiency.name is None else (*timed, self._host_time(step))

    def _host_time(self, step: Step) -> Timed:
        """Return the host's own time in a step: scheduling, sampling, and what each sequence adds."""
        seconds = self.efficiency.host_step_s + self.efficiency.host_seq_s * step.seqs
        nothing = {"net_bytes": 0.0, "compute_s": 0.0, "hbm_s": 0.0, "network_s": 0.0}
        return Timed(op=Op(name="host", kind="host", count=1), overhead_s=seconds, **nothing)


def arithmetic_used(timed: Sequence[Timed], hardware: Hardware) -> tuple[str, ...]:
    """Return the compute dtypes that operations with FLOPs ran in, in the order they appear."""
    return tuple(
        dict.fromkeys(arithmetic(t.op, hardware) for t in timed if t.op.kind in ("gemm", "moe", "attention"))
    )
