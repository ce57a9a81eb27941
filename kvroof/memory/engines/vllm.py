"""vLLM's KV pool: layers in groups of equal size, one page size for all, blocks shared by the groups.

Source: vLLM v1 `kv_cache_utils` and `kv_cache_interface`, checked against public logs
(`tests/published/test_engine_logs.py`).
"""

from __future__ import annotations

from kvroof.ground.errors import Unsupported
from kvroof.ground.numeric import ceil_div
from kvroof.ground.record import record
from kvroof.memory.engines.pool import EngineOptions, PageGroup, Pool
from kvroof.memory.kv import caches, states
from kvroof.spec.architecture import Architecture
from kvroof.spec.cache import Cache
from kvroof.spec.precision import KVFormat, StateFormat

SIMILAR = 1.5
"""Kinds whose counts differ by less than this share one group size (1.25 in older releases)."""
STATE_ALIGN = 16


@record
class KVLog:
    """The figures of vLLM's start-up log, and those that follow from them.

    `kv_cache_tokens_old` is the reporting up to v0.20 (blocks per group times the smallest block),
    `kv_cache_tokens` that since v0.21 (`int(max_concurrency * max_model_len)`).
    """

    num_blocks: int
    block_size: int
    block_bytes: int
    kv_cache_tokens: int | None
    kv_cache_tokens_old: int
    max_concurrency: float | None


def vllm_pool(model: Architecture, options: EngineOptions, kv: KVFormat, state: StateFormat) -> Pool:
    """Return the pool of one tensor-parallel rank.

    Args:
        model: The architecture.
        options: vLLM's flags.
        kv: Dtypes of keys and values.
        state: Dtypes of a fixed state; vLLM keeps `d_conv - 1` columns.

    Raises:
        Unsupported: Page sizes of which none is a multiple of the others.
    """
    kinds: dict[tuple[object, ...], tuple[Cache, int]] = {}
    for cache, layers in caches(model):
        key = (cache.kind, cache.reach.window, kv.token_bytes(cache, options.tp))
        kinds[key] = (cache, kinds[key][1] + layers if key in kinds else layers)
    held = [(kind, state.state_bytes(s, options.tp), layers) for kind, s, layers in states(model)]
    if not kinds and not held:
        raise Unsupported("holds no cache and no state", where=model.name)
    if held:
        return _with_states(list(kinds.values()), held, options, kv)
    return _attention_only(list(kinds.values()), options, kv)


def _attention_only(kinds: list[tuple[Cache, int]], options: EngineOptions, kv: KVFormat) -> Pool:
    """Return the pool of attention layers: one group when they are of one reach, else groups."""
    if len({cache.reach for cache, _ in kinds}) == 1:
        page = sum(layers * kv.token_bytes(cache, options.tp) for cache, layers in kinds)
        group = _group(kinds[0][0], sum(layers for _, layers in kinds), options.block_size)
        return Pool(groups=(group,), block_bytes=page * options.block_size, options=options)
    sizes = [kv.token_bytes(cache, options.tp) for cache, _ in kinds]
    largest = max(sizes)
    if any(largest % size for size in sizes):
        raise Unsupported(
            f"pages of {', '.join(map(str, sizes))} B per token do not divide", where="--engine vllm"
        )
    size = _group_size([layers for _, layers in kinds])
    groups = [
        _group(cache, size, options.block_size * (largest // token))
        for (cache, layers), token in zip(kinds, sizes, strict=True)
        for _ in range(ceil_div(layers, size))
    ]
    padding = sum(-layers % size for _, layers in kinds)
    block = largest * options.block_size * size
    return Pool(groups=tuple(groups), block_bytes=block, options=options, padding_layers=padding)


def _with_states(
    kinds: list[tuple[Cache, int]], held: list[tuple[str, int, int]], options: EngineOptions, kv: KVFormat
) -> Pool:
    """Return the pool of a hybrid: the attention block grows until its page holds a whole state."""
    page_state = max(size for _, size, _ in held)
    counts = [layers for _, layers in kinds] + [layers for *_, layers in held]
    size = _group_size(counts)
    groups: list[PageGroup] = []
    page, block = page_state, options.block_size
    if kinds:
        token = max(kv.token_bytes(cache, options.tp) for cache, _ in kinds)
        align = 128 if any(cache.kind.startswith("mla") for cache, _ in kinds) else STATE_ALIGN
        block = max(ceil_div(ceil_div(page_state, token), align) * align, options.block_size)
        page = block * token
        for cache, layers in kinds:
            own = block * (token // kv.token_bytes(cache, options.tp))
            groups += [_group(cache, size, own)] * ceil_div(layers, size)
    for kind, _, layers in held:
        groups += [PageGroup(kind=kind, layers=size, block_size=block, reach=None)] * ceil_div(layers, size)
    return Pool(
        groups=tuple(groups),
        block_bytes=page * size,
        options=options,
        padding_layers=sum(-count % size for count in counts),
        padded_bytes=page - page_state,
    )


def _group_size(counts: list[int]) -> int:
    """Return the layers of a group: the smallest count of a kind, or the largest when they are alike."""
    return max(counts) if max(counts) < SIMILAR * min(counts) else min(counts)


def _group(cache: Cache, layers: int, block_size: int) -> PageGroup:
    return PageGroup(kind=cache.kind, layers=layers, block_size=block_size, reach=cache.reach)


def vllm_log(pool: Pool, available_bytes: int) -> KVLog:
    """Return what vLLM logs of a pool that is given `available_bytes` on its smallest rank."""
    blocks = pool.num_blocks(available_bytes)
    smallest = min(group.block_size for group in pool.groups)
    ranks, limit = pool.options.dcp, pool.options.max_model_len
    concurrency = blocks / pool.request_blocks(ceil_div(limit, ranks)) if limit else None
    return KVLog(
        num_blocks=blocks,
        block_size=smallest,
        block_bytes=pool.block_bytes,
        kv_cache_tokens=int(concurrency * limit) if concurrency is not None and limit else None,
        kv_cache_tokens_old=blocks // len(pool.groups) * smallest * ranks,
        max_concurrency=concurrency,
    )
