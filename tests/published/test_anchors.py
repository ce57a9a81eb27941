"""Published cache sizes and parameter counts of real models.

Source of the bytes per token: the models' `config.json` in closed form, checked against the cache tensors
of transformers 5.23; DeepSeek-V3, Qwen2.5-72B and Llama-3.1-405B also in "Insights into DeepSeek-V3"
(arXiv 2505.09343, KB = 1000 B). All in bf16.
"""

import pytest

import kvroof
from kvroof.catalog.models import read_entry
from kvroof.spec.params import params_active, params_total

MIB = 2**20

PER_TOKEN = {
    "llama-2-7b": 524_288,
    "llama-3.1-8b": 131_072,
    "llama-3.1-70b": 327_680,
    "llama-3.1-405b": 516_096,
    "qwen2.5-7b": 57_344,
    "qwen2.5-72b": 327_680,
    "qwen3-8b": 147_456,
    "falcon-7b": 8_192,
    "deepseek-v2-lite": 31_104,
    "deepseek-v3": 70_272,
}
"""Models in which every layer keeps every token."""

WINDOWED = {
    "gpt-oss-20b": (24_576, 24_576, 128),
    "gemma-3-27b": (81_920, 425_984, 1024),
}
"""Bytes per token of the full layers, of the sliding ones, and the window."""

COUNTED = {
    "deepseek-v3": 671_026_404_352,
    "deepseek-v2-lite": 15_706_484_224,
    "gpt-oss-20b": 20_914_757_184,
    "llama-2-7b": 6_738_415_616,
    "llama-3.1-8b": 8_030_261_248,
    "mixtral-8x7b-v0.1": 46_702_792_704,
    "qwen3-30b-a3b": 30_532_122_624,
    "gemma-3-27b": 27_432_406_640,
}
"""Totals of the hub's safetensors index or model card (DeepSeek-V3 without its MTP block and scales)."""

ACTIVE = {
    "mixtral-8x7b-v0.1": 12_879_925_248,
    "qwen3-30b-a3b": 3_353_032_704,
    "deepseek-v2-lite": 2_661_150_208,
    "deepseek-v3": 37_552_282_624,
    "gpt-oss-20b": 4_187_440_704,
}
"""Input embedding included; counted on meta tensors with transformers 5.23. Cards say 12.9B, 3.3B, 2.4B
(without the embedding), 37B and 3.6B (without the embedding)."""


@pytest.mark.parametrize("name", PER_TOKEN)
def test_a_token_takes_the_published_bytes(name):
    model = kvroof.load_model(name)
    report = kvroof.kv(model, tokens=8192)
    assert report.bytes_per_token == PER_TOKEN[name]
    assert kvroof.kv(model, tokens=4096).payload_bytes == 4096 * PER_TOKEN[name]
    assert [kind.window for kind in report.kinds] == [None]


@pytest.mark.parametrize("name", WINDOWED)
def test_windowed_layers_stop_growing_at_their_window(name):
    full, sliding, window = WINDOWED[name]
    model = kvroof.load_model(name)
    kinds = {kind.window: kind.bytes_per_token for kind in kvroof.kv(model).kinds}
    assert kinds == {None: full, window: sliding}
    assert kvroof.kv(model, tokens=window - 1).bytes_per_token == full + sliding
    assert kvroof.kv(model, tokens=window).bytes_per_token == full
    assert kvroof.kv(model, tokens=32_768).payload_bytes == full * 32_768 + sliding * window


def test_gemma_3_27b_holds_11_173_625_856_bytes_at_131_072_tokens():
    """An int32 overflow turns this into -1,711,276,032; Python's integers do not."""
    assert kvroof.kv(kvroof.load_model("gemma-3-27b"), tokens=131_072).payload_bytes == 11_173_625_856


def test_fp8_weights_do_not_make_an_fp8_cache():
    """DeepSeek-V3's checkpoint stores weights in fp8 and says nothing of its cache, so `auto` is bf16."""
    model = kvroof.load_model("deepseek-v3")
    assert model.formats.name == "fp8"
    assert kvroof.kv(model).kv_dtype == "bf16"


@pytest.mark.parametrize("name", kvroof.model_names())
def test_every_shipped_model_counts_the_parameters_it_was_checked_against(name):
    entry = read_entry(name)
    assert params_total(kvroof.load_model(name)) == entry.params_total
    assert entry.source
    assert entry.checked_against


@pytest.mark.parametrize("name", COUNTED)
def test_totals_are_those_of_the_published_checkpoints(name):
    assert params_total(kvroof.load_model(name)) == COUNTED[name]


@pytest.mark.parametrize("name", ACTIVE)
def test_a_token_runs_through_the_published_active_parameters(name):
    """Of the routed experts only the chosen ones, with their biases."""
    assert params_active(kvroof.load_model(name)) == ACTIVE[name]


def test_the_issue_s_models_are_shipped():
    wanted = """
    llama-2-7b llama-3.1-8b llama-3.1-70b llama-3.1-405b qwen3-8b qwen3-32b qwen3-30b-a3b mistral-7b-v0.1
    mixtral-8x7b-v0.1 falcon-7b gemma-3-27b gpt-oss-20b gpt-oss-120b deepseek-v2-lite deepseek-v3
    """.split()
    assert set(wanted) <= set(kvroof.model_names())
