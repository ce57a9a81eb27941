"""Measured deployments as plans: their steps, how many requests the memory admits, and the closed loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from kvroof.calibration.load import SERVED, efficiencies
from kvroof.calibration.served import ServedPoint
from kvroof.catalog.models import load_model
from kvroof.catalog.profiles import load_hardware
from kvroof.ground.errors import BadInput
from kvroof.ground.record import record
from kvroof.memory.budget import max_seqs
from kvroof.memory.demand import equal_lengths
from kvroof.roofline.efficiency import Efficiency
from kvroof.roofline.plan import Plan
from kvroof.roofline.roofline import Timed, serial_s
from kvroof.serving.room import budgets
from kvroof.serving.spread import log_spread
from kvroof.serving.steady.closed_loop import TTFT_ERROR, ClosedLoop, closed_loop
from kvroof.serving.step_times import check_not_crossing
from kvroof.spec.architecture import Architecture
from kvroof.spec.hardware import Hardware
from kvroof.spec.parallel import Layout
from kvroof.spec.workload import decode, mixed, prefill

FROM_MAPE = math.sqrt(math.pi / 2)
"""Standard deviation over mean absolute error, of errors that are normal."""
REPEATS = 0.048
"""Log deviation of TPOT between repeats of one configuration across engine versions.

