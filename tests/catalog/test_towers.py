"""Towers against totals of the same checkpoints, counted elsewhere.

Each config is the model's own `config.json`, cut to what decides the size. Totals were counted anew on meta
tensors with transformers 5.24 from these same configs, except InternVL3-8B and Phi-3.5-vision, for which it
has no class, and Mistral-Small-3.1, whose head transformers 5 ties and the checkpoint does not: those are
the hub's totals as they are known, not fetched again.
"""

from __future__ import annotations

from typing import Any

import pytest

from kvroof.catalog.huggingface import read_architecture
from kvroof.ground.errors import KvroofError, Unsupported
from kvroof.spec.architecture import Architecture
from kvroof.spec.params import params_active, params_total

Json = dict[str, Any]


def sizes(hidden: int, inner: int, layers: int, heads: int, kv_heads: int | None, vocab: int) -> Json:
    """Return a decoder's sizes."""
    found = {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "vocab_size": vocab,
    }
    return found if kv_heads is None else {**found, "num_key_value_heads": kv_heads}


CLIP = {
    "hidden_size": 1024,
    "image_size": 336,
    "intermediate_size": 4096,
    "model_type": "clip_vision_model",
    "num_attention_heads": 16,
    "num_hidden_layers": 24,
    "patch_size": 14,
}
SIGLIP = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "model_type": "siglip_vision_model",
    "num_attention_heads": 16,
    "num_hidden_layers": 27,
    "patch_size": 14,
    "vision_use_head": False,
}
QWEN2_5_VISION = {
    "depth": 32,
    "hidden_size": 1280,
    "intermediate_size": 3420,
    "num_heads": 16,
    "in_chans": 3,
    "out_hidden_size": 3584,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "spatial_patch_size": 14,
    "temporal_patch_size": 2,
    "window_size": 112,
}

