"""Encoder-decoders against totals counted elsewhere, and the cache of their cross-attention.

Totals were counted anew on meta tensors with transformers 5.24 from these same configs. For flan-T5 and mT5
it ties a head that the checkpoints hold apart: their totals are that count and the head, `vocab_size x
d_model`.
"""

from __future__ import annotations

from typing import Any

import pytest

from kvroof.catalog.huggingface import read_architecture
from kvroof.cost.forward import forward
from kvroof.cost.op import Op
from kvroof.cost.products import Run
from kvroof.ground.errors import KvroofError
from kvroof.memory.kv import kv
from kvroof.spec.architecture import Architecture
from kvroof.spec.params import params_total
from kvroof.spec.precision import BF16_KV
from kvroof.spec.workload import decode, prefill

Json = dict[str, Any]


def t5(width: int, inner: int, layers: int, heads: int, vocab: int = 32_128, **more: Any) -> Json:
    """Return the config of a T5."""
    return {
        "model_type": "t5",
        "d_ff": inner,
        "d_kv": 128 if inner > 10_240 else 64,  # of these, T5 3B and 11B have wide heads
        "d_model": width,
        "is_encoder_decoder": True,
        "num_heads": heads,
        "num_layers": layers,
        "relative_attention_num_buckets": 32,
        "vocab_size": vocab,
        **more,
    }


def both_sides(width: int, inner: int, layers: int, heads: int, vocab: int, **more: Any) -> Json:
    """Return a config in BART's spelling, with an encoder like its decoder."""
    return {
        "d_model": width,
        "decoder_attention_heads": heads,
        "decoder_ffn_dim": inner,
        "decoder_layers": layers,
        "encoder_attention_heads": heads,
        "encoder_ffn_dim": inner,
        "encoder_layers": layers,
        "is_encoder_decoder": True,
        "num_hidden_layers": layers,
        "vocab_size": vocab,
        **more,
    }


V1_1 = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
WHISPER = {"model_type": "whisper", "max_source_positions": 1500, "max_target_positions": 448}
TINY = both_sides(384, 1536, 4, 6, 51_865, num_mel_bins=80, **WHISPER)

PUBLISHED: dict[str, tuple[int, Json]] = {
    "google-t5/t5-small": (60_506_624, t5(512, 2048, 6, 8)),
    "google-t5/t5-base": (222_903_552, t5(768, 3072, 12, 12)),
    "google-t5/t5-large": (737_668_096, t5(1024, 4096, 24, 16)),
    "google-t5/t5-3b": (2_851_598_336, t5(1024, 16_384, 24, 32)),
    "google-t5/t5-11b": (11_307_321_344, t5(1024, 65_536, 24, 128)),
    # T5 1.1 has gated MLPs, and a head of its own.
    "google/flan-t5-small": (76_961_152, t5(512, 1024, 8, 6, **V1_1)),
    "google/flan-t5-base": (247_577_856, t5(768, 2048, 12, 12, **V1_1)),
    "google/flan-t5-xl": (2_849_757_184, t5(2048, 5120, 24, 32, **V1_1)),
    "google/flan-t5-xxl": (11_135_332_352, t5(4096, 10_240, 24, 64, **V1_1)),
    "google/mt5-small": (300_176_768, {**t5(512, 1024, 8, 6, 250_112, **V1_1), "model_type": "mt5"}),
    "facebook/bart-base": (
        139_420_416,
        both_sides(768, 3072, 6, 12, 50_265, model_type="bart", max_position_embeddings=1024),
    ),
    "facebook/bart-large-cnn": (
        406_290_432,
        both_sides(1024, 4096, 12, 16, 50_264, model_type="bart", max_position_embeddings=1024),
    ),
    "facebook/mbart-large-50": (
        610_879_488,
        both_sides(1024, 4096, 12, 16, 250_054, model_type="mbart", max_position_embeddings=1024),
    ),
    "facebook/nllb-200-distilled-600M": (
        615_073_792,
        both_sides(1024, 4096, 12, 16, 256_206, model_type="m2m_100", max_position_embeddings=1024),
    ),
    "openai/whisper-tiny": (37_760_640, TINY),
    "openai/whisper-medium": (
        763_857_920,
        both_sides(1024, 4096, 24, 16, 51_865, num_mel_bins=80, **WHISPER),
    ),
    "openai/whisper-large-v3": (
        1_543_490_560,
        both_sides(1280, 5120, 32, 20, 51_866, num_mel_bins=128, **WHISPER),
    ),
    "openai/whisper-large-v3-turbo": (
        808_878_080,
        {**both_sides(1280, 5120, 32, 20, 51_866, num_mel_bins=128, **WHISPER), "decoder_layers": 4},
    ),
}


