"""llama.cpp's cells: one cache for the whole context, padded to 256, and states of fp32 per slot.

Source: llama.cpp's `llama_kv_cache`, `llama_kv_cache_iswa` and `llama_memory_recurrent`, checked against
public logs (`tests/published/test_engine_logs.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Literal, TypeAlias

from kvroof.ground.dtypes import DTYPES
from kvroof.ground.errors import BadInput, Unsupported
from kvroof.ground.numeric import ceil_div, largest
from kvroof.ground.record import record, static
from kvroof.ground.units import MIB
from kvroof.memory.demand import Demand, equal_lengths
from kvroof.memory.engines.engine import Figures, Formats, Held, Question, check_modelled, is_cross
from kvroof.memory.layers import fixed_bytes, has_state
from kvroof.spec.architecture import Architecture
from kvroof.spec.attention import LatentAttention
from kvroof.spec.cache import Cache
from kvroof.spec.precision import KVFormat, StateFormat

PAD = 256
MAX_CONTEXT = 2**32
"""Tokens beyond which no context is looked for (windowed layers alone stop growing)."""
Latent: TypeAlias = Literal["latent", "transposed", "expanded"]
TYPES = {"bf16": "f16", "fp16": "f16", "fp32": "f32"}


@record
class LlamaCpp:
    """llama.cpp with the flags that decide what it sets aside, at llama-server's defaults.

    Streams share one cache when `unified`. `swa_full` keeps the whole context on windowed layers (so does
    ik_llama.cpp). MLA is stored as the `latent`; "transposed" keeps an f16 copy of it beside (mainline
    without flash attention until January 2026, ik_llama.cpp `-mla 1`), "expanded" keeps keys and values
    of every head (ik_llama.cpp `-mla 0`).
    """

    max_model_len: int | None = None
    max_num_batched_tokens: int = 512
    unified: bool = static(default=True)
    swa_full: bool = static(default=False)
    mla: Latent = static(default="latent")

    @property
    def name(self) -> str:
        """The engine's name."""
        return "llama.cpp"

    @property
    def block_size(self) -> int:
        """Cells to which a context is padded."""
        return PAD

    def formats(self, model: Architecture, kv: KVFormat, state: StateFormat) -> Formats:
        """Return `kv` as asked, and both parts of a state in fp32 with `d_conv - 1` columns."""
        return kv, StateFormat(conv=DTYPES["fp32"], recurrent=DTYPES["fp32"], dropped_columns=1)

    def stored(self, model: Architecture, kv: KVFormat) -> Iterator[tuple[Cache, int, int]]:
        """Yield each cache with its bytes per cell and the number of layers that have it.

        Raises:
            Unsupported: Compressed caches or index keys.
        """
        check_modelled(model, "llama.cpp", indexed=False)
        for group in model.layers:
            for mixer in group.layer.mixers:
                for cache in mixer.caches:
                    size = kv.token_bytes(cache)
                    if isinstance(mixer, LatentAttention) and self.mla == "expanded":
                        n = mixer.num_heads
                        keys = n * (mixer.qk_nope_head_dim + mixer.qk_rope_head_dim)
                        wide = replace(cache, k_width=keys, v_width=n * mixer.v_head_dim, split=n)
                        size = kv.token_bytes(wide)
                    elif isinstance(mixer, LatentAttention) and self.mla == "transposed":
                        size += DTYPES["fp16"].row_bytes(mixer.kv_lora_rank)
                    yield cache, size, group.count

    def cells(self, cache: Cache, context: int, seqs: int) -> int:
        """Return the cells of one stream of `context` padded tokens, of which `seqs` share one if unified.

        A window: `PAD(min(context, W * (seqs if unified else 1) + ubatch), 256)`.
        """
        window = cache.reach.window
        if window is None or self.swa_full:
            return context
        ahead = window * (seqs if self.unified else 1) + self.max_num_batched_tokens
        return _padded(min(context, ahead))

    def hold(
        self, model: Architecture, demand: Demand, kv: KVFormat, state: StateFormat, tp: int = 1
    ) -> Held:
        """Return what a context for all of `demand` takes, each sequence a slot.

        Raises:
            Unsupported: Tensor-parallel ranks: llama.cpp gives whole layers to devices.
        """
        if tp > 1:
            raise Unsupported(
                "llama.cpp spreads whole layers over devices, not heads", where="--tp", way_out="use --tp 1"
            )
        streams = 1 if self.unified else demand.seqs
        context = _padded(demand.tokens if self.unified else demand.longest)
        size = 0
        for cache, each, layers in self.stored(model, kv):
            if is_cross(cache.reach):
                size += layers * each * demand.encoder_tokens * demand.seqs
            else:
                size += layers * each * self.cells(cache, context, demand.seqs) * streams
        total = context * streams
        return Held(
            held_bytes=size + demand.seqs * fixed_bytes(model, state),
            blocks=total // PAD,
            slots=total,
            used=min(total, demand.tokens),
        )

    def figures(
        self, model: Architecture, available_bytes: int, kv: KVFormat, state: StateFormat, tp: int = 1
    ) -> Figures:
        """Return the largest context of one slot that `available_bytes` hold, and its buffers.

        Where the cache stops growing that is the model's longest.
        """

        def takes(blocks: int) -> int:
            return self.hold(model, equal_lengths(blocks * PAD, 1), kv, state, tp).held_bytes

        most = ceil_div(model.max_position_embeddings or MAX_CONTEXT, PAD)
        if takes(MAX_CONTEXT // PAD) > available_bytes:
            most = MAX_CONTEXT // PAD
        blocks = largest(lambda n: takes(n) <= available_bytes, most)
        context = blocks * PAD
        lines = tuple(
            f"llama_kv_cache: size = {size / MIB:.2f} MiB ({cells} cells, {layers} layers, 1/1 seqs)"
            for size, cells, layers in self.buffers(model, context, 1, kv)
        )
        return Figures(
            name=self.name,
            available_bytes=available_bytes,
            num_blocks=blocks,
            block_size=PAD,
            block_bytes=takes(blocks + 1) - takes(blocks),
            kv_cache_tokens=context,
            max_model_len=context,
            max_requests=1 if context else 0,
            lines=lines,
        )

    def buffers(
        self, model: Architecture, context: int, seqs: int, kv: KVFormat
    ) -> tuple[tuple[int, int, int], ...]:
        """Return `(bytes, cells, layers)` of each buffer: whole layers first, then windowed ones."""
        found: dict[bool, tuple[int, int, int]] = {}
        for cache, each, layers in self.stored(model, kv):
            if is_cross(cache.reach):
                continue
            windowed = cache.reach.window is not None and not self.swa_full
            cells = self.cells(cache, context, seqs)
            size, _, others = found.get(windowed, (0, 0, 0))
            found[windowed] = (size + layers * each * cells, cells, others + layers)
        return tuple(found[key] for key in sorted(found))

    def budget_bytes(self, capacity: int, share: Fraction, weights: int, loaded: int, running: int) -> int:
        """Return the share of the memory that may be used: llama.cpp itself has no such limit."""
        return int(capacity * share)

    def flags(self, question: Question) -> tuple[str, ...]:
        """Return `llama-server` flags; a quantised V cache needs flash attention."""
        k, _, v = question.kv_dtype.partition("/")
        k, v = TYPES.get(k, k), TYPES.get(v or k, v or k)
        return (
            f"--ctx-size {_padded(question.tokens * question.seqs)}",
            f"--parallel {question.seqs}",
            f"--ubatch-size {self.max_num_batched_tokens}",
            f"--cache-type-k {k}",
            f"--cache-type-v {v}",
            "--kv-unified" if self.unified else "--no-kv-unified",
            "--n-gpu-layers 999",
            "--flash-attn on" if v not in ("f16", "f32") else "--flash-attn auto",
            *(["--swa-full"] if self.swa_full else []),
            *([f"--lora {','.join(['FILE'] * question.adapters)}"] if question.adapters else []),
        )

    def sentences(self, model: Architecture) -> tuple[str, ...]:
        """Return what is taken for granted."""
        said = [f"llama.cpp: one context for all sequences, padded to {PAD} cells"]
        if not self.unified:
            said = [f"llama.cpp: one context per sequence, each padded to {PAD} cells"]
        if has_state(model):
            said.append("states in fp32, convolution and recurrence, one per sequence")
        return tuple(said)


def _padded(cells: int) -> int:
    """Return the next multiple of the padding.

    Raises:
        BadInput: More cells than a context can have.
    """
    if cells > 2**64:
        raise BadInput(f"{cells} cells are more than a context can have", where="--tokens")
    return ceil_div(cells, PAD) * PAD
