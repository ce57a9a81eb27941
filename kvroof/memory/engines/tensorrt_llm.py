"""TensorRT-LLM's paged cache: blocks of tokens that hold all layers, and a state per running request.

Source: TensorRT-LLM's `KvCacheConfig` (free_gpu_memory_fraction, tokens_per_block) and public logs
(`tests/published/test_engine_logs.py`).
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from kvroof.ground.dtypes import DTYPES
from kvroof.ground.errors import Unsupported
from kvroof.ground.numeric import ceil_div
from kvroof.ground.record import record
from kvroof.memory.demand import Demand
from kvroof.memory.engines.engine import (
    Figures,
    Formats,
    Held,
    Question,
    cached_tokens,
    check_modelled,
    is_cross,
)
from kvroof.memory.layers import caches, fixed_bytes
from kvroof.spec.architecture import Architecture
from kvroof.spec.precision import KVFormat, StateFormat


@record
class TensorRTLLM:
    """TensorRT-LLM with the flags that decide what it sets aside, at their defaults.

    Windowed layers keep every token: a window is only used when `max_attention_window` says so.
    """

    block_size: int = 32
    max_model_len: int | None = None
    max_num_batched_tokens: int = 8192

    @property
    def name(self) -> str:
        """The engine's name."""
        return "tensorrt-llm"

    def formats(self, model: Architecture, kv: KVFormat, state: StateFormat) -> Formats:
        """Return `kv` as asked, `d_conv - 1` columns, and the recurrence in the checkpoint's state dtype."""
        return kv, replace(state, recurrent=DTYPES[model.state_dtype or model.dtype], dropped_columns=1)

    def _block_bytes(self, model: Architecture, kv: KVFormat, tp: int, cross: bool) -> int:
        """Return the bytes of one block of all layers, of the decoder's tokens or the encoder's.

        Raises:
            Unsupported: Compressed caches or index keys.
        """
        check_modelled(model, "TensorRT-LLM", indexed=False)
        counted = ((cache, layers) for cache, layers in caches(model) if is_cross(cache.reach) == cross)
        return sum(layers * kv.token_bytes(cache, tp) * self.block_size for cache, layers in counted)

    def hold(
        self, model: Architecture, demand: Demand, kv: KVFormat, state: StateFormat, tp: int = 1
    ) -> Held:
        """Return the blocks of all sequences, whole ones of a shared prefix once, and their states."""
        counts = {
            cross: sum(ceil_div(n, self.block_size) * count for n, count in cached_tokens(demand, cross))
            for cross in (False, True)
        }
        counts[False] -= demand.shared_prefix // self.block_size * (demand.seqs - 1)
        size = sum(self._block_bytes(model, kv, tp, cross) * blocks for cross, blocks in counts.items())
        return Held(
            held_bytes=size + demand.seqs * fixed_bytes(model, state, tp),
            blocks=counts[False],
            slots=counts[False] * self.block_size,
            used=demand.tokens,
        )

    def figures(
        self, model: Architecture, available_bytes: int, kv: KVFormat, state: StateFormat, tp: int = 1
    ) -> Figures:
        """Return the tokens of the paged cache; states are not in it."""
        block = self._block_bytes(model, kv, tp, cross=False)
        if not block:
            raise Unsupported("holds no cache that grows", where=model.name)
        blocks = max(available_bytes, 0) // block
        tokens, limit = blocks * self.block_size, self.max_model_len
        return Figures(
            name=self.name,
            available_bytes=available_bytes,
            num_blocks=blocks,
            block_size=self.block_size,
            block_bytes=block,
            kv_cache_tokens=tokens,
            max_model_len=limit,
            max_concurrency=tokens / limit if limit else None,
            max_requests=blocks // ceil_div(limit, self.block_size) if limit else None,
            lines=(f"Using {tokens} tokens in paged KV cache.",),
        )

    def budget_bytes(self, capacity: int, share: Fraction, weights: int, loaded: int, running: int) -> int:
        """Return what is taken already and, for the cache, a share of what is then FREE."""
        taken = weights + loaded + running
        return min(capacity, taken + int(max(capacity - taken, 0) * share))

    def flags(self, question: Question) -> tuple[str, ...]:
        """Return `trtllm-serve` flags; those with a colon go into the file of `--extra_llm_api_options`."""
        dtype = "auto" if question.kv_dtype in ("bf16", "fp16") else question.kv_dtype
        lora = [f"max_loras: {question.adapters}", f"max_lora_rank: {question.adapter_rank}"]
        return (
            f"--max_seq_len {self.max_model_len or question.tokens}",
            f"--max_batch_size {ceil_div(question.seqs, question.dp)}",
            f"--max_num_tokens {self.max_num_batched_tokens}",
            f"--kv_cache_free_gpu_memory_fraction {question.utilization:g}",
            f"--tp_size {question.tp * question.dp}",
            *((f"--ep_size {question.ep}",) if question.ep > 1 else ()),
            *(("enable_attention_dp: true",) if question.dp > 1 else ()),
            f"kv_cache_config.tokens_per_block: {self.block_size}",
            f"kv_cache_config.dtype: {dtype}",
            *(f"lora_config.{line}" for line in lora if question.adapters),
        )

    def sentences(self, model: Architecture) -> tuple[str, ...]:
        """Return what is taken for granted."""
        said = [f"TensorRT-LLM: blocks of {self.block_size} tokens; its share is one of the FREE memory"]
        if any(cache.reach.window for cache, _ in caches(model)):
            said.append("windowed layers keep every token: max_attention_window is not set")
        return tuple(said)
