"""Scheduling policies: which requests share a step.

`static` takes a batch, runs its prompts in one step and its decodes until the last is done, and only then
takes the next. `continuous` lets requests join and leave between steps, prompts first and whole: a step is
either prompts or decodes. `chunked` gives every decode its token first and fills what is left of the token
budget with parts of prompts, in one mixed step.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from kvroof.ground.errors import BadInput
from kvroof.ground.record import record, static

PolicyName: TypeAlias = Literal["static", "continuous", "chunked"]
Reserve: TypeAlias = Literal["none", "prompt", "output"]
Preemption: TypeAlias = Literal["recompute", "swap"]


@record
class Policy:
    """A policy with its limits.

    `max_num_batched_tokens` bounds the prompt tokens of a `continuous` step (a longer prompt runs alone) and
    all tokens of a `chunked` one; `static` has no such limit. `reserve` says for how much of a request
    blocks must be at hand when it is admitted: its first step only, its prompt, or its whole output too,
    after which nothing is ever preempted. A preempted request is recomputed, or swapped to the host where
    that has room.
    """

    name: PolicyName = static(default="chunked")
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    reserve: Reserve = static(default="prompt")
    preemption: Preemption = static(default="recompute")


def check_policy(policy: Policy) -> None:
    """Check that the policy can run.

    Raises:
        BadInput: An unknown name, or a limit too small to give every decode its token.
    """
    for value, choices in (
        (policy.name, get_args(PolicyName)),
        (policy.reserve, get_args(Reserve)),
        (policy.preemption, get_args(Preemption)),
    ):
        if value not in choices:
            raise BadInput(f"{value!r} is none of {', '.join(choices)}", where="--policy")
    if policy.max_num_seqs < 1:
        raise BadInput(f"{policy.max_num_seqs} is not a positive number", where="--max-num-seqs")
    if policy.max_num_batched_tokens < 1:
        raise BadInput(
            f"{policy.max_num_batched_tokens} is not a positive number", where="--max-num-batched-tokens"
        )
    if policy.name == "chunked" and policy.max_num_batched_tokens < policy.max_num_seqs:
        raise BadInput(
            f"{policy.max_num_batched_tokens} tokens do not give each of {policy.max_num_seqs} sequences one",
            where="--max-num-batched-tokens",
            way_out="raise it, or lower --max-num-seqs",
        )