def read(config: Json) -> Architecture:
    """Return the architecture of a config."""
    return read_architecture(config, "config.json", "model").architecture


@pytest.mark.parametrize("name", PUBLISHED)
def test_both_sides_together_are_the_published_total(name: str) -> None:
    total, config = PUBLISHED[name]
    assert params_total(read(config)) == total


def test_decoder_tokens_are_cached_as_usual_and_encoder_tokens_beside_them() -> None:
    """Whisper-tiny: 2 x 384 elements a layer, for 4 layers, of both kinds of token."""
    model = read(TINY)
    token = 4 * 2 * 384 * 2
    assert kv(model, tokens=100).payload_bytes == 100 * token
    assert kv(model, tokens=100, encoder_tokens=1500).payload_bytes == (100 + 1500) * token
    assert kv(model, tokens=100, seqs=3, encoder_tokens=1500).payload_bytes == 3 * 1600 * token
    assert kv(model, tokens=100, encoder_tokens=1500).bytes_per_token == token


def test_only_the_self_attention_of_llama_vision_grows() -> None:
    """Llama 3.2 90B Vision: 80 of its 100 layers cache text; the others look at the image."""
    config = {
        "model_type": "mllama_text_model",
        "cross_attention_layers": list(range(3, 100, 5)),
        "hidden_size": 8192,
        "intermediate_size": 28_672,
        "num_attention_heads": 64,
        "num_hidden_layers": 100,
        "num_key_value_heads": 8,
        "vocab_size": 128_256,
    }
    report = kv(read(config), tokens=1000, encoder_tokens=6404)
    assert report.bytes_per_token == 80 * 2 * 8 * 128 * 2
    assert report.payload_bytes == (80 * 1000 + 20 * 6404) * 2 * 8 * 128 * 2


def test_a_negative_encoder_is_refused() -> None:
    with pytest.raises(KvroofError, match="--encoder-tokens"):
        kv(read(TINY), tokens=1, encoder_tokens=-1)


def crossing(ops: tuple[Op, ...]) -> list[Op]:
    """Return the operations that read an encoder's cache."""
    return [op for op in ops if op.name == "attention.cross"]


def test_every_decoder_token_is_paired_with_every_encoder_token() -> None:
    model = read(TINY)
    run = Run(formats=model.formats, kv_format=BF16_KV)
    [first] = crossing(forward(model, prefill(2, 7, encoder_len=1500), run))
    [later] = crossing(forward(model, decode(2, 8, encoder_len=1500), run))
    assert first.count == later.count == 4
    assert first.flops == 4 * 384 * 2 * 7 * 1500
    assert later.flops == 4 * 384 * 2 * 1 * 1500


def test_the_encoders_keys_and_values_are_made_once_and_read_every_step() -> None:
    model = read(TINY)
    run = Run(formats=model.formats, kv_format=BF16_KV)
    token = 2 * 384 * 2
    [first] = crossing(forward(model, prefill(1, 7, encoder_len=1500), run))
    [later] = crossing(forward(model, decode(1, 8, encoder_len=1500), run))
    assert first.kv_bytes == 2 * 1500 * token
    assert later.kv_bytes == 1500 * token

    def projections(step: Any) -> list[str]:
        return [op.name for op in forward(model, step, run) if op.name == "k_proj"]

    assert len(projections(prefill(1, 7, encoder_len=1500))) == 1
    assert len(projections(decode(1, 8, encoder_len=1500))) == 0


def test_without_an_encoder_no_cross_attention_runs() -> None:
    model = read(TINY)
    ops = forward(model, decode(1, 8), Run(formats=model.formats, kv_format=BF16_KV))
    assert not crossing(ops)
    assert len([op for op in ops if op.name == "qkv_proj"]) == 1
    assert not [op for op in ops if op.name == "q_proj"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("encoder_attention_type", "unheard-of"),
        ("d_kv", None),
        ("num_heads", None),
        ("num_decoder_layers", -1),
        ("attention_window_of_the_decoder", 512),
    ],
)
def test_what_is_missing_or_not_understood_is_refused(key: str, value: object) -> None:
    config = {**t5(512, 2048, 6, 8), "model_type": "longt5", key: value}
    with pytest.raises(KvroofError):
        read(config)


def test_marians_two_vocabularies_are_refused() -> None:
    config = both_sides(512, 2048, 6, 8, 58_101, model_type="marian", max_position_embeddings=512)
    assert params_total(read(config)) > 0
    with pytest.raises(KvroofError, match="vocabular"):
        read({**config, "decoder_vocab_size": 60_000})
