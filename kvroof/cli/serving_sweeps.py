"""The points that figures of serving are drawn through: rates, maps, and a simulated run."""

from __future__ import annotations

from dataclasses import replace

from kvroof.cli.sweeps import calibration_of
from kvroof.ground.errors import BadInput
from kvroof.roofline.plan import Plan
from kvroof.schedule.policies import Policy
from kvroof.serving.demand.lengths import fixed
from kvroof.serving.demand.requests import poisson
from kvroof.serving.demand.traffic import Traffic, traffic
from kvroof.serving.pools.best_pools import Question, question_of
from kvroof.serving.pools.disaggregation import Split, TwoPools, split
from kvroof.serving.pools.goodput import Limits, highest_rate, replica, start_rate
from kvroof.serving.pools.pool_choice import Choice, choose
from kvroof.serving.pools.transfer import KVLink
from kvroof.serving.simulation.replay import Deployed, replay
from kvroof.serving.simulation.simulator import Simulation
from kvroof.serving.steady.batching import SteadyState, one_pool
from kvroof.serving.steady.queueing import NoSteadyState
from kvroof.view.figures.frontier import Curve, Operating

LOADS = (0.02, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.98, 0.99)
"""Shares of the highest rate that a line goes through: denser where the wait grows."""


def load_curve(
    plan: Plan, asked: Traffic, policy: Policy, utilization: float, reserve_bytes: int
) -> tuple[list[SteadyState], NoSteadyState | None]:
    """Return a deployment's steady states from an idle one up to the last, and why there is none beyond.

    Raises:
        BadInput: The memory does not admit one request.
    """
    server = replica(plan, asked, utilization=utilization, reserve_bytes=reserve_bytes)
    if not server.max_seqs:
        raise BadInput(
            f"not one request fits on {plan.hardware.name}", where="load", way_out="see kvroof fit"
        )
    own = replace(policy, max_num_seqs=min(policy.max_num_seqs, server.max_seqs))

    def steady(rate: float) -> bool:
        return isinstance(one_pool(server.times, asked, rate, own), SteadyState)

    most = highest_rate(steady, start_rate(server, asked))
    rates = [most * share for share in LOADS] if most else []
    states = [one_pool(server.times, asked, rate, own) for rate in rates]
    beyond = one_pool(server.times, asked, 1.1 * most or 1e-3, own)
    return (
        [state for state in states if isinstance(state, SteadyState)],
        beyond if isinstance(beyond, NoSteadyState) else None,
    )


def open_loop_curve(plan: Plan, asked: Traffic, utilization: float, reserve_bytes: int) -> Curve | None:
    """Return one pool of mixed steps at rising rates; None where the memory does not admit a request."""
    if not replica(plan, asked, utilization=utilization, reserve_bytes=reserve_bytes).max_seqs:
        return None
    states, _ = load_curve(plan, asked, Policy(name="chunked"), utilization, reserve_bytes)
    points = tuple(_operating(state, plan.layout.devices) for state in states)
    return Curve(plan.hardware.name, "aggregated", points, calibration_of(plan))


def split_curve(
    plan: Plan,
    counts: tuple[int, int],
    asked: Traffic,
    link: KVLink,
    utilization: float,
    reserve_bytes: int,
) -> Curve | None:
    """Return prefill and decode pools of `counts` instances at rising rates; None where nothing fits."""
    server = replica(plan, asked, utilization=utilization, reserve_bytes=reserve_bytes)
    if not server.max_seqs:
        return None
    first, later = counts
    pools = TwoPools(
        prefill=server, prefill_instances=first, decode=server, decode_instances=later, link=link
    )
    most = highest_rate(
        lambda rate: isinstance(split(pools, asked, rate), Split), first * start_rate(server, asked)
    )
    found = [split(pools, asked, most * share) for share in LOADS] if most else []
    points = tuple(_operating(state, pools.devices) for state in found if isinstance(state, Split))
    name = f"{plan.hardware.name} {first}P:{later}D"
    return Curve(name, "disaggregated", points, calibration_of(plan)) if points else None


def _operating(state: SteadyState | Split, devices: int) -> Operating:
    return Operating(
        tokens_per_s_per_user=1 / state.tpot_s.mean,
        tokens_per_s_per_device=state.tokens_per_s / devices,
        ttft_s=state.ttft_s.mean,
        label=f"{state.requests_per_s:.3g}/s",
    )


def pool_question(
    prefill: Plan, decode: Plan, isl: int, osl: int, limits: Limits, link: KVLink, devices: int
) -> Question:
    """Return the question whether one pool or two serve more requests of a length.

    One pool is tried on either machine.

    Raises:
        BadInput: Fewer than two devices, or a model that does not fit.
    """
    if devices < 2:
        raise BadInput("two pools need at least 2 devices", where="--max-devices")
    alone = (prefill,) if decode is prefill else (prefill, decode)
    return question_of(alone, (prefill,), (decode,), traffic(fixed(isl), fixed(osl)), limits, link, devices)


def pool_choice(question: Question) -> Choice | None:
    """Return the answer to a question; None where nothing keeps its limits."""
    found = choose(question)
    return None if found.aggregated is None and found.disaggregated is None else found


def simulated(
    plan: Plan,
    policy: Policy,
    *,
    isl: int,
    osl: int,
    rate: float,
    requests: int,
    seed: int,
    utilization: float,
    reserve_bytes: int,
) -> Simulation:
    """Return a simulated run of Poisson arrivals on one deployment, with its schedule.

    Raises:
        BadInput: The memory does not admit one request, or a policy that cannot run.
    """
    asked = poisson(rate, requests, input_tokens=isl, output_tokens=osl, seed=seed)
    deployed = Deployed(plan=plan, policy=policy, utilization=utilization, reserve_bytes=reserve_bytes)
    return replay(asked, deployed, trace=True)
