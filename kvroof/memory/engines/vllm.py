"""vLLM's KV pool: layers in groups of equal size, one page size for all, blocks shared by the groups.

Source: vLLM v1 `kv_cache_utils` and `kv_cache_interface`, checked against public logs
(`tests/published/test_engine_logs.py`).
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Literal, TypeAlias

from kvroof.ground.dtypes import DTYPES, Dtype
from kvroof.ground.errors import Unsupported
from kvroof.ground.numeric import ceil_div
from kvroof.ground.record import record, static
from kvroof.ground.units import GIB
from kvroof.memory.demand import Demand
from kvroof.memory.engines.engine import (
    Figures,
    Formats,
    Held,
    Question,
    check_modelled,
    fp8_as_kernels_store_it,
)
from kvroof.memory.engines.pool import PageGroup, Pool
from kvroof.memory.layers import caches, has_state, states
from kvroof.spec.architecture import Architecture
from kvroof.spec.cache import Cache
from kvroof.spec.parallel import check_dcp
from kvroof.spec.precision import KVFormat, StateFormat
from kvroof.spec.reach import Full

Mismatch: TypeAlias = Literal["pad", "raise"]

STATE_ALIGN = 16
LATENT_ALIGN = 128
"""A hybrid's attention block is a multiple of this many tokens; beside latent attention, of the second."""