PUBLISHED: dict[str, tuple[int, Json]] = {
    # LLaVA's text_config says neither width nor depth: Vicuna and Mistral 7B are the class's defaults.
    "llava-hf/llava-1.5-7b-hf": (
        7_063_427_072,
        {
            "model_type": "llava",
            "text_config": {"model_type": "llama", "max_position_embeddings": 4096, "vocab_size": 32_064},
            "tie_word_embeddings": False,
            "vision_config": CLIP,
            "vision_feature_layer": -2,
        },
    ),
    "llava-hf/llava-v1.6-mistral-7b-hf": (
        7_566_747_648,
        {
            "model_type": "llava_next",
            "text_config": {
                "model_type": "mistral",
                "intermediate_size": 14_336,
                "num_key_value_heads": 8,
                "sliding_window": None,
                "vocab_size": 32_064,
            },
            "tie_word_embeddings": False,
            "vision_config": CLIP,
        },
    ),
    "llava-hf/llava-onevision-qwen2-7b-ov-hf": (
        8_030_348_832,
        {
            "model_type": "llava_onevision",
            "text_config": {"model_type": "qwen2", **sizes(3584, 18_944, 28, 28, 4, 152_064)},
            "tie_word_embeddings": False,
            "vision_config": {**SIGLIP, "image_size": 384, "num_hidden_layers": 26},
        },
    ),
    "google/paligemma-3b-pt-224": (
        2_923_466_480,
        {
            "model_type": "paligemma",
            "projection_dim": 2048,
            "text_config": {"model_type": "gemma", **sizes(2048, 16_384, 18, 8, 1, 257_216)},
            "vision_config": {**SIGLIP, "projection_dim": 2048},
        },
    ),
    # The smallest Gemma 3 with a tower leaves out its heads and its vocabulary.
    "google/gemma-3-4b-it": (
        4_300_079_472,
        {
            "model_type": "gemma3",
            "text_config": {
                "model_type": "gemma3_text",
                "hidden_size": 2560,
                "intermediate_size": 10_240,
                "num_hidden_layers": 34,
                "sliding_window": 1024,
            },
            "vision_config": {**SIGLIP, "image_size": 896},
        },
    ),
    # Its outer class ties since transformers 5; the file is older and its decoder has a head of its own.
    "mistralai/Mistral-Small-3.1-24B-Instruct-2503": (
        24_011_361_280,
        {
            "model_type": "mistral3",
            "multimodal_projector_bias": False,
            "spatial_merge_size": 2,
            "text_config": {
                "model_type": "mistral",
                "head_dim": 128,
                **sizes(5120, 32_768, 40, 32, 8, 131_072),
            },
            "transformers_version": "4.50.0.dev0",
            "vision_config": {
                "model_type": "pixtral",
                "hidden_size": 1024,
                "image_size": 1540,
                "intermediate_size": 4096,
                "num_hidden_layers": 24,
                "patch_size": 14,
            },
        },
    ),
    "Qwen/Qwen2-VL-7B-Instruct": (
        8_291_375_616,
        {
            "model_type": "qwen2_vl",
            **sizes(3584, 18_944, 28, 28, 4, 152_064),
            "tie_word_embeddings": False,
            "vision_config": {
                "depth": 32,
                "embed_dim": 1280,
                "mlp_ratio": 4,
                "num_heads": 16,
                "in_chans": 3,
                "hidden_size": 3584,
                "patch_size": 14,
                "temporal_patch_size": 2,
            },
        },
    ),
    "Qwen/Qwen2.5-VL-3B-Instruct": (
        3_754_622_976,
        {
            "model_type": "qwen2_5_vl",
            **sizes(2048, 11_008, 36, 16, 2, 151_936),
            "tie_word_embeddings": True,
            "vision_config": {**QWEN2_5_VISION, "out_hidden_size": 2048},
        },
    ),
    "Qwen/Qwen2.5-VL-7B-Instruct": (
        8_292_166_656,
        {
            "model_type": "qwen2_5_vl",
            **sizes(3584, 18_944, 28, 28, 4, 152_064),
            "tie_word_embeddings": False,
            "vision_config": QWEN2_5_VISION,
        },
    ),
    "Qwen/Qwen2-Audio-7B-Instruct": (
        8_397_094_912,
        {
            "model_type": "qwen2_audio",
            "audio_config": {
                "d_model": 1280,
                "encoder_attention_heads": 20,
                "encoder_ffn_dim": 5120,
                "encoder_layers": 32,
                "max_source_positions": 1500,
                "num_mel_bins": 128,
            },
            "text_config": {"model_type": "qwen2", **sizes(4096, 11_008, 32, 32, 32, 156_032)},
        },
    ),
    "meta-llama/Llama-3.2-11B-Vision-Instruct": (
        10_670_220_835,
        {
            "model_type": "mllama",
            "text_config": {
                "model_type": "mllama_text_model",
                "cross_attention_layers": [3, 8, 13, 18, 23, 28, 33, 38],
                "tie_word_embeddings": False,
                **sizes(4096, 14_336, 40, 32, 8, 128_256),
            },
            "vision_config": {
                "hidden_size": 1280,
                "image_size": 560,
                "intermediate_size": 5120,
                "max_num_tiles": 4,
                "num_global_layers": 8,
                "num_hidden_layers": 32,
                "patch_size": 14,
                "vision_output_dim": 7680,
            },
        },
    ),
    "HuggingFaceTB/SmolVLM-Instruct": (
        2_246_272_880,
        {
            "model_type": "idefics3",
            "scale_factor": 3,
            "text_config": {"model_type": "llama", **sizes(2048, 8192, 24, 32, 32, 49_155)},
            "tie_word_embeddings": False,
            "vision_config": {**SIGLIP, "image_size": 384, "model_type": "idefics3"},
        },
    ),
    # Its vision_config leaves out depth and MLP width, which are the class's.
    "HuggingFaceTB/SmolVLM2-500M-Video-Instruct": (
        507_482_304,
        {
            "model_type": "smolvlm",
            "scale_factor": 4,
            "text_config": {"model_type": "llama", "head_dim": 64, **sizes(960, 2560, 32, 15, 5, 49_280)},
            "tie_word_embeddings": False,
            "vision_config": {
                "hidden_size": 768,
                "image_size": 512,
                "model_type": "smolvlm_vision",
                "num_attention_heads": 12,
                "patch_size": 16,
            },
        },
    ),
    "HuggingFaceM4/idefics2-8b": (
        8_402_768_112,
        {
            "model_type": "idefics2",
            "perceiver_config": {"model_type": "idefics2"},
            "text_config": {"model_type": "mistral", "num_key_value_heads": 8, "vocab_size": 32_003},
            "tie_word_embeddings": False,
            "vision_config": {**SIGLIP, "image_size": 980, "model_type": "idefics2"},
        },
    ),
    "OpenGVLab/InternVL3-8B": (
        7_944_373_760,
        {
            "model_type": "internvl_chat",
            "downsample_ratio": 0.5,
            "llm_config": {
                "model_type": "qwen2",
                "tie_word_embeddings": False,
                **sizes(3584, 18_944, 28, 28, 4, 151_674),
            },
            "select_layer": -1,
            "vision_config": {
                "hidden_size": 1024,
                "image_size": 448,
                "intermediate_size": 4096,
                "model_type": "intern_vit_6b",
                "norm_type": "layer_norm",
                "num_attention_heads": 16,
                "num_hidden_layers": 24,
                "patch_size": 14,
                "qk_normalization": False,
                "qkv_bias": True,
            },
        },
    ),
    "microsoft/Phi-3.5-vision-instruct": (
        4_146_621_440,
        {
            "model_type": "phi3_v",
            **sizes(3072, 8192, 32, 32, 32, 32_064),
            "embd_layer": {
                "embedding_cls": "image",
                "projection_cls": "mlp",
                "use_hd_transform": True,
                "with_learnable_separator": True,
            },
            "img_processor": {
                "image_dim_out": 1024,
                "model_name": "openai/clip-vit-large-patch14-336",
                "name": "clip_vision_model",
            },
            "sliding_window": 262_144,
            "tie_word_embeddings": False,
        },
    ),
}


