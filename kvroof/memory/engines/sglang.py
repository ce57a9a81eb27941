"""SGLang's pools: tokens of full layers, tokens of windowed layers in a fixed ratio, slots of states.

Source: SGLang's `model_runner_kv_cache_mixin` and `memory_pool`, checked against public logs
(`tests/published/test_engine_logs.py`).
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import ceil

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
    is_cross,
)
from kvroof.memory.layers import caches, fixed_bytes, has_state, states
from kvroof.spec.architecture import Architecture
from kvroof.spec.precision import KVFormat, StateFormat

RADIX_SLOTS = 3
"""State slots per running request with the radix cache, which keeps states to go back to; 1 without."""


@record
class Rates:
    """Bytes per token on one rank: full layers split into K and V, windowed layers, the encoder's."""

    k: int
    v: int
    index: int
    windowed: int
    cross: int
    window: int
    state: int

    @property
    def full(self) -> int:
        """Bytes of one token in the full pool."""
        return self.k + self.v + self.index


@record
class SGLang:
    """SGLang with the flags that decide what it sets aside, at their defaults.

    The windowed pool has `swa_ratio` of the full pool's tokens; states get `state_ratio` times what the
    tokens get. With `counts_index` false the log leaves index keys out of the sizes, as older builds did.
    """

    block_size: int = 1
    max_model_len: int | None = None
    max_num_batched_tokens: int = 8192
    swa_ratio: Fraction = static(default=Fraction(4, 5))
    state_ratio: Fraction = static(default=Fraction(9, 10))
    prefix_caching: bool = static(default=True)
    state_dtype: Dtype | None = None
    counts_index: bool = static(default=True)

    @property
    def name(self) -> str:
        """The engine's name."""
        return "sglang"

    @property
    def slots_per_request(self) -> int:
        """State slots of one running request."""
        return RADIX_SLOTS if self.prefix_caching else 1

    def formats(self, model: Architecture, kv: KVFormat, state: StateFormat) -> Formats:
        """Return index keys and sparse latents as the kernels store them; `d_conv - 1` columns, fp32."""
        recurrent = self.state_dtype or DTYPES["fp32"]
        return fp8_as_kernels_store_it(model, kv), replace(state, recurrent=recurrent, dropped_columns=1)

    def rates(self, model: Architecture, kv: KVFormat, state: StateFormat, tp: int = 1) -> Rates:
        """Return the bytes per token of each pool on one of `tp` ranks.

        A model whose layers are all windowed keeps every token: there is no full pool to evict against.

        Raises:
            Unsupported: Compressed caches, or nothing to cache.
        """
        check_modelled(model, "SGLang")
        held = list(caches(model))
        if not held and not has_state(model):
            raise Unsupported("holds no cache and no state", where=model.name)
        mixed = any(cache.reach.window is None and not is_cross(cache.reach) for cache, _ in held)
        k = v = index = windowed = cross = window = 0
        for cache, layers in held:
            whole = layers * kv.token_bytes(cache, tp)
            if is_cross(cache.reach):
                cross += whole
            elif mixed and cache.reach.window is not None:
                windowed += whole
                window = max(window, cache.reach.window)
            else:
                keys = layers * kv.token_bytes(replace(cache, v_width=0, index_width=0), tp)
                bare = layers * kv.token_bytes(replace(cache, index_width=0), tp)
                k, v, index = k + keys, v + bare - keys, index + whole - bare
        fixed = fixed_bytes(model, state, tp)
        return Rates(k=k, v=v, index=index, windowed=windowed, cross=cross, window=window, state=fixed)

    def state_parts(self, model: Architecture, state: StateFormat, tp: int = 1) -> tuple[int, int]:
        """Return the bytes of one slot on one of `tp` ranks: columns of convolutions, and recurrences."""
        most = max((held.conv_kernel for _, held, _ in states(model)), default=0)
        recurrent = fixed_bytes(model, replace(state, dropped_columns=most), tp)
        return fixed_bytes(model, state, tp) - recurrent, recurrent

    def hold(
        self, model: Architecture, demand: Demand, kv: KVFormat, state: StateFormat, tp: int = 1
    ) -> Held:
        """Return the memory that SGLang must be given so that all its pools hold `demand`.

        Full tokens F, windowed tokens S: the pool has max(F, S / r) tokens of `B_full + r B_windowed`.
        States: slots for every request and one spare, in a share q / (1 + q) of the memory.
        """
        rates, page = self.rates(model, kv, state, tp), self.block_size
        shared = demand.shared_prefix // page * page * (demand.seqs - 1)
        full = sum(ceil_div(n, page) * page * count for n, count in demand.lengths) - shared
        seen = sum(ceil_div(min(n, rates.window), page) * page * count for n, count in demand.lengths)
        tokens = full
        if rates.windowed:
            tokens = max(full, ceil(seen / self.swa_ratio / page) * page)
        size = ceil(tokens * self._per_token(rates)) + rates.cross * demand.encoder_tokens * demand.seqs
        if rates.state:
            share = self._token_share(rates)
            slots = (demand.seqs * self.slots_per_request + 1) * rates.state
            size = max(ceil(size / share) if share else 0, ceil(slots / (1 - share)))
        return Held(
            held_bytes=size, blocks=tokens // page, slots=tokens, used=min(tokens, max(demand.tokens, 0))
        )

    def figures(
        self, model: Architecture, available_bytes: int, kv: KVFormat, state: StateFormat, tp: int = 1
    ) -> Figures:
        """Return the tokens of the pools, the K and V sizes as logged, and the state's slots."""
        rates, page = self.rates(model, kv, state, tp), self.block_size
        for_tokens, slots = max(available_bytes, 0), None
        if rates.state:
            share = self._token_share(rates)
            slots = max(int(for_tokens * (1 - share)) // rates.state - 1, 0)
            for_tokens = int(for_tokens * share)
        rate = self._per_token(rates)
        tokens = int(for_tokens / rate) // page * page if rate else 0
        lines = [self.pool_line(rates, tokens)] if rate else []
        requests = None if slots is None else slots // self.slots_per_request
        if rates.windowed:
            swa = int(tokens * self.swa_ratio) // page * page
            size = (tokens * rates.full + swa * rates.windowed) / GIB
            lines = [f"SWAKVPool mem usage: {size:.2f} GB, swa size: {swa}, full size: {tokens}"]
        if slots is not None:
            conv, ssm = ((slots + 1) * part / GIB for part in self.state_parts(model, state, tp))
            sizes = f"conv_state size: {conv:.2f}GB, ssm_state size: {ssm:.2f}GB"
            lines.append(f"Mamba Cache is allocated. max_mamba_cache_size: {slots}, {sizes}")
        return Figures(
            name=self.name,
            available_bytes=available_bytes,
            num_blocks=tokens // page,
            block_size=page,
            block_bytes=ceil(rate * page),
            kv_cache_tokens=tokens if rate else None,
            max_model_len=self.max_model_len,
            max_requests=requests,
            lines=tuple(lines),
        )

    def pool_line(self, rates: Rates, tokens: int) -> str:
        """Return the log line of a pool of `tokens`; its GB are GiB."""
        k, v, index = (tokens * rate / GIB for rate in (rates.k, rates.v, rates.index))
        head = f"KV Cache is allocated. #tokens: {tokens}, "
        if not rates.v:
            return f"{head}KV size: {k + (index if self.counts_index else 0):.2f} GB"
        return f"{head}K size: {k:.2f} GB, V size: {v:.2f} GB"

    def _per_token(self, rates: Rates) -> Fraction:
        return rates.full + self.swa_ratio * rates.windowed

    def _token_share(self, rates: Rates) -> Fraction:
        """Return the share of the memory that tokens get beside states, `1 / (1 + q)`; 0 without caches."""
        return 1 / (1 + self.state_ratio) if rates.full + rates.windowed else Fraction(0)

    def budget_bytes(self, capacity: int, share: Fraction, weights: int, loaded: int, running: int) -> int:
        """Return `mem_fraction_static` of the memory, and beside it what runs: activations and graphs."""
        return min(capacity, int(capacity * share) + running)

    def flags(self, question: Question) -> tuple[str, ...]:
        """Return `python -m sglang.launch_server` flags."""
        flags = [
            f"--context-length {self.max_model_len or question.tokens}",
            f"--max-running-requests {question.seqs}",
            f"--mem-fraction-static {question.utilization:g}",
            f"--kv-cache-dtype {KV_CACHE_DTYPES.get(question.kv_dtype, question.kv_dtype)}",
            f"--page-size {self.block_size}",
            f"--chunked-prefill-size {self.max_num_batched_tokens}",
            f"--tp-size {question.tp * question.dp}",
        ]
        if question.dp > 1:
            flags += [f"--dp-size {question.dp}", "--enable-dp-attention"]
        if question.ep > 1:
            flags.append(f"--ep-size {question.ep}")
        if question.adapters:
            flags += [
                "--enable-lora",
                f"--max-loras-per-batch {question.adapters}",
                f"--max-lora-rank {question.adapter_rank}",
            ]
        return tuple(flags)

    def sentences(self, model: Architecture) -> tuple[str, ...]:
        """Return what is taken for granted."""
        said = [f"SGLang: pages of {self.block_size} token{'s' * (self.block_size != 1)}; logged GB are GiB"]
        if any(cache.reach.window for cache, _ in caches(model)):
            said.append(
                f"windowed layers have a pool of {float(self.swa_ratio):g} times the full pool's tokens"
            )
        if has_state(model):
            said.append(
                f"states take {float(self.state_ratio):g} times what tokens take;"
                f" {self.slots_per_request} slots per request"
            )
        return tuple(said)


KV_CACHE_DTYPES = {"bf16": "auto", "fp16": "auto", "fp8": "fp8_e4m3", "fp8_ds_mla": "fp8_e4m3"}
