"""What a deployment serves at many points at once: TTFT, TPOT and throughput of a closed loop.

A point is a number of sequences in the system, the prompt tokens of a step, and the prompt's length. Step
times are the plan's, the loop is that of `kvroof.serving.steady.closed_loop`. Whole numbers are evaluated as
engines run them; real ones are the relaxed reading, in which chunks and ranks take fractions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from kvroof.ground.numeric import ceil_div, whole_blocks
from kvroof.ground.record import record, static
from kvroof.roofline.plan import Plan
from kvroof.search.question import Question
from kvroof.serving.steady.closed_loop import STEP_TOKENS, closed_loop
from kvroof.spec.workload import Step, decode, mixed, prefill

LEAST_CHUNK = 128
"""Prompt tokens of the smallest chunk, and the step between chunks: the query tile of the kernels."""


@record
class Served:
    """Times and rates of one instance at each point, as arrays.

    `ttft_s` and `tpot_s` are what the limits are held against. `load` is the share of the steps that have to
    carry a chunk, above 1 where prompts cannot keep up. `rate_per_s` are requests of the whole instance,
    `prefill_s` the mean prefill of a request's own prompt and `decode_s` the bare decode step.
    """

    ttft_s: Any
    tpot_s: Any
    e2e_s: Any
    rate_per_s: Any
    load: Any
    prefill_s: Any
    decode_s: Any

    def part(self, start: int, end: int) -> Served:
        """Return some of the points."""
        return Served(
            ttft_s=self.ttft_s[start:end],
            tpot_s=self.tpot_s[start:end],
            e2e_s=self.e2e_s[start:end],
            rate_per_s=self.rate_per_s[start:end],
            load=self.load[start:end],
            prefill_s=self.prefill_s[start:end],
            decode_s=self.decode_s[start:end],
        )


@record
class ManySteps(Step):
    """One step at many points: its counts are arrays, and so may be the ranks that share them.

    With `whole` sequences are shared as whole ones, else as fractions.
    """

    whole: bool = static(default=False)

    def shared(self, ranks: Any) -> ManySteps:
        """Return what the fullest of `ranks` runs."""
        if isinstance(ranks, int) and ranks == 1:
            return self
        part = ceil_div if self.whole else whole_blocks
        groups = (replace(group, count=part(group.count, ranks)) for group in self.groups)
        return ManySteps(groups=tuple(groups), whole=self.whole)


@record
class Steps:
    """The steps of a plan at many points."""

    plan: Plan
    whole: bool = static(default=False)

    def seconds(self, *steps: Step) -> Any:
        """Return the seconds of one step that runs all of `steps`, whose numbers may be arrays."""
        return self.plan.seconds(ManySteps(groups=mixed(*steps).groups, whole=self.whole))


def served(plan: Plan, question: Question, seqs: Any, chunk: Any = None, isl: Any = None) -> Served:
    """Return what the plan serves at each point.

    Args:
        plan: The deployment. Numbers of its machine may be arrays of shape (points, 1).
        question: Requests and percentile.
        seqs: Sequences of each replica of attention, of shape (points,). Whole numbers are run as engines
            run them.
        chunk: Prompt tokens of a step, of the same shape; None runs prompts whole.
        isl: Prompt lengths, of the same shape, where they are searched.

    Raises:
        BadInput: A compute dtype that the machine lacks.
        Unsupported: A peak or a link that is not known.
    """
    import numpy as np

    given = np.atleast_1d(np.asarray(seqs))
    steps, seqs = Steps(plan=plan, whole=given.dtype.kind in "iu"), given.astype(float)[:, None]
    traffic, dp, cached = question.traffic, plan.layout.dp, question.cached
    if isl is None:
        prompts, shares = (np.array(part) for part in question.prompts)
        context: Any = traffic.context
    else:
        prompts, shares = np.broadcast_to(np.asarray(isl, float), seqs.shape[:1])[:, None], np.ones(1)
        context = prompts + question.osl.mean / 2
    decode_s = steps.seconds(decode(seqs * dp, context))
    run = prompts - cached
    if chunk is None:
        own, added = _whole(steps, run, cached, seqs * dp, context, decode_s)
        load, budget = np.zeros(seqs.shape), np.broadcast_to(float(STEP_TOKENS), seqs.shape)
    else:
        chunk = np.broadcast_to(np.asarray(chunk, float), seqs.shape[:1])[:, None]
        own, added = _chunked(steps, run, cached, chunk, seqs * dp, context, decode_s)
        budget = chunk
        load = seqs * (run @ shares[:, None] if run.ndim == 2 else run @ shares)
        load = load / (question.osl.mean * chunk)
    shape = (len(seqs), len(shares))
    own, added = np.broadcast_to(own, shape), np.broadcast_to(added, shape)
    mean_own, mean_added = own @ shares, added @ shares
    later = 0.0
    if len(shares) > 1:
        at = np.interp(question.isl.quantile(question.limits.percentile), prompts, range(shape[1]))
        low = min(int(at), shape[1] - 2)
        later = own[:, low] + (at - low) * (own[:, low + 1] - own[:, low]) - mean_own
    flat_decode = np.broadcast_to(decode_s, seqs.shape)[:, 0]
    loop = closed_loop(
        _Known(own_s=mean_own, bare_s=flat_decode, both_s=flat_decode + mean_added),
        isl=question.isl.mean if isl is None else cast(Any, prompts)[:, 0],
        osl=question.osl.mean,
        concurrency=cast(Any, given),
        cached=cached,
        step_tokens=cast(Any, budget)[:, 0],
        mixes=True,
    )
    return Served(
        ttft_s=loop.ttft_s + later,
        tpot_s=loop.tpot_s,
        e2e_s=loop.e2e_s,
        rate_per_s=loop.requests_per_s * dp,
        load=np.ravel(load),
        prefill_s=mean_own,
        decode_s=flat_decode,
    )


@record
class _Known:
    """Step times that are known already: what the closed loop asks for at every point."""

    own_s: Any
    bare_s: Any
    both_s: Any

    def prefill_s(self, tokens: Any, cached: Any = 0, prompts: Any = 1) -> Any:
        """Return the prefill of a request's own prompt."""
        return self.own_s

    def decode_s(self, batch: Any, context: Any) -> Any:
        """Return the bare decode."""
        return self.bare_s

    def mixed_s(self, tokens: Any, cached: Any, prompts: Any, batch: Any, context: Any) -> Any:
        """Return the decode and what the steps of one prompt add to it."""
        return self.both_s


