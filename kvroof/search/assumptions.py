"""What a search takes for granted, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from kvroof.roofline.collectives import links_used
from kvroof.search.candidates import Candidate
from kvroof.search.outcome import OperatingPoint
from kvroof.search.question import Question
from kvroof.serving.assumptions import priced_with
from kvroof.spec.architecture import Architecture


def assumptions(candidates: Sequence[Candidate], chosen: Candidate, point: OperatingPoint) -> tuple[str, ...]:
    """Return the sentences of an answer."""
    question, plan = chosen.question, chosen.plan
    said = [*priced_with(calibrations(candidates))]
    said.append("a closed loop: the next request starts when one ends; queueing is left out without --rate")
    said.append(
        "prompts run in the others' decode steps"
        + (f", {point.chunk} tokens at a time" if point.chunk is not None else ", whole")
    )
    if len(question.isl.values) > 1 or len(question.osl.values) > 1:
        share = question.limits.percentile
        said.append(
            f"TTFT is of the prompt that {share:.0%} do not exceed, TPOT the mean; the memory holds what the"
            f" sum of lengths stays below with {share:.0%}"
        )
    else:
        said.append("requests are alike, so that percentiles are the mean")
    said.append("every sequence may grow to its end in memory")
    said += _beyond(plan.model, point.isl + point.osl) + _cached(question)
    if plan.layout.devices > 1:
        said.append(f"collectives over {links_used(plan.hardware, plan.layout.devices)} one way")
    if any(c.plan.layout.ep > 1 for c in candidates):
        said.append("the busiest expert rank has the load that chance makes of it")
    return tuple(said)


def calibrations(candidates: Sequence[Candidate]) -> dict[str, str | None]:
    """Return what each machine of the candidates is priced with, None for bounds."""
    return {c.plan.hardware.name: c.plan.efficiency.name for c in candidates}


def sizing_assumptions(
    candidates: Sequence[Candidate], candidate: Candidate, policy: str | None, point: OperatingPoint
) -> tuple[str, ...]:
    """Return the sentences of a fleet that serves a rate."""
    question = candidate.question
    said = [*priced_with(calibrations(candidates))]
    said += _beyond(candidate.plan.model, point.isl + point.osl) + _cached(question)
    if question.most_batch is not None:
        said.append(f"sequences at once in a replica: {question.most_batch:,} at most (--max-batch)")
    if isinstance(question.chunk, int):
        said.append(f"a step runs {question.chunk:,} tokens at most, those of decodes among them (--chunk)")
    said.append("requests arrive at random (Poisson) and are dealt in turn to the replicas")
    if policy is not None:
        said.append(f"each replica schedules {policy}; the memory holds sequences of their mean length")
        said.append(f"TTFT and TPOT are what {question.limits.percentile:.0%} of the requests stay within")
    else:
        said.append("shown is a closed loop of the best replicas, which no limit is kept by at that rate")
    return tuple(said)


def _cached(question: Question) -> list[str]:
    """Return what is said of prompts that are in cache in part."""
    if not question.cached:
        return []
    return [f"{question.cached} prompt tokens are taken from the prefix cache, not computed"]


def _beyond(model: Architecture, tokens: float) -> list[str]:
    """Return what is said of requests that are longer than the model was made for."""
    most = model.max_position_embeddings
    if most is None or tokens <= most:
        return []
    return [f"{tokens:,.0f} tokens of a request are beyond max_position_embeddings = {most:,}"]
