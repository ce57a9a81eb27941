"""The answer to "one pool or two": goodputs, times at a rate, the verdict and what would flip it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Literal, TypeAlias, get_args

from kvroof.ground.record import record, static
from kvroof.ground.units import format_decimal
from kvroof.memory.commands import Role
from kvroof.schedule.policies import Policy
from kvroof.serving.assumptions import priced_with
from kvroof.serving.pools.best_pools import BestSplit, OnePool, Question, best_one_pool, nearest_one_pool
from kvroof.serving.pools.break_even import Ask, Condition, What, break_even
from kvroof.serving.pools.disaggregation import Split, split
from kvroof.serving.pools.goodput import PRECISION, Replica
from kvroof.serving.pools.pool_choice import Verdict, choose
from kvroof.serving.steady.batching import SteadyState, one_pool
from kvroof.serving.steady.queueing import NoSteadyState

Limit: TypeAlias = Literal["prefill", "decode", "link", "memory", "ttft", "tpot"]
"""What bounds the goodput of a way: a part that is full, or a limit that is no longer kept."""
Serving: TypeAlias = Literal["aggregate", "disaggregate", "either", "neither"]
JUST_BEYOND = (1 + 2 * PRECISION, 1.05, 1.2)
"""Rates as multiples of a goodput at which it is asked what is no longer kept."""


@record
class Instances:
    """Instances of one pool: how each is laid out, and what its scheduler admits; None bounds no step."""

    role: Role = static()
    hw: str = static()
    instances: int
    tp: int
    ep: int
    max_num_seqs: int
    max_num_batched_tokens: int | None = None


@record
class Side:
    """One way of serving. Goodput and tokens are over all its devices, idle ones included.

    `ttft_s` and `tpot_s` are at the percentile of the limits, at `rate_rps`: the rate asked for, or where
    none was the own goodput. They are None where there is no steady state at that rate. `limit` is of the
    goodput: of two pools the part that is loaded most, of one pool what fails just beyond.
    """

    layout: str = static()
    devices: int
    goodput_rps: float
    goodput_rps_per_device: float
    tokens_per_s_per_device: float
    rate_rps: float
    ttft_s: float | None = None
    tpot_s: float | None = None
    ttft_mean_s: float | None = None
    tpot_mean_s: float | None = None
    itl_p50_s: float | None = None
    itl_p99_s: float | None = None
    keeps_limits: bool = static(default=False)
    no_steady_state: str | None = static(default=None)
    prefill_instances: int = 0
    decode_instances: int = 0
    limit: Limit | None = static(default=None)
    pools: tuple[Instances, ...] = ()


@record
class Disaggregation:
    """The best of either way, and the verdict. A way that keeps the limits at no rate is None.

    Where neither does, `aggregated` is the pool that comes nearest, almost idle, with a goodput of 0.
    `margin` is split goodput over one pool's, less 1, and `margin_error` its standard deviation. `by_chip`
    are the best single pools of each chip, where there are several. `calibrations` are what each chip is
    priced with, None for bounds. `served_by` are the ways that keep the limits at the rate asked for, None
    where none was.
    """

    aggregated: Side | None
    disaggregated: Side | None
    by_chip: dict[str, Side]
    kv_bytes_per_request: float | None
    kv_transfer_s: float | None
    kv_seen_s: float | None
    verdict: Verdict = static()
    log_ratio: float
    log_error: float
    served_by: Serving | None = static(default=None)
    break_even: tuple[Condition, ...]
    calibrations: dict[str, str | None] = static()
    assumptions: tuple[str, ...] = static()


def disaggregate(
    question: Question,
    ask: Ask | None = None,
    *,
    whats: Collection[What] = get_args(What),
    rate_rps: float | None = None,
    prices: Mapping[str, float] | None = None,
) -> Disaggregation:
    """Return whether to split prefill and decode, with what either way does.

    Args:
        question: What is compared.
        ask: Makes the question anew for other requests; None leaves out what would flip the verdict.
        whats: The conditions that are tried; lengths and prefix hits take longest.
        rate_rps: The rate at which times are given; None gives them at each way's goodput.
        prices: Of a device of each chip, for a comparison at equal cost.

    Raises:
        BadInput: Fewer than two devices, or a chip without a price.
    """
    choice = choose(question, prices)
    question = choice.compared
    one, two = choice.aggregated, choice.disaggregated
    at_rate = None if two is None else split(two.pools, question.asked, rate_rps or two.goodput_rps)
    moved = at_rate if isinstance(at_rate, Split) else None
    chips = sorted({server.hardware for server in question.aggregated})
    by_chip = {chip: _best_of(question, chip) for chip in chips} if len(chips) > 1 else {}
    alone = None if one is None else _one_side(question, one, rate_rps)
    if one is None and two is None:
        alone = _one_side(question, *nearest_one_pool(question))
    apart = None if two is None or at_rate is None else _two_sides(question, two, at_rate, rate_rps)
    return Disaggregation(
        aggregated=alone,
        disaggregated=apart,
        by_chip={chip: _one_side(question, best, rate_rps) for chip, best in by_chip.items() if best},
        kv_bytes_per_request=None if two is None else two.pools.sent_bytes(question.asked),
        kv_transfer_s=None if two is None else two.pools.transfer_s(question.asked),
        kv_seen_s=None if moved is None else moved.seen_s,
        verdict=choice.verdict,
        log_ratio=choice.log_ratio,
        log_error=choice.log_error,
        served_by=None if rate_rps is None and (one or two) else _served_by(alone, apart),
        break_even=()
        if ask is None or not (one or two)
        else break_even(question, choice, ask, whats, rate_rps),
        calibrations=_calibrations(question),
        assumptions=assumptions_of(question, priced=prices is not None),
    )


def _served_by(one: Side | None, two: Side | None) -> Serving:
    """Return which ways keep the limits at the rate that their times are given at."""
    alone, apart = (side is not None and side.keeps_limits for side in (one, two))
    if alone and apart:
        return "either"
    return "aggregate" if alone else "disaggregate" if apart else "neither"


def _calibrations(question: Question) -> dict[str, str | None]:
    """Return the calibration of each chip, the prefill pool's first."""
    servers = (*question.prefill, *question.decode, *question.aggregated)
    return {server.hardware: server.calibration for server in servers}


