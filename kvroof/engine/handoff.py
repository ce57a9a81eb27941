"""Hand-off: one engine runs a prompt, another takes its blocks over and decodes with its own block table."""

from __future__ import annotations

import jax

from kvroof.engine.requests import Request, Sent
from kvroof.engine.runner import Runner
from kvroof.ground.errors import BadInput
from kvroof.ground.record import record, static


@record
class Transfer:
    """What went from one engine to the other: tokens, blocks by group, and the bytes of those blocks."""

    request: int
    kv_len: int
    blocks: tuple[int, ...] = static()
    moved_bytes: int


def hand_off(source: Runner, target: Runner, request: int, output_tokens: int) -> Transfer:
    """Move a request whose prompt `source` has run into the queue of `target`; return what was moved.

    The target writes the blocks when it admits the request, into blocks of its own: only their contents
    travel, in logical order.

    Args:
        source: An engine that packs what it finishes, and finished the request with its first token.
        target: An engine of the same model, block size and dtypes.
        request: Its number in both.
        output_tokens: Tokens to generate in all, the first one included.

    Raises:
        BadInput: Engines whose blocks differ, or a request that is not packed or ran on.
    """
    where = f"request {request}"
    if (source.model, source.plan, source.executor.kv_format, source.executor.state_format) != (
        target.model,
        target.plan,
        target.executor.kv_format,
        target.executor.state_format,
    ):
        raise BadInput(
            "the engines' blocks differ", where=where, way_out="give both one model and one layout"
        )
    if request not in source.packed:
        raise BadInput("its blocks were not packed", where=where, way_out="let it finish with pack_finished")
    sent = source.packed[request]
    if len(sent.sampled) != 1:
        raise BadInput(f"{len(sent.sampled)} tokens were sampled", where=where, way_out="ask for one token")
    asked = Request(
        request=request,
        tokens=sent.request.tokens,
        output_tokens=output_tokens,
        arrival_s=sent.request.arrival_s,
    )
    target.add_sent(Sent(asked, sent.sampled, sent.kv_len, sent.contents))
    del source.packed[request]
    return Transfer(
        request=request,
        kv_len=sent.kv_len,
        blocks=tuple(group.blocks(sent.kv_len) for group in source.plan.groups),
        moved_bytes=sum(int(leaf.nbytes) for leaf in jax.tree_util.tree_leaves(sent.contents)),
    )
