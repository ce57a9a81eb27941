"""What is asked of a deployment on average: prompts, outputs and how much of a prompt is cached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from kvroof.ground.errors import BadInput
from kvroof.ground.record import record
from kvroof.serving.demand.lengths import Lengths, empirical
from kvroof.serving.demand.requests import Request


@record
class Traffic:
    """Requests by their lengths; prompt and output lengths are independent of each other.

    `prefix_hit` is the share of every prompt whose KV is in cache. A trace's own hits differ from prompt to
    prompt, which makes prefill times differ more than prompts do: `uncached` are then the tokens that are
    run. `arrival_cv2` is the squared coefficient of variation of the gaps between arrivals, 1 for Poisson.
    """

    isl: Lengths
    osl: Lengths
    prefix_hit: float = 0.0
    uncached: Lengths | None = None
    arrival_cv2: float = 1.0

    @property
    def prompts(self) -> Lengths:
        """Prompt tokens that are run."""
        return self.isl.scaled(1 - self.prefix_hit) if self.uncached is None else self.uncached

    @property
    def run_tokens(self) -> float:
        """Mean prompt tokens that are run."""
        return self.prompts.mean

    @property
    def cached_tokens(self) -> float:
        """Mean prompt tokens that are taken from the cache."""
        return max(self.isl.mean - self.run_tokens, 0.0)

    @property
    def decode_tokens(self) -> float:
        """Mean tokens that are decoded: the first one comes from the prefill."""
        return self.osl.mean - 1

    @property
    def decode_cv2(self) -> float:
        """Squared coefficient of variation of the decoded tokens."""
        if self.decode_tokens <= 0:
            return 0.0
        return self.osl.cv2 * (self.osl.mean / self.decode_tokens) ** 2

    @property
    def overlap(self) -> float:
        """Share of a request's decodes during which another that began with it still decodes.

        `E[min(O, O')] / E[O]` of two independent outputs: 1 where they are equal.
        """
        if self.decode_tokens <= 0:
            return 0.0
        pairs = zip(self.osl.values, self.osl.shares, strict=True)
        return sum((self.osl.capped_mean(v) - 1) * share for v, share in pairs) / self.decode_tokens

    @property
    def context(self) -> float:
        """Mean cached tokens of a sequence that decodes: longer outputs are seen more often."""
        if self.decode_tokens <= 0:
            return self.isl.mean + 1
        return self.isl.mean + (self.decode_tokens * (1 + self.decode_cv2) + 1) / 2

    @property
    def crowding(self) -> float:
        """Variance over mean of the sequences at once where each decodes at a given speed; 1 for Poisson.

        `1 + (ca2 - 1) E[min(O, O')] / E[O]`: equal outputs keep the evenness of their arrivals.

        Source: Borovkov 1967, the infinite-server queue in heavy traffic.
        """
        return 1 + (self.arrival_cv2 - 1) * self.overlap

    def dealt(self, instances: int) -> Traffic:
        """Return what one of `instances` sees of this traffic when requests are dealt to them in turn.

        A gap is then a sum of so many, which varies less: of Poisson arrivals it is Erlang's.
        """
        return replace(self, arrival_cv2=self.arrival_cv2 / instances)

    def cached_of(self, tokens: Any) -> Any:
        """Return the cached tokens before prompts of which `tokens` are run."""
        if self.uncached is not None:
            return 0 * tokens + self.cached_tokens
        return tokens * self.prefix_hit / (1 - self.prefix_hit)


def traffic(
    isl: Lengths,
    osl: Lengths,
    *,
    prefix_hit: float = 0.0,
    uncached: Lengths | None = None,
    arrival_cv2: float = 1.0,
) -> Traffic:
    """Return the traffic, checked.

    Raises:
        BadInput: A share or a variation that cannot be, or more tokens run than prompts have.
    """
    if not 0 <= prefix_hit < 1:
        raise BadInput(f"{prefix_hit} is not a share below 1", where="--prefix-hit")
    if uncached is not None and (prefix_hit or uncached.mean > isl.mean * (1 + 1e-9)):
        raise BadInput(
            "give either a hit share, or the tokens that are run of these prompts", where="uncached"
        )
    if not 0 <= arrival_cv2 < float("inf"):
        raise BadInput(f"{arrival_cv2} is not a squared coefficient of variation", where="arrival_cv2")
    return Traffic(isl=isl, osl=osl, prefix_hit=prefix_hit, uncached=uncached, arrival_cv2=arrival_cv2)


def traffic_of(requests: Sequence[Request], *, prefix_cache: bool = False) -> tuple[Traffic, float]:
    """Return the traffic of a trace and its mean rate per second.

    With `prefix_cache` every block of a prompt that an earlier one began with is a hit, as in a cache that
    never evicts: an upper estimate. The last token of a prompt is always run.

    Raises:
        BadInput: Fewer than two requests, or all at one time.
    """
    gaps = [later.arrival_s - r.arrival_s for r, later in pairwise(requests)]
    span = sum(gaps)
    if not span > 0:
        raise BadInput("a rate needs requests at different times", where="trace")
    mean = span / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    uncached = empirical(_run(requests), "trace, not cached") if prefix_cache else None
    asked = traffic(
        empirical(r.input_tokens for r in requests),
        empirical(r.output_tokens for r in requests),
        uncached=uncached,
        arrival_cv2=variance / mean**2,
    )
    return asked, len(requests) / span


def _run(requests: Sequence[Request]) -> list[int]:
    """Return the prompt tokens of each request that no earlier one had in the same place."""
    seen: set[int] = set()
    run = []
    for request in requests:
        hits = 0
        for name in request.block_hashes or ():
            if name not in seen:
                break
            hits += 1
        seen.update(request.block_hashes or ())
        run.append(max(request.input_tokens - hits * request.hash_block_size, 1))
    return run
