"""A trial: made-up requests through an engine of a scaled-down model, and what came of them."""

from __future__ import annotations

from dataclasses import replace

from numpy.random import default_rng

from kvroof.engine.cache import plan_cache
from kvroof.engine.executor import Settings
from kvroof.engine.handoff import Transfer, hand_off
from kvroof.engine.report import RunReport
from kvroof.engine.requests import Request
from kvroof.engine.runner import Runner
from kvroof.engine.scaling import Scale, scaled_down
from kvroof.ground.errors import BadInput
from kvroof.ground.record import record, static
from kvroof.memory.allocators import Allocator, slots
from kvroof.memory.demand import ragged
from kvroof.schedule.policies import Policy
from kvroof.spec.architecture import Architecture
from kvroof.spec.params import params_total
from kvroof.spec.reach import Full


@record
class Trial:
    """What to send through the engine.

    Prompts are `prompt_tokens` long at most and half as long at least; the first `shared_prefix` tokens are
    the same in all, and are then looked up in the cache. With `hand_off` one engine runs the prompts and
    another decodes.
    """

    requests: int = 4
    prompt_tokens: int = 24
    output_tokens: int = 12
    shared_prefix: int = 0
    hand_off: bool = static(default=False)
    seed: int = 0


@record
class PeakBytes:
    """When sequences had most cached: what the engine held, and the ledger with the prefix once and unshared.

    Once means in block tables that grow; every sequence has windows and states of its own. Prompts that run
    in the same round share after it.
    """

    round: int
    held_bytes: int
    ledger_bytes: int
    unshared_bytes: int


@record
class TrialReport:
    """What came of a trial. After a hand-off, `run` is the decoding engine's, `prefill_run` the other's."""

    model: str = static()
    layers: int
    params_total: int
    seed: int
    run: RunReport
    peak: PeakBytes
    prefill_run: RunReport | None = None
    transfers: tuple[Transfer, ...] = ()


def made_up_requests(trial: Trial, vocab_size: int) -> tuple[Request, ...]:
    """Return the trial's requests, the same for the same seed.

    Raises:
        BadInput: No request, or lengths that cannot be.
    """
    for value, where in (
        (trial.requests, "--requests"),
        (trial.prompt_tokens, "--prompt"),
        (trial.output_tokens, "--output"),
    ):
        if value < 1:
            raise BadInput(f"{value} is not a positive number", where=where)
    if not 0 <= trial.shared_prefix < trial.prompt_tokens:
        raise BadInput(
            f"{trial.shared_prefix} shared tokens are not within a prompt of {trial.prompt_tokens}",
            where="--prefix-share",
        )
    draw = default_rng(trial.seed)
    shared = draw.integers(0, vocab_size, trial.shared_prefix).tolist()
    least = max(trial.shared_prefix + 1, (trial.prompt_tokens + 1) // 2)
    lengths = draw.integers(least, trial.prompt_tokens, trial.requests, endpoint=True)
    return tuple(
        Request(
            request=number,
            tokens=(*shared, *draw.integers(0, vocab_size, int(length) - len(shared)).tolist()),
            output_tokens=trial.output_tokens,
        )
        for number, length in enumerate(lengths)
    )


def run_trial(
    model: Architecture,
    trial: Trial,
    policy: Policy,
    settings: Settings,
    scale: Scale = Scale(),  # noqa: B008 - a frozen record
) -> TrialReport:
    """Return what came of sending made-up requests through an engine of `model`, scaled down.

    Args:
        model: Whose kinds of layers and ratios the engine has.
        trial: The requests.
        policy: Which of them share a round.
        settings: The sizes of the engine, or of each of the two.
        scale: How small the model is made.

    Raises:
        Unsupported: A part of the model that the engine does not run.
        BadInput: A trial, a policy or settings that cannot be.
    """
    small = scaled_down(model, scale)
    asked = made_up_requests(trial, small.vocab_size)
    share = trial.shared_prefix > 0
    if share and not plan_cache(small, settings.block_size).keeps_all:
        settings = replace(
            settings,
            snapshots=settings.snapshots or policy.max_num_seqs,
            snapshot_tokens=settings.snapshot_tokens or settings.block_size,
        )
    if not trial.hand_off:
        runner = Runner(small, policy, settings, seed=trial.seed, share_prefixes=share)
        runner.run(asked)
        return _report(small, trial, runner)
    first = Runner(small, policy, settings, seed=trial.seed, share_prefixes=share, pack_finished=True)
    first.run(replace(request, output_tokens=1) for request in asked)
    second = Runner(small, policy, settings, seed=trial.seed)
    moved = tuple(hand_off(first, second, request.request, request.output_tokens) for request in asked)
    second.run()
    return replace(_report(small, trial, second), prefill_run=first.report(), transfers=moved)


def _report(model: Architecture, trial: Trial, runner: Runner) -> TrialReport:
    run = runner.report()
    peak = run.peak
    lens = [table.kv_len for table in peak.tables]
    shared = min(trial.shared_prefix, *lens) if runner.tree is not None else 0
    paged = Allocator(name="paged", block_size=run.block_size)
    apart, once = (slots(ragged(lens, prefix), Full(), paged).blocks for prefix in (0, shared))
    return TrialReport(
        model=model.name,
        layers=model.num_layers,
        params_total=params_total(model),
        seed=trial.seed,
        run=run,
        peak=PeakBytes(
            round=peak.index,
            held_bytes=peak.held_bytes,
            ledger_bytes=peak.unshared_bytes - (apart - once) * run.groups[0].block_bytes,
            unshared_bytes=peak.unshared_bytes,
        ),
    )
