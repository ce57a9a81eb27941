"""A closed loop: `concurrency` requests are always in the system, as benchmarks with a client pool run it.

Each slot is refilled once per `osl` steps, and a refill stalls the other `b - 1` sequences for one prefill:

    TPOT = T_dec(b, isl + osl / 2) + f (b - 1) / osl x T_pf(isl)

With lengths that differ the refills spread (`steady`, f = 0.95). With equal lengths and prefill first they
stay together (`burst`): f = (b - g) / (2 (b - 1)), g prompts per prefill step. Whatever the phases,
TTFT + osl x TPOT = osl x T_dec + b x T_pf.

An engine that `mixes` runs the prompt inside the others' step, where the weights are read once: a refill
then stalls them for T_mixed - T_dec instead of T_pf.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, cast

from kvroof.ground.errors import BadInput
from kvroof.ground.numeric import maximum, minimum
from kvroof.ground.record import record, static
from kvroof.serving.step_times import StepTimes

Phasing: TypeAlias = Literal["steady", "burst"]

REFILL_SHARE = 0.95
"""f: the share of other slots' prefills that a sequence sees between its tokens."""
PREFILL_SPREAD = 1.35
"""Mean prefill seen by a request over the prefill of its own prompt, with several prompts in a step."""
FRONT_END_S = 0.025
"""From the client's request until the scheduler sees it, and back."""
WAVES = 10
"""Requests per slot in a benchmark; only the first wave comes as a burst."""
STEP_TOKENS = 8192
"""Prompt tokens that a step takes at most, vLLM's and TensorRT-LLM's usual `max_num_batched_tokens`."""
TTFT_ERROR = 0.31
TPOT_ERROR = 0.14
"""Mean absolute errors of the steady forms on the measurements they were studied on.

Source of the constants: priors from a study of 2,197 closed-loop measurements of 7 models on H100 to B300
(end-to-end samples of aiconfigurator-core, InferenceX-like); none is fitted to a deployment.
"""


@record
class ClosedLoop:
    """Mean times over the requests of a closed loop, and its rates. `seqs` of them run at a time."""

    phasing: Phasing = static()
    concurrency: int
    seqs: int
    isl: float
    osl: float
    ttft_s: float
    tpot_s: float
    e2e_s: float
    decode_s: float
    prefill_s: float
    requests_per_s: float
    tokens_per_s: float


def closed_loop(
    times: StepTimes,
    *,
    isl: float,
    osl: float,
    concurrency: int,
    cached: float = 0,
    phasing: Phasing = "steady",
    step_tokens: float = STEP_TOKENS,
    waves: float = WAVES,
    receive_interval: float = 1,
    max_seqs: int | None = None,
    mixes: bool = False,
) -> ClosedLoop:
    """Return mean TTFT and TPOT with `concurrency` requests always in the system.

    Numbers and NumPy arrays alike.

    TTFT is, over `waves` requests per slot of which the first comes as a burst,

        1.35 T_pf + (b + g) / (2 waves) T_pf + max(1, receive_interval / 2) TPOT + 25 ms

    and (b + g) / 2 T_pf where the lengths are equal and it stays a burst. Expect 30 % error of it.

    Args:
        times: Seconds of a step.
        isl: Prompt tokens, the mean.
        osl: Output tokens, the mean.
        concurrency: Requests in the system.
        cached: Prompt tokens whose KV is at hand.
        phasing: `steady` where lengths differ, `burst` where they are equal and prefill goes first.
        step_tokens: Prompt tokens that one step takes.
        waves: Requests that each slot serves in the measured run.
        receive_interval: Steps between two looks at new requests (SGLang's receive interval).
        max_seqs: Sequences that the memory admits; the others wait for a slot, which TTFT then counts.
        mixes: Whether a prompt runs in one step with the others' decodes (vLLM, TensorRT-LLM), or in a
            step of its own (SGLang).

    Raises:
        BadInput: A length, a concurrency or a prefix that cannot be.
    """
    _check(isl, osl, concurrency, cached, max_seqs)
    seqs = concurrency if max_seqs is None else min(concurrency, max_seqs)
    own = times.prefill_s(isl - cached, cached)
    decode = times.decode_s(seqs, isl + osl / 2)
    group = minimum(seqs, maximum(1.0, step_tokens / (isl - cached)))
    stall = own
    if mixes:
        stall = maximum(times.mixed_s(isl - cached, cached, 1, seqs, isl + osl / 2) - decode, 0.0)
    if phasing == "burst":
        tpot = decode + (seqs - group) / 2 / osl * stall
        ttft = (seqs + group) / 2 * own
    else:
        tpot = decode + REFILL_SHARE * (seqs - 1) / osl * stall
        ttft = (PREFILL_SPREAD + (seqs + group) / (2 * waves)) * own
        ttft += max(1.0, receive_interval / 2) * tpot + FRONT_END_S
    served = ttft + (osl - 1) * tpot
    waits = (concurrency - seqs) / seqs * served
    return ClosedLoop(
        phasing=phasing,
        concurrency=concurrency,
        seqs=seqs,
        isl=isl,
        osl=osl,
        ttft_s=ttft + waits,
        tpot_s=tpot,
        e2e_s=served + waits,
        decode_s=decode,
        prefill_s=own,
        requests_per_s=concurrency / (served + waits),
        tokens_per_s=concurrency * osl / (served + waits),
    )


def _check(isl: float, osl: float, concurrency: int, cached: float, max_seqs: int | None) -> None:
    for option, value in (("--isl", isl), ("--osl", osl), ("--concurrency", concurrency)):
        if not _least(value) >= 1:
            raise BadInput(f"{_least(value)} is not at least 1", where=option)
    if not 0 <= cached < _least(isl):
        raise BadInput(f"{cached} cached tokens leave none of {_least(isl)} to run", where="--cached-prefix")
    if max_seqs is not None and max_seqs < 1:
        raise BadInput("no sequence fits the memory", where="--max-seqs", way_out="see kvroof fit")


def _least(value: float) -> float:
    """Return a number, or the smallest of an array of them."""
    return value if isinstance(value, (int, float)) else float(cast(Any, value).min())