def _best_of(question: Question, chip: str) -> OnePool | None:
    own = tuple(server for server in question.aggregated if server.hardware == chip)
    return best_one_pool(replace(question, aggregated=own))


def _one_side(question: Question, best: OnePool, rate: float | None) -> Side:
    policy = replace(best.policy, max_num_seqs=min(best.policy.max_num_seqs, best.server.max_seqs))
    asked_rate = rate or best.goodput_rps
    asked = question.asked.dealt(best.instances)
    found = one_pool(best.server.times, asked, asked_rate / best.instances, policy)
    budget = "" if policy.name == "continuous" else f" of {policy.max_num_batched_tokens} tokens"
    side = _side(
        question,
        f"{best.instances} x {best.server.name}, {policy.name}{budget}",
        question.pool_devices(best.server.hardware),
        best.goodput_rps,
        asked_rate,
        found,
    )
    step = None if policy.name == "continuous" else policy.max_num_batched_tokens
    pool = _instances("both", best.server, best.instances, policy.max_num_seqs, step)
    return replace(side, limit=_one_limit(question, best, policy), pools=(pool,))


def _instances(role: Role, server: Replica, count: int, seqs: int, step: int | None = None) -> Instances:
    return Instances(
        role=role,
        hw=server.hardware,
        instances=count,
        tp=server.layout.tp,
        ep=server.layout.ep,
        max_num_seqs=seqs,
        max_num_batched_tokens=step,
    )