def read(config: Json) -> Architecture:
    """Return the architecture of a config."""
    return read_architecture(config, "config.json", "model").architecture


@pytest.mark.parametrize("name", PUBLISHED)
def test_decoder_and_towers_together_are_the_published_total(name: str) -> None:
    total, config = PUBLISHED[name]
    assert params_total(read(config)) == total


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_tower_is_counted_apart_and_no_text_token_runs_through_it(name: str) -> None:
    model = read(PUBLISHED[name][1])
    apart = sum(tower.params for tower in model.towers)
    assert apart > 0
    assert params_active(model) == params_total(model) - apart


def test_without_its_vision_config_the_decoder_alone_is_counted_and_that_is_said() -> None:
    _, config = PUBLISHED["google/paligemma-3b-pt-224"]
    model = read({key: value for key, value in config.items() if key != "vision_config"})
    assert not model.towers
    assert any("tower" in note for note in model.notes)


def test_an_encoder_that_is_not_known_is_refused() -> None:
    _, config = PUBLISHED["llava-hf/llava-1.5-7b-hf"]
    with pytest.raises(Unsupported, match="timm_wrapper"):
        read({**config, "vision_config": {**CLIP, "model_type": "timm_wrapper"}})


def test_an_outer_class_that_is_not_known_is_refused_though_its_decoder_is() -> None:
    decoder = {"model_type": "llama", **sizes(64, 128, 2, 4, 4, 256)}
    with pytest.raises(Unsupported, match="unheard_of_vl"):
        read({"model_type": "unheard_of_vl", "text_config": decoder})


@pytest.mark.parametrize("missing", ["hidden_size", "num_hidden_layers", "num_attention_heads"])
def test_a_decoder_that_says_some_of_its_sizes_must_say_all(missing: str) -> None:
    text = {"model_type": "llama", **sizes(5120, 13_824, 40, 40, 40, 32_064)}
    del text[missing]
    with pytest.raises(KvroofError, match=missing):
        read({"model_type": "llava", "text_config": text, "vision_config": CLIP})


def test_a_model_that_speaks_is_counted_only_as_its_thinker() -> None:
    thinker = {
        "text_config": {"model_type": "qwen2_5_omni_text", **sizes(64, 128, 2, 4, 2, 256)},
        "vision_config": {**QWEN2_5_VISION, "depth": 1},
    }
    config = {"model_type": "qwen2_5_omni", "thinker_config": thinker}
    assert len(read(config).towers) == 1
    with pytest.raises(KvroofError, match="talker_config"):
        read({**config, "talker_config": {"hidden_size": 64}})


@pytest.mark.parametrize(
    ("outer", "inner", "version", "tied"),
    [
        (None, None, "4.50.0", False),
        (None, None, "5.1.0", True),
        (None, True, "5.0.0.dev0", True),
        (False, None, "5.1.0", False),
        (True, False, "5.1.0", True),
    ],
)
def test_the_head_is_tied_as_the_library_that_wrote_the_file_meant(
    outer: bool | None, inner: bool | None, version: str, tied: bool
) -> None:
    _, config = PUBLISHED["mistralai/Mistral-Small-3.1-24B-Instruct-2503"]
    said = {**config, "tie_word_embeddings": outer, "transformers_version": version}
    said["text_config"] = {**config["text_config"], "tie_word_embeddings": inner}
    assert read(said).tied is tied
