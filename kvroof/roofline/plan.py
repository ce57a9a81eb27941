"""A deployment: a model on a machine, with every choice that its cost depends on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from pathlib import Path

from kvroof.catalog.models import load_model
from kvroof.catalog.profiles import load_hardware
from kvroof.cost.communication import passed_on
from kvroof.cost.encoding import encode
from kvroof.cost.forward import forward
from kvroof.cost.op import Op
from kvroof.cost.products import Run
from kvroof.ground.dtypes import DTYPES, parse_dtype
from kvroof.ground.errors import BadInput
from kvroof.ground.numeric import maximum, minimum
from kvroof.ground.record import record, static
from kvroof.memory.allocators import Allocator, parse_allocator
from kvroof.roofline.efficiency import IDENTITY, Efficiency
from kvroof.roofline.roofline import Host, Timed, arithmetic, mean, price_all, repeated, serial_s
from kvroof.spec.architecture import Architecture
from kvroof.spec.attention import Execution, LatentAttention
from kvroof.spec.hardware import Hardware
from kvroof.spec.parallel import ALONE, Layout, check_layout
from kvroof.spec.params import parse_formats, weight_bytes
from kvroof.spec.precision import KVFormat, parse_kv_format
from kvroof.spec.stages import stage_models
from kvroof.spec.weights import MAX_ADAPTERS, WeightFormats
from kvroof.spec.workload import Step


@record
class Plan:
    """A model on `layout.devices` devices, with the dtypes and the efficiency it runs at."""

    model: Architecture
    hardware: Hardware
    layout: Layout = ALONE
    kv_format: KVFormat
    formats: WeightFormats | None = None
    allocator: Allocator = Allocator()
    compute_dtype: str | None = static(default=None)
    io_aware: bool = static(default=True)
    efficiency: Efficiency = IDENTITY
    host: Host = Host()
    expert_imbalance: float | None = None
    adapters: int = static(default=0)
    adapter_rank: int = static(default=0)

    @classmethod
    def of(
        cls,
        model: Architecture | str | Path,
        hardware: Hardware | str | Path,
        *,
        layout: Layout | None = None,
        tp: int = 1,
        pp: int = 1,
        dp: int = 1,
        ep: int = 1,
        dcp: int = 1,
        redundant_experts: int = 0,
        expert_imbalance: float | None = None,
        kv_dtype: str = "auto",
        weights_dtype: str = "auto",
        compute_dtype: str | None = None,
        block_size: int = 16,
        allocator: str = "paged",
        io_aware: bool = True,
        efficiency: Efficiency = IDENTITY,
        host_bytes_per_s: float | None = None,
        adapters: int = 0,
        adapter_rank: int = 16,
    ) -> Plan:
        """Return a plan from names or records, checked.

        Args:
            model: A catalog name, a path to a config, or an architecture.
            hardware: A catalog name, a path to a profile, or a machine.
            layout: How the model is laid over devices, in place of `tp` to `redundant_experts`.
            tp: Tensor-parallel ranks.
            pp: Pipeline stages.
            dp: Groups of ranks, each with sequences of its own; experts are dealt over all of them.
            ep: Parts that routed experts are dealt into.
            dcp: Ranks that share the tokens of each KV head in decode.
            redundant_experts: Second copies of busy experts.
            expert_imbalance: Load of the busiest expert rank over the mean's; None expects chance.
            kv_dtype: `auto`, a dtype, or a pair `K/V`.
            weights_dtype: Storage of the layers' matrices: `auto` or a dtype.
            compute_dtype: Arithmetic forced on every matrix; None takes what the chip has.
            block_size: Tokens in a KV block.
            allocator: What is set aside for the sequences.
            io_aware: Whether attention keeps its scores on chip.
            efficiency: A calibration; the identity gives bounds.
            host_bytes_per_s: Bandwidth of host memory, where the host runs what is offloaded to it.
            adapters: LoRA adapters that requests choose among; 0 for none.
            adapter_rank: Their rank.

        Raises:
            BadInput: An impossible layout, dtype or name, or a layout beside ranks.
        """
        arch = model if isinstance(model, Architecture) else load_model(model)
        machine = hardware if isinstance(hardware, Hardware) else load_hardware(str(hardware))
        ranks = Layout(tp=tp, pp=pp, dp=dp, ep=ep, dcp=dcp, redundant_experts=redundant_experts)
        if layout is not None and ranks != ALONE:
            raise BadInput("a layout has its ranks", where="layout", way_out="leave tp and the others out")
        layout = layout or ranks
        check_layout(arch, layout)
        if expert_imbalance is not None and not 1 <= expert_imbalance <= layout.ep:
            raise BadInput(
                f"{expert_imbalance} is not between 1 and {layout.ep}",
                where="--expert-imbalance",
                way_out="give the busiest rank's load over the mean's",
            )
        if not (0 <= adapters <= MAX_ADAPTERS and 1 <= adapter_rank <= MAX_ADAPTERS):
            raise BadInput(f"{adapters} adapters of rank {adapter_rank} cannot be", where="--adapters")
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
            expert_imbalance=expert_imbalance,
            adapters=adapters,
            adapter_rank=adapter_rank,
        )

    @property
    def weights_bytes(self) -> int:
        """Weights on the fullest rank of the fullest stage."""
        stages = stage_models(self.model, self.layout.pp)
        return max(weight_bytes(stage, self.formats, self.layout) for stage in stages)

    def run(self, latent: Execution) -> Run:
        """Return how the model is executed, latent attention in the given form."""
        return Run(
            formats=self.formats,
            kv_format=self.kv_format,
            activation=DTYPES[self.model.dtype],
            compute=self.compute_dtype,
            layout=self.layout,
            latent=latent,
            io_aware=self.io_aware,
            fused=self.efficiency.name is None,
            imbalance=self.expert_imbalance,
            adapters=self.adapters,
            adapter_rank=self.adapter_rank,
        )

    def cheaper(self, step: Step) -> tuple[Timed, ...]:
        """Return the operations of one step with latent attention in whichever form takes less time.

        Raises:
            BadInput: A compute dtype that the machine lacks.
            Unsupported: A peak or a link that is not known.
        """
        return min((self.time(step, form) for form in self._forms), key=serial_s)

    def time(self, step: Step, latent: Execution = "absorbed") -> tuple[Timed, ...]:
        """Return the operations of one step of the whole deployment, as its slowest rank sees them.

        The sequences are shared among the `dp` groups. In a pipeline they are cut into as many batches as
        there are stages: the slowest stage runs each of them, and a prompt first has to fill the others.

        Raises:
            BadInput: A compute dtype that the machine lacks.
            Unsupported: A peak or a link that is not known.
        """
        step = step.shared(self.layout.dp)
        stages, batches = self._stages(step, latent)
        timed = stages[0]
        if len(stages) > 1:
            totals = [serial_s(stage) for stage in stages]
            slowest = max(range(len(stages)), key=lambda stage: mean(totals[stage]))
            timed = stages[slowest]
            wait = self._bubble_s(step, totals, totals[slowest], batches)
            bubble = Timed(op=Op(name="pipeline_bubble", kind="host", count=1), overhead_s=wait, **_NOTHING)
            timed = (*(repeated(t, batches) for t in timed), bubble)
        return timed if self.efficiency.name is None else (*timed, self._host_time(step))

    def seconds(self, step: Step) -> float:
        """Return the seconds of one step, latent attention in whichever form takes less.

        The sum of `cheaper(step)`, of plain numbers or of arrays alike, also under `jax.jit` and `jax.grad`.

        Raises:
            BadInput: A compute dtype that the machine lacks.
            Unsupported: A peak or a link that is not known.
        """
        step = step.shared(self.layout.dp)
        host = 0.0 if self.efficiency.name is None else self._host_time(step).seconds
        return host + reduce(minimum, (self._stages_s(step, form) for form in self._forms))

    def encode(self, patches: float) -> tuple[Timed, ...]:
        """Return the operations of the towers for `patches` rows of images or sound.

        Raises:
            BadInput: A model without a tower.
        """
        if not self.model.towers:
            raise BadInput(f"{self.model.name} has no tower", where="--patches", way_out="leave it out")
        return self._priced(encode(self.model, patches, self.run("absorbed")))

    def _stages_s(self, step: Step, latent: Execution) -> float:
        stages, batches = self._stages(step, latent)
        totals = [serial_s(timed) for timed in stages]
        if len(stages) == 1:
            return totals[0]
        slowest: float = reduce(maximum, totals)
        return batches * slowest + self._bubble_s(step, totals, slowest, batches)

    @property
    def _forms(self) -> tuple[Execution, ...]:
        """The forms latent attention may take; models without it have one."""
        mixers = (mixer for group in self.model.layers for mixer in group.layer.mixers)
        latent = any(isinstance(mixer, LatentAttention) for mixer in mixers)
        return ("absorbed", "expanded") if latent else ("absorbed",)

    def _stages(self, step: Step, latent: Execution) -> tuple[list[tuple[Timed, ...]], float]:
        """Return what each stage runs for a batch, and how many batches keep the pipeline full."""
        run = self.run(latent)
        if self.layout.pp == 1:
            return [self._priced(forward(self.model, step, run))], 1
        parts = stage_models(self.model, self.layout.pp)
        batches = minimum(self.layout.pp, step.seqs)
        part = step.shared(batches)
        message = part.tokens * self.model.hidden_size * run.row_bytes()
        sent = passed_on("stage_send", 1, message, self.layout.stage_ranks)
        known: list[tuple[Architecture, tuple[Timed, ...]]] = []
        timed = []
        for stage in parts:
            alike = next((own for other, own in known if other == stage), None)
            if alike is None:
                alike = self._priced((*forward(stage, part, run), sent))
                known.append((stage, alike))
            timed.append(alike)
        return timed, batches

    def _priced(self, ops: tuple[Op, ...]) -> tuple[Timed, ...]:
        return price_all(ops, self.hardware, self.efficiency, self.host)

    @staticmethod
    def _bubble_s(step: Step, totals: Sequence[float], slowest: float, batches: float) -> float:
        """Return how long the slowest stage waits: for a prompt to reach it, in decode for what is left."""
        if any(phase == "prefill" for phase, _ in step.phases):
            return sum(totals) - slowest
        return maximum(sum(totals) - batches * slowest, 0.0)

    def _host_time(self, step: Step) -> Timed:
        """Return the host's own time in a step: scheduling, sampling, and what each sequence adds."""
        seconds = self.efficiency.host_step_s + self.efficiency.host_seq_s * step.seqs
        return Timed(op=Op(name="host", kind="host", count=1), overhead_s=seconds, **_NOTHING)


_NOTHING = {"net_bytes": 0.0, "compute_s": 0.0, "hbm_s": 0.0, "network_s": 0.0}


def arithmetic_used(timed: Sequence[Timed], hardware: Hardware) -> tuple[str, ...]:
    """Return the compute dtypes that operations with FLOPs ran in, in the order they appear."""
    return tuple(
        dict.fromkeys(arithmetic(t.op, hardware) for t in timed if t.op.kind in ("gemm", "moe", "attention"))
    )
