"""The other way round: the fewest devices that serve a rate of requests within the limits.

Requests arrive at random (`kvroof.serving.steady.batching`), so that they queue, and limits are held at the
asked percentile. A replica's closed loop bounds the rate that it can serve; from there replicas are added
until the limits are kept, the most promising layouts first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from kvroof.ground.errors import BadInput, KvroofError
from kvroof.ground.record import record
from kvroof.roofline.plan import Plan
from kvroof.schedule.policies import Policy
from kvroof.search.assumptions import sizing_assumptions
from kvroof.search.candidates import Candidate
from kvroof.search.optimize import no_room
from kvroof.search.outcome import Answer, OperatingPoint, WayOut, described, operating_point
from kvroof.search.question import Question
from kvroof.search.relaxed_search import FINALISTS, Search
from kvroof.search.ways_out import nearest, ways_out
from kvroof.serving.demand.requests import check_arrival_rate
from kvroof.serving.pools.goodput import Replica, one_pool_policies, replica
from kvroof.serving.steady.batching import SteadyState, one_pool
from kvroof.serving.steady.queueing import NoSteadyState

BOUND_SLACK = 1.15
"""How much more than its closed loop a replica is let try."""
BEYOND = 64
"""Times the devices that are looked at for a way out."""


@record
class Fleet:
    """Replicas of a plan with their schedule, and the steady state of one of them."""

    candidate: Candidate
    policy: Policy
    replicas: int
    state: SteadyState

    @property
    def devices(self) -> int:
        """Devices of all replicas."""
        return self.replicas * self.candidate.plan.layout.devices


class Sizing:
    """A rate and the candidates that may serve it.

    Args:
        plans: The discrete choices.
        question: Requests and limits.
        rate_per_s: Arrivals per second.
        most_devices: Devices that may be used in all.
    """

    def __init__(
        self, plans: Iterable[Plan], question: Question, rate_per_s: float, most_devices: int
    ) -> None:
        check_arrival_rate(rate_per_s)
        self.question, self.rate, self.most_devices = question, rate_per_s, most_devices
        self.search = Search(plans, replace(question, objective="throughput"))
        self.policies = _policies(question)
        self.evaluations = 0
        self._servers: dict[int, Replica | None] = {}

    def closed_rates(self) -> list[tuple[int, float]]:
        """Return the candidates, one per plan, with the rate of their closed loop under the limits."""
        relaxed = self.search.relaxed
        if relaxed is None:
            return []
        best: dict[int, tuple[int, float]] = {}
        for i in self.search.order():
            plan = self.search.candidates[i].plan
            rate = math.exp(relaxed.value[i]) * plan.layout.devices / self.question.osl.mean
            if id(plan) not in best:
                best[id(plan)] = i, rate
        return list(best.values())

    def price(self, i: int) -> float:
        """Return what one device of a candidate costs: dollars per hour where prices count, else one."""
        name = self.search.candidates[i].plan.hardware.name
        return self.question.prices[name] if self.question.objective == "cost" else 1.0

    def smallest(self, most_devices: int) -> Fleet | None:
        """Return the fleet of fewest devices (or least cost) that keeps the limits, None where none does."""
        order = []
        for i, rate in self.closed_rates():
            if self.question.objective == "cost" and self._name(i) not in self.question.prices:
                continue
            devices = self.search.candidates[i].plan.layout.devices
            replicas = max(math.ceil(self.rate / (rate * BOUND_SLACK)), 1)
            order.append((replicas * devices * self.price(i), devices, i, replicas))
        best: Fleet | None = None
        least = math.inf
        for cost, devices, i, replicas in sorted(order):
            if cost >= least:
                break
            most = (
                min(most_devices, math.ceil(least / self.price(i)) - 1 if best else most_devices) // devices
            )
            found = self._fewest(i, replicas, most)
            if found is not None:
                best, least = found, found.devices * self.price(i)
        return best

    def _fewest(self, i: int, low: int, most: int) -> Fleet | None:
        """Return the fewest replicas from `low` to `most` that keep the limits."""
        if low > most:
            return None
        found = self.kept(i, low)
        if found is not None or low == most:
            return found
        found, stride, failed = self.kept(i, most), 1, low
        while found is not None and failed + stride < found.replicas:
            trial = self.kept(i, failed + stride)
            if trial is not None:
                found = trial
                break
            failed, stride = failed + stride, 2 * stride
        while found is not None and found.replicas - failed > 1:
            middle = (failed + found.replicas) // 2
            better = self.kept(i, middle)
            if better is None:
                failed = middle
            else:
                found = better
        return found

    def _name(self, i: int) -> str:
        return self.search.candidates[i].plan.hardware.name

    def kept(self, i: int, replicas: int) -> Fleet | None:
        """Return the fleet of so many replicas under a schedule that keeps the limits, None without one."""
        server = self._server(i)
        if server is None or server.max_seqs < 1:
            return None
        limits, most = self.question.limits, min(server.max_seqs, self.question.most_batch or server.max_seqs)
        best: Fleet | None = None
        for policy in self.policies:
            own = replace(policy, max_num_seqs=min(policy.max_num_seqs, most))
            self.evaluations += 1
            asked = self.question.traffic.dealt(replicas)
            state = one_pool(server.times, asked, self.rate / replicas, own)
            if isinstance(state, NoSteadyState) or not self.question.limits.kept_by(
                state.ttft_s, state.tpot_s
            ):
                continue
            share = limits.percentile
            if best is None or state.ttft_s.quantile(share) < best.state.ttft_s.quantile(share):
                best = Fleet(candidate=self.search.candidates[i], policy=own, replicas=replicas, state=state)
        return best

    def _server(self, i: int) -> Replica | None:
        if i not in self._servers:
            plan, question = self.search.candidates[i].plan, self.question
            try:
                self._servers[i] = replica(
                    plan,
                    question.traffic,
                    utilization=question.utilization,
                    reserve_bytes=question.reserve_bytes,
                    most_tokens=max(policy.max_num_batched_tokens for policy in self.policies),
                )
            except KvroofError:
                self._servers[i] = None
        return self._servers[i]

    def limits_of(self, fleet: Fleet) -> tuple[str, ...]:
        """Return what one replica fewer would exceed, under the same schedule."""
        if fleet.replicas == 1:
            return ()
        i = self.search.candidates.index(fleet.candidate)
        server, limits = self._server(i), self.question.limits
        assert server is not None
        fewer = fleet.replicas - 1
        asked = self.question.traffic.dealt(fewer)
        state = one_pool(server.times, asked, self.rate / fewer, fleet.policy)
        if isinstance(state, NoSteadyState):
            caps = {self.question.most_batch: "batch", server.max_seqs: "memory"}
            full = caps.get(fleet.policy.max_num_seqs) if state.what == "decode" else None
            return (full or state.what,)
        missed = {"ttft": limits.first_kept(state.ttft_s), "tpot": limits.later_kept(state.tpot_s)}
        return tuple(name for name, kept in missed.items() if not kept)


def size_for_rate(plans: Iterable[Plan], question: Question, rate_per_s: float, most_devices: int) -> Answer:
    """Return the fewest devices that serve a rate within the limits, or the cheapest where cost is asked.

    Args:
        plans: The discrete choices of one replica.
        question: Requests, limits; with the objective `cost`, prices.
        rate_per_s: Arrivals per second.
        most_devices: Devices that may be used in all.

    Raises:
        BadInput: A rate or question that cannot be, or no plan that holds a request.
    """
    if question.maximize != "throughput" or question.batch is not None:
        raise BadInput("a rate sets the batch", where="--rate", way_out="leave --maximize and --batch out")
    if question.objective not in ("throughput", "cost"):
        raise BadInput(
            "a rate is served by the fewest devices, or at the least cost",
            where=f"--objective {question.objective}",
            way_out="take --objective cost, or leave it or --rate out",
        )
    sizing = Sizing(plans, question, rate_per_s, most_devices)
    if sizing.search.relaxed is None:
        return no_room(sizing.search)
    fleet = sizing.smallest(most_devices)
    if fleet is None:
        return _too_few(sizing)
    best = _point(sizing, fleet)
    return _answer(sizing, fleet.candidate, best, feasible=True, binding=sizing.limits_of(fleet), fleet=fleet)


def _policies(question: Question) -> tuple[Policy, ...]:
    """Return the schedules that a question leaves: its chunk is the token budget of a step."""
    if question.chunk == "whole":
        return one_pool_policies(())
    if question.chunk == "auto":
        return one_pool_policies()
    return one_pool_policies((question.chunk,), whole=False)


def _too_few(sizing: Sizing) -> Answer:
    """Return what the devices come to, and how many it would take."""
    search = sizing.search
    best, point, *_ = search.finish()
    candidate = search.candidates[best]
    ways: tuple[WayOut, ...] = ()
    if not point.feasible:
        tried = [search.candidates[i] for i in search.order()[:FINALISTS]]
        ways = tuple(ways_out(tried, search.question, candidate, point))
    elif (enough := sizing.smallest(sizing.most_devices * BEYOND)) is not None:
        option = f"--max-devices {enough.devices}"
        ways = (WayOut(change="max_devices", from_=sizing.most_devices, to=enough.devices, option=option),)
    found = operating_point(candidate, point)
    copies = max(sizing.most_devices // found.devices, 1)
    served = found.requests_per_s * copies
    excess = nearest(candidate, point) or {"rate": max(sizing.rate / served - 1, 0.0)}
    shown = replace(
        found,
        replicas=copies,
        devices=found.devices * copies,
        batch=found.batch * copies,
        tokens_per_s=found.tokens_per_s * copies,
        requests_per_s=served,
    )
    return _answer(sizing, candidate, shown, feasible=False, binding=tuple(excess), excess=excess, ways=ways)


def _answer(
    sizing: Sizing,
    candidate: Candidate,
    best: OperatingPoint,
    *,
    feasible: bool,
    binding: tuple[str, ...],
    excess: dict[str, float] | None = None,
    ways: tuple[WayOut, ...] = (),
    fleet: Fleet | None = None,
) -> Answer:
    search = sizing.search
    return Answer(
        feasible=feasible,
        best=best,
        binding=binding,
        shadow_prices={},
        excess=excess or {},
        ways_out=ways,
        others=(),
        candidates=len(search.every),
        left_out=search.left_out,
        evaluations=search.evaluations + sizing.evaluations,
        relaxed_evaluations=search.relaxed_evaluations,
        residual=None,
        objective="USD per hour" if sizing.question.objective == "cost" else "devices",
        assumptions=sizing_assumptions(
            search.candidates, candidate, None if fleet is None else fleet.policy.name, best
        ),
    )


def _point(sizing: Sizing, fleet: Fleet) -> OperatingPoint:
    """Return a fleet as people read it; times are those at the percentile."""
    state, question = fleet.state, sizing.question
    share = question.limits.percentile
    point = described(
        fleet.candidate,
        batch=max(math.ceil(state.seqs * fleet.replicas), 1),
        isl=question.isl.mean,
        chunk=fleet.policy.max_num_batched_tokens if fleet.policy.name == "chunked" else None,
        rate_per_s=sizing.rate,
        times_s=(state.ttft_s.quantile(share), state.tpot_s.quantile(share), state.e2e_s),
        replicas=fleet.replicas,
    )
    return replace(point, max_num_seqs=fleet.policy.max_num_seqs)