def _whole(steps: Steps, run: Any, cached: int, seqs: Any, context: Any, decode_s: Any) -> tuple[Any, Any]:
    """Return the prefill of whole prompts, and what one adds to the others' step."""
    first = prefill(steps.plan.layout.dp, run + cached, cached)
    return steps.seconds(first), steps.seconds(first, decode(seqs, context)) - decode_s


def _chunked(
    steps: Steps, run: Any, cached: int, chunk: Any, seqs: Any, context: Any, decode_s: Any
) -> tuple[Any, Any]:
    """Return the steps of prompts that are cut into chunks beside the decodes, and what they add.

    Full chunks are priced at the middle of those before the last, since each reads the cache of the ones
    before it. Relaxed, the number of chunks is the real quotient.
    """
    import numpy as np

    def step(tokens: Any, before: Any) -> Any:
        first = prefill(steps.plan.layout.dp, tokens + before, before)
        return steps.seconds(first, decode(seqs, context))

    size = np.minimum(chunk, run)
    if not steps.whole:
        full = step(size, cached + (run - size) / 2)
        return run / size * full, run / size * (full - decode_s)
    whole = np.ceil(run / chunk) - 1
    last = step(run - whole * chunk, cached + whole * chunk)
    full = step(size, cached + chunk * np.maximum(whole - 1, 0) / 2) if whole.any() else 0.0
    own = whole * full + last
    return own, own - (whole + 1) * decode_s