def _one_limit(question: Question, best: OnePool, policy: Policy) -> Limit | None:
    """Return what one pool no longer does just beyond its goodput, None where it has none."""
    if best.goodput_rps == 0:
        return None
    asked = question.asked.dealt(best.instances)
    for factor in JUST_BEYOND:
        rate = factor * best.goodput_rps / best.instances
        found = one_pool(best.server.times, asked, rate, policy)
        if isinstance(found, NoSteadyState):
            full = policy.max_num_seqs == best.server.max_seqs and found.what == "decode"
            return "memory" if full else "prefill" if found.what == "prefill" else "decode"
        if not question.limits.later_kept(found.tpot_s):
            return "tpot"
        if not question.limits.first_kept(found.ttft_s):
            return "ttft"
    return None


def _two_sides(question: Question, best: BestSplit, found: Split | NoSteadyState, rate: float | None) -> Side:
    pools = best.pools
    first = f"{pools.prefill_instances} x {pools.prefill.name}"
    side = _side(
        question,
        f"{first} prefill + {pools.decode_instances} x {pools.decode.name} decode",
        question.devices,
        best.goodput_rps,
        rate or best.goodput_rps,
        found,
    )
    most = split(pools, question.asked, best.goodput_rps)
    return replace(
        side,
        prefill_instances=pools.prefill_instances,
        decode_instances=pools.decode_instances,
        limit=most.limit if isinstance(most, Split) else None,
        pools=(
            _instances("prefill", pools.prefill, pools.prefill_instances, pools.prefill.max_seqs),
            _instances("decode", pools.decode, pools.decode_instances, pools.decode.max_seqs),
        ),
    )


def _side(
    question: Question,
    layout: str,
    devices: int,
    goodput: float,
    rate: float,
    found: SteadyState | Split | NoSteadyState,
) -> Side:
    side = Side(
        layout=layout,
        devices=devices,
        goodput_rps=goodput,
        goodput_rps_per_device=goodput / devices,
        tokens_per_s_per_device=goodput * question.asked.osl.mean / devices,
        rate_rps=rate,
    )
    if isinstance(found, NoSteadyState):
        return replace(side, no_steady_state=found.reason)
    share, kept = question.limits.percentile, question.limits
    return replace(
        side,
        ttft_s=found.ttft_s.quantile(share),
        tpot_s=found.tpot_s.quantile(share),
        ttft_mean_s=found.ttft_s.mean,
        tpot_mean_s=found.tpot_s.mean,
        itl_p50_s=found.itl_s.p50,
        itl_p99_s=found.itl_s.p99,
        keeps_limits=kept.kept_by(found.ttft_s, found.tpot_s),
    )


def assumptions_of(question: Question, *, priced: bool) -> tuple[str, ...]:
    """Return, in sentences, what an answer takes for granted."""
    link, asked, kept = question.link, question.asked, question.limits
    rate = format_decimal(link.bytes_per_s * link.efficiency, "B/s")
    same = "of the same cost" if priced else f"of the same {question.devices} devices"
    said = [
        *priced_with(_calibrations(question)),
        f"one pool {same}, the better of prefill first and chunked prefill; goodput is over all devices",
        f"limits hold for {kept.percentile:.0%} of the requests each; arrivals are Poisson, dealt in turn",
        f"KV moves over {link.name} at {rate} a device one way"
        + (", layer by layer while the prompt runs" if link.layerwise else ", after the prompt"),
        "TTFT of two pools ends when the decode side has the KV and a slot",
        "weights are resident in both pools; the memory holds sequences of their mean length, no preemption",
    ]
    if asked.cached_tokens > 0:
        share = asked.cached_tokens / asked.isl.mean
        said.append(f"{share:.0%} of the prompt tokens are cached where prefill runs, in either way")
    errors = {server.error for server in (*question.aggregated, *question.prefill, *question.decode)}
    said.append(
        f"step times are taken to err by a factor of {math.exp(max(errors)):.2f} either way (one sigma: about"
        " two in three), prefill and decode apart; the queueing forms by 10 %"
    )
    return tuple(said)