Source: a study of 2,197 served points of 7 models on H100 to B300 (aiconfigurator-core's end-to-end sample).
"""
EAGER_ADMISSION = ("vllm", "sglang", "")
"""Engines that admit requests by what they hold now, not by what they may grow to."""


PREFILL_APART = ("sglang",)
"""Engines that run prompts in steps of their own unless told otherwise (SGLang's `enable-mixed-chunk`)."""


@record
class Spreads:
    """Standard deviations of the logs of TTFT and TPOT."""

    ttft: float
    tpot: float


class Steps:
    """Steps of one replica of attention; the `dp` replicas run alike at the same time."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._known: dict[tuple[Any, ...], tuple[Timed, ...]] = {}

    def prefill(self, tokens: int, cached: int, prompts: int) -> tuple[Timed, ...]:
        """Return the operations that run `tokens` of `prompts` each, latent attention in its cheaper form."""
        step = prefill(prompts * self.plan.layout.dp, tokens + cached, cached)
        return self._asked(("prefill", tokens, cached, prompts), lambda: self.plan.cheaper(step))

    def decode(self, batch: int, context: float) -> tuple[Timed, ...]:
        """Return the operations that give `batch` sequences a token, with `context` then cached."""
        step = decode(batch * self.plan.layout.dp, round(context))
        return self._asked(("decode", batch, context), lambda: self.plan.time(step))

    def mixed(self, tokens: int, cached: int, prompts: int, batch: int, context: float) -> tuple[Timed, ...]:
        """Return the operations of a step that runs both."""
        dp = self.plan.layout.dp
        both = mixed(prefill(prompts * dp, tokens + cached, cached), decode(batch * dp, round(context)))
        key = ("mixed", tokens, cached, prompts, batch, context)
        return self._asked(key, lambda: self.plan.cheaper(both))

    def _asked(self, key: tuple[Any, ...], ask: Callable[[], tuple[Timed, ...]]) -> tuple[Timed, ...]:
        if key not in self._known:
            self._known[key] = ask()
        return self._known[key]


class Seconds:
    """`StepTimes` of a replica: what `value` makes of each step's operations, all their seconds or a part."""

    def __init__(self, steps: Steps, value: Callable[[Sequence[Timed]], float] = serial_s) -> None:
        self._steps, self._value = steps, value

    def prefill_s(self, tokens: Any, cached: Any = 0, prompts: Any = 1) -> Any:
        """Return the value of a prefill."""
        return self._value(self._steps.prefill(tokens, cached, prompts))

    def decode_s(self, batch: Any, context: Any) -> Any:
        """Return the value of a decode."""
        return self._value(self._steps.decode(batch, context))

    def mixed_s(self, tokens: Any, cached: Any, prompts: Any, batch: Any, context: Any) -> Any:
        """Return the value of a step that runs both."""
        return self._value(self._steps.mixed(tokens, cached, prompts, batch, context))


class Deployments:
    """Plans of measured points, each made once.

    They are priced with `calibration`, as `--calibration` names it, or all with one `efficiency`.
    """

    def __init__(self, calibration: str = "auto", efficiency: Efficiency | None = None) -> None:
        self._calibration, self._efficiency_of_all = calibration, efficiency
        self._models: dict[str, Architecture] = {}
        self._machines: dict[str, Hardware] = {}
        self._efficiencies: dict[tuple[str, str], Efficiency] = {}
        self._steps: dict[tuple[Any, ...], Steps] = {}
        self._admitted: dict[tuple[Any, ...], int] = {}

    def steps(self, point: ServedPoint) -> Steps:
        """Return the steps of a point's deployment.

        Raises:
            KvroofError: A model, machine, dtype or layout that cannot be.
        """
        layout = Layout(tp=point.tp, pp=point.pp, dp=point.dp, ep=point.ep, dcp=point.dcp)
        key = (point.model, point.hardware, point.framework, point.weights_dtype, point.kv_dtype, layout)
        if key not in self._steps:
            if point.model not in self._models:
                self._models[point.model] = load_model(point.model)
            check_not_crossing(self._models[point.model])
            machine = self._machine(point.hardware)
            self._steps[key] = Steps(
                Plan.of(
                    self._models[point.model],
                    machine,
                    layout=layout,
                    kv_dtype=point.kv_dtype,
                    weights_dtype=point.weights_dtype,
                    efficiency=self._efficiency(machine.name, point.framework),
                )
            )
        return self._steps[key]

    def loop(self, point: ServedPoint, value: Callable[[Sequence[Timed]], float] = serial_s) -> ClosedLoop:
        """Return the closed loop of a point, in seconds or in whatever part of them `value` takes."""
        isl, osl = mean_lengths(point)
        return closed_loop(
            Seconds(self.steps(point), value),
            isl=isl,
            osl=osl,
            concurrency=per_replica(point),
            waves=point.waves,
            receive_interval=point.receive_interval,
            max_seqs=self.admitted(point),
            mixes=point.framework not in PREFILL_APART,
        )

    def admitted(self, point: ServedPoint) -> int:
        """Return the sequences that one replica's memory admits.

        No more than the point's concurrency. Engines that admit eagerly hold requests of mean length; the
        others reserve the whole of each.

        Raises:
            BadInput: The weights alone do not fit.
        """
        plan = self.steps(point).plan
        isl, osl = mean_lengths(point)
        eager = point.framework in EAGER_ADMISSION
        tokens = isl + (osl // 2 if eager else osl)
        key = (id(plan), tokens, point.concurrency)
        if key not in self._admitted:
            self._admitted[key] = _fitting(plan, tokens, point.concurrency)
        if self._admitted[key] < 1:
            raise BadInput(
                f"not one sequence fits {plan.layout.devices} x {plan.hardware.name}", where=point.model
            )
        return math.ceil(self._admitted[key] / point.dp)

    def spread(self, point: ServedPoint, loop: ClosedLoop) -> Spreads:
        """Return the spreads of a point's times.

        Of TPOT, the kernels' residuals and what repeats of one configuration differ by; where a deployment's
        own points moved the profile, what they left. Of TTFT, the prefill's and the closed loop's form's.
        """
        steps = self.steps(point)
        efficiency = steps.plan.efficiency
        if efficiency.name is None:
            return Spreads(ttft=0.0, tpot=0.0)
        isl, osl = mean_lengths(point)
        decoding = log_spread(efficiency, steps.decode(loop.seqs, isl + osl / 2))
        filling = log_spread(efficiency, steps.prefill(isl, 0, 1))
        share = loop.decode_s / loop.tpot_s
        kernels = decoding * share + filling * (1 - share)
        return Spreads(
            ttft=math.hypot(filling, FROM_MAPE * TTFT_ERROR),
            tpot=efficiency.sigma.get(SERVED, math.hypot(kernels, REPEATS)),
        )

    def notes(self) -> tuple[str, ...]:
        """Return which profile each machine and framework was priced with."""
        found: dict[str, list[str]] = {}
        for (machine, framework), efficiency in self._efficiencies.items():
            found.setdefault(efficiency.name or "no profile: bounds, not predictions", []).append(
                f"{machine} under {framework or 'any engine'}"
            )
        return tuple(f"{', '.join(who)}: {name}" for name, who in found.items())

    def _machine(self, name: str) -> Hardware:
        if name not in self._machines:
            self._machines[name] = load_hardware(name)
        return self._machines[name]

    def _efficiency(self, machine: str, framework: str) -> Efficiency:
        if (machine, framework) not in self._efficiencies:
            self._efficiencies[machine, framework] = (
                self._efficiency_of_all
                or efficiencies(self._calibration, [machine], framework or None)[machine]
            )
        return self._efficiencies[machine, framework]


def _fitting(plan: Plan, tokens: int, seqs: int) -> int:
    """Return how many of `seqs` sequences of `tokens` the memory of every stage holds."""
    held = equal_lengths(tokens, seqs)
    return min(seqs if budget.holds(held) else max_seqs(budget, tokens) for budget in budgets(plan))


def mean_lengths(point: ServedPoint) -> tuple[int, int]:
    """Return the mean prompt and output tokens of a point's requests."""
    return max(round(point.isl * point.length_factor), 1), max(round(point.osl * point.length_factor), 1)


def per_replica(point: ServedPoint) -> int:
    """Return the requests in the system per replica of attention."""
    return math.ceil(point.concurrency / point.dp)
