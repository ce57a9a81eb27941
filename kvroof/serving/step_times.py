"""Seconds of one step, as the forms of this floor ask for them: a prefill, a decode, or both in one.

The forms know no model and no machine. What they need of them is `StepTimes`; `PlanTimes` asks a
deployment, `AffineTimes` is the four-parameter form that textbooks and small tests use.
"""

from __future__ import annotations

from typing import Any, Protocol

from kvroof.ground.errors import Unsupported
from kvroof.ground.numeric import ceil_div, maximum
from kvroof.ground.record import record
from kvroof.memory.layers import crosses
from kvroof.roofline.plan import Plan
from kvroof.spec.architecture import Architecture
from kvroof.spec.workload import Step, decode, mixed, prefill


class StepTimes(Protocol):
    """Seconds of a step. Every argument may be a number or a NumPy array, and so is what comes back."""

    def prefill_s(self, tokens: Any, cached: Any = 0, prompts: Any = 1) -> Any:
        """Return the step that runs `tokens` of each of `prompts`, `cached` ones before them at hand."""
        ...

    def decode_s(self, batch: Any, context: Any) -> Any:
        """Return the step that gives each of `batch` sequences a token, with `context` then cached."""
        ...

    def mixed_s(self, tokens: Any, cached: Any, prompts: Any, batch: Any, context: Any) -> Any:
        """Return the step that does both: the prompts' tokens beside `batch` decodes, which may be 0."""
        ...


@record
class AffineTimes:
    """Steps whose time is a start and a rate: prefill `prefill_start_s + tokens x token_s` and so on.

    A decode takes `decode_start_s + batch x (seq_s + context x cached_s)`. A mixed step pays the larger
    start once, since the weights are read once, and both rates.
    """

    prefill_start_s: float = 0.0
    token_s: float
    decode_start_s: float
    seq_s: float = 0.0
    cached_s: float = 0.0

    def prefill_s(self, tokens: Any, cached: Any = 0, prompts: Any = 1) -> Any:
        """Return `start + prompts x tokens x token_s`; what is cached costs nothing."""
        return self.prefill_start_s + prompts * tokens * self.token_s

    def decode_s(self, batch: Any, context: Any) -> Any:
        """Return `start + batch x (seq_s + context x cached_s)`."""
        return self.decode_start_s + batch * (self.seq_s + context * self.cached_s)

    def mixed_s(self, tokens: Any, cached: Any, prompts: Any, batch: Any, context: Any) -> Any:
        """Return both, less the smaller start; without a decode only the prefill."""
        if isinstance(batch, int | float) and batch == 0:
            return self.prefill_s(tokens, cached, prompts)
        both = self.prefill_s(tokens, cached, prompts) + self.decode_s(batch, context)
        return both - min(self.prefill_start_s, self.decode_start_s)


def check_not_crossing(model: Architecture) -> None:
    """Check that a model looks at no encoder, whose tokens the requests of this floor do not have.

    Raises:
        Unsupported: It does.
    """
    if crosses(model):
        raise Unsupported(
            "cross-attention is only estimated: requests over time have no encoder tokens",
            where=model.name,
            way_out="see kvroof estimate --encoder-tokens",
        )


class PlanTimes:
    """The steps of a deployment, each asked once; latent attention runs in its cheaper form.

    With `dp` groups of ranks all of them wait for the fullest: prompts count in whole rounds of the groups,
    and a batch that leaves some of them empty takes as long as one sequence in each.

    Raises:
        Unsupported: A model with cross-attention.
    """

    def __init__(self, plan: Plan) -> None:
        check_not_crossing(plan.model)
        self.plan = plan
        self._known: dict[tuple[Any, ...], Any] = {}

    def prefill_s(self, tokens: Any, cached: Any = 0, prompts: Any = 1) -> Any:
        """Return the prefill."""
        return self._asked(self._prefill(tokens, cached, prompts))

    def decode_s(self, batch: Any, context: Any) -> Any:
        """Return the decode."""
        return self._asked(self._decode(batch, context))

    def mixed_s(self, tokens: Any, cached: Any, prompts: Any, batch: Any, context: Any) -> Any:
        """Return the mixed step; without a decode it is a prefill."""
        first = self._prefill(tokens, cached, prompts)
        alone = isinstance(batch, int | float) and batch == 0
        return self._asked(first if alone else mixed(first, self._decode(batch, context)))

    def _prefill(self, tokens: Any, cached: Any, prompts: Any) -> Step:
        groups = self.plan.layout.dp
        return prefill(groups * ceil_div(prompts, groups), tokens + cached, cached)

    def _decode(self, batch: Any, context: Any) -> Step:
        return decode(maximum(batch, self.plan.layout.dp), context)

    def _asked(self, step: Step) -> Any:
        key = tuple(_key(v) for g in step.groups for v in (g.count, g.query_len, g.kv_len, g.kind))
        if key not in self._known:
            self._known[key] = self.plan.seconds(step)
        return self._known[key]


def _key(value: Any) -> Any:
    return value if isinstance(value, int | float | str) else (value.shape, value.tobytes())


class ScaledTimes:
    """Step times with each phase slower or faster by a factor: what an error of the model would change.

    A mixed step scales its decode, and what the prompts add to it.
    """

    def __init__(self, times: StepTimes, prefill_factor: float, decode_factor: float) -> None:
        self._times, self._prefill, self._decode = times, prefill_factor, decode_factor

    def prefill_s(self, tokens: Any, cached: Any = 0, prompts: Any = 1) -> Any:
        """Return the prefill, scaled."""
        return self._prefill * self._times.prefill_s(tokens, cached, prompts)

    def decode_s(self, batch: Any, context: Any) -> Any:
        """Return the decode, scaled."""
        return self._decode * self._times.decode_s(batch, context)

    def mixed_s(self, tokens: Any, cached: Any, prompts: Any, batch: Any, context: Any) -> Any:
        """Return the mixed step with both parts scaled."""
        if isinstance(batch, int | float) and batch == 0:
            return self.prefill_s(tokens, cached, prompts)
        alone = self._times.decode_s(batch, context)
        both = self._times.mixed_s(tokens, cached, prompts, batch, context)
        return self._decode * alone + self._prefill * (both - alone)