@record
class VLLM:
    """vLLM with the flags that decide what it sets aside, at their defaults.

    `similar` is the ratio of counts below which kinds share one group size ("3/2"; "5/4" in older
    releases). Pages that do not divide are padded (`mismatch` "pad") or refused ("raise", older
    releases). `spec_tokens` are drafted tokens per step: they lengthen a convolution and add pages of
    state. `state_dtype` None follows the checkpoint, else the model's dtype. `batches_in_flight` is 2
    with asynchronous scheduling in the releases that count it. `mtp_layers` are the model's own drafting
    layers, which cache like its layers of full attention (their weights are not counted).
    """

    block_size: int = 16
    max_model_len: int | None = None
    max_num_batched_tokens: int = 2048
    batches_in_flight: int = 1
    prefix_caching: bool = static(default=True)
    spec_tokens: int = 0
    mtp_layers: int = 0
    dcp: int = 1
    state_dtype: Dtype | None = None
    mismatch: Mismatch = static(default="pad")
    similar: Fraction = static(default=Fraction(3, 2))

    @property
    def name(self) -> str:
        """The engine's name."""
        return "vllm"

    def formats(self, model: Architecture, kv: KVFormat, state: StateFormat) -> Formats:
        """Return index keys and sparse latents as the kernels store them, and `d_conv - 1` columns."""
        recurrent = self.state_dtype
        if recurrent is None:
            recurrent = DTYPES[model.state_dtype or model.dtype]
            if any(kind in FP32_STATES for kind, *_ in states(model)):
                recurrent = DTYPES["fp32"]
        held = replace(state, recurrent=recurrent, dropped_columns=1, drafted_columns=self.spec_tokens)
        return fp8_as_kernels_store_it(model, kv), held

    def pool(self, model: Architecture, kv: KVFormat, state: StateFormat, tp: int = 1) -> Pool:
        """Return the pool of one of `tp` ranks.

        Raises:
            Unsupported: Compressed caches, nothing to cache, or pages that the release refuses.
            BadInput: A decode context that the heads do not allow.
        """
        kinds: dict[tuple[object, ...], tuple[Cache, int]] = {}
        check_modelled(model, "vLLM")
        for cache, layers in caches(model):
            check_dcp(cache, tp, self.dcp)
            key = (cache.kind, cache.reach, kv.token_bytes(cache, tp))
            kinds[key] = (cache, kinds[key][1] + layers if key in kinds else layers)
        if self.mtp_layers:
            self._add_drafting(kinds, model.name)
        held = [(kind, state.state_bytes(s, tp), layers) for kind, s, layers in states(model)]
        if held:
            return self._hybrid(list(kinds.values()), held, kv, tp)
        if not kinds:
            raise Unsupported("holds no cache and no state", where=model.name)
        return self._attention(list(kinds.values()), kv, tp)

    def _add_drafting(self, kinds: dict[tuple[object, ...], tuple[Cache, int]], name: str) -> None:
        """Add the drafting layers to the layers of full attention."""
        for key, (cache, layers) in kinds.items():
            if isinstance(cache.reach, Full):
                kinds[key] = (cache, layers + self.mtp_layers)
                return
        raise Unsupported("has no full attention, so what MTP layers cache is not known", where=name)

    def _attention(self, kinds: list[tuple[Cache, int]], kv: KVFormat, tp: int) -> Pool:
        """Return the pool of attention layers: one group when they are of one reach, else groups."""
        if len({cache.reach for cache, _ in kinds}) == 1:
            page = sum(layers * kv.token_bytes(cache, tp) for cache, layers in kinds)
            group = self._group(kinds[0][0], sum(layers for _, layers in kinds), self.block_size)
            return Pool(groups=(group,), block_bytes=page * self.block_size)
        size = self._group_size([layers for _, layers in kinds])
        page = max(kv.token_bytes(cache, tp) for cache, _ in kinds) * self.block_size
        return Pool(
            groups=self._groups(kinds, page, self.block_size, size, kv, tp),
            block_bytes=page * size,
            padding_layers=sum(-layers % size for _, layers in kinds),
        )

    def _hybrid(
        self, kinds: list[tuple[Cache, int]], held: list[tuple[str, int, int]], kv: KVFormat, tp: int
    ) -> Pool:
        """Return the pool of a model with states: the attention block grows until a page holds a state."""
        page_state = max(size for _, size, _ in held)
        counts = [layers for _, layers in kinds] + [layers for *_, layers in held]
        size = self._group_size(counts)
        page, block = page_state, self.block_size
        if kinds:
            token = max(kv.token_bytes(cache, tp) for cache, _ in kinds)
            align = LATENT_ALIGN if any(c.kind.startswith("mla") for c, _ in kinds) else STATE_ALIGN
            block = max(ceil_div(ceil_div(page_state, token), align) * align, self.block_size)
            page = block * token
        pages = (2 if self.prefix_caching else 1) + self.spec_tokens
        groups = self._groups(kinds, page, block, size, kv, tp)
        for kind, _, layers in held:
            of_states = PageGroup(kind=kind, layers=size, block_size=block, reach=None, state_pages=pages)
            groups += (of_states,) * ceil_div(layers, size)
        return Pool(
            groups=groups,
            block_bytes=page * size,
            padding_layers=sum(-count % size for count in counts),
            padded_bytes=page - page_state,
            state_bytes=page_state,
        )

    def _groups(
        self, kinds: list[tuple[Cache, int]], page: int, block: int, size: int, kv: KVFormat, tp: int
    ) -> tuple[PageGroup, ...]:
        """Return the groups of attention layers: a smaller page takes more tokens, or is padded."""
        found: list[PageGroup] = []
        for cache, layers in kinds:
            own = kv.token_bytes(cache, tp) * block
            if page % own and (self.mismatch == "raise" or cache.kind.startswith("mla")):
                raise Unsupported(
                    f"a page of {own} B ({cache.kind} layers) does not divide one of {page} B",
                    where="--engine vllm",
                    way_out="try another --block-size or --kv-dtype",
                )
            grown = block if page % own else block * (page // own)
            found += [self._group(cache, size, grown)] * ceil_div(layers, size)
        return tuple(found)

    def _group(self, cache: Cache, layers: int, block_size: int) -> PageGroup:
        return PageGroup(
            kind=cache.kind,
            layers=layers,
            block_size=block_size,
            reach=cache.reach,
            ahead=self.max_num_batched_tokens * self.batches_in_flight,
            dcp=self.dcp,
        )

    def _group_size(self, counts: list[int]) -> int:
        """Return the layers of a group: the smallest count of a kind, or the largest when they are alike."""
        return max(counts) if max(counts) < self.similar * min(counts) else min(counts)

    def hold(
        self, model: Architecture, demand: Demand, kv: KVFormat, state: StateFormat, tp: int = 1
    ) -> Held:
        """Return the blocks that the sequences of `demand` take at most."""
        return self.pool(model, kv, state, tp).hold(demand)

    def figures(
        self, model: Architecture, available_bytes: int, kv: KVFormat, state: StateFormat, tp: int = 1
    ) -> Figures:
        """Return the start-up log: blocks, KV tokens as old and new releases count them, concurrency.

        Old: `blocks // groups * block * dcp`. Since about v0.21: `int(max_concurrency * max_model_len)`.
        """
        pool = self.pool(model, kv, state, tp)
        blocks, limit = pool.num_blocks(available_bytes), self.max_model_len
        limit = limit if limit is not None else model.max_position_embeddings
        old = blocks // len(pool.groups) * pool.block_size * self.dcp
        tokens: int | None = None
        concurrency: Fraction | None = None
        if limit is not None:
            concurrency = Fraction(blocks, max(pool.request_blocks(limit), 1))
            tokens = int(concurrency * limit)
        lines = [f"Available KV cache memory: {available_bytes / GIB:.2f} GiB"]
        if pool.state_bytes and pool.block_size > self.block_size:
            lines.insert(0, f"Setting attention block size to {pool.block_size} tokens")
        if pool.padded_bytes:
            share = 100 * pool.padded_bytes / pool.state_bytes
            lines.insert(1, f"Padding mamba page size by {share:.2f}%")
        lines.append(f"GPU KV cache size: {old if tokens is None else tokens:,} tokens")
        if limit is not None and concurrency is not None:
            lines.append(f"Maximum concurrency for {limit:,} tokens per request: {float(concurrency):.2f}x")
        return Figures(
            name=self.name,
            available_bytes=available_bytes,
            num_blocks=blocks,
            block_size=pool.block_size,
            block_bytes=pool.block_bytes,
            kv_cache_tokens=tokens,
            kv_cache_tokens_old=old,
            max_model_len=limit,
            max_concurrency=None if concurrency is None else float(concurrency),
            max_requests=None if concurrency is None else int(concurrency),
            lines=tuple(lines),
        )

    def budget_bytes(self, capacity: int, share: Fraction, weights: int, loaded: int, running: int) -> int:
        """Return `gpu_memory_utilization` of the TOTAL memory: everything is taken out of it."""
        return int(capacity * share)

    def flags(self, question: Question) -> tuple[str, ...]:
        """Return `vllm serve` flags; each group of data parallelism has its own sequences."""
        flags = [
            f"--max-model-len {self.max_model_len or question.tokens}",
            f"--max-num-seqs {ceil_div(question.seqs, question.dp)}",
            f"--gpu-memory-utilization {question.utilization:g}",
            f"--kv-cache-dtype {KV_CACHE_DTYPES.get(question.kv_dtype, question.kv_dtype)}",
            f"--block-size {self.block_size}",
            f"--max-num-batched-tokens {self.max_num_batched_tokens}",
            f"--tensor-parallel-size {question.tp}",
        ]
        if question.dp > 1:
            flags.append(f"--data-parallel-size {question.dp}")
        if question.ep > 1:
            flags.append("--enable-expert-parallel")
        if self.dcp > 1:
            flags.append(f"--decode-context-parallel-size {self.dcp}")
        if self.state_dtype is not None:
            dtype = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
            flags.append(f"--mamba-ssm-cache-dtype {dtype.get(self.state_dtype.name, 'auto')}")
        if question.adapters:
            flags += [
                "--enable-lora",
                f"--max-loras {question.adapters}",
                f"--max-lora-rank {question.adapter_rank}",
            ]
        return tuple(flags)

    def sentences(self, model: Architecture) -> tuple[str, ...]:
        """Return what is taken for granted."""
        said = [f"vLLM: blocks of {self.block_size} tokens, one page size for all groups of layers"]
        if any(cache.reach.window for cache, _ in caches(model)):
            said.append(
                "a windowed layer is charged with its window and the tokens of a running prefill step"
                f" ({self.max_num_batched_tokens} x {self.batches_in_flight}, --max-num-batched-tokens)"
            )
        if has_state(model):
            said.append("fixed state in pages as large as the attention block's; d_conv - 1 columns")
        return tuple(said)


KV_CACHE_DTYPES = {"bf16": "auto", "fp16": "auto"}
FP32_STATES = ("kda",)
"""Kinds of recurrence whose state vLLM keeps in fp32 whatever the flags say."""
