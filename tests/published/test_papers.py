"""Cache sizes and bandwidth shares that papers and blogs work out, with their own constants."""

import pytest

import kvroof
from kvroof.catalog.huggingface import read_architecture
from kvroof.roofline.efficiency import Efficiency
from kvroof.spec.precision import parse_kv_format

GIB = 2**30


def llama_like(layers, hidden, inner, heads, kv_heads):
    data = {
        "model_type": "llama",
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 128,
        "vocab_size": 32_000,
    }
    return read_architecture(data, "a paper", "from-a-paper").architecture


def elements_per_token(model):
    """Return cached elements of a token: its bytes in a dtype of one byte."""
    return kvroof.kv(model, kv_format=parse_kv_format("int8", model)).bytes_per_token


@pytest.mark.parametrize(
    ("model", "elements", "printed"),
    [("deepseek-v2-lite", 15_552, 15.6), ("deepseek-v2", 34_560, 34.6)],
)
def test_deepseek_v2_table_a_latent_is_cached_once_for_all_heads(model, elements, printed):
    """DeepSeek-V2 (arXiv 2405.04434), appendix table: small MoE 15.6K, large MoE 34.6K elements."""
    assert elements_per_token(kvroof.load_model(model)) == elements
    assert round(elements / 1000, 1) == printed


def test_deepseek_v2_table_the_small_model_with_mha_caches_110_6k_elements():
    """DeepSeek-V2 (arXiv 2405.04434), appendix table: 27 layers, 16 heads of 128.

    The large MHA model of that table (860.2K) is not DeepSeek-V2's shape and is left out.
    """
    elements = elements_per_token(llama_like(27, 2048, 10_944, 16, 16))
    assert elements == 110_592
    assert round(elements / 1000, 1) == 110.6


@pytest.mark.parametrize(
    ("model", "kb"), [("deepseek-v3", 70.272), ("qwen2.5-72b", 327.680), ("llama-3.1-405b", 516.096)]
)
def test_deepseek_v3_insights_kv_per_token(model, kb):
    """ "Insights into DeepSeek-V3" (arXiv 2505.09343): KB per token in bf16, KB = 1000 B."""
    assert kvroof.kv(kvroof.load_model(model)).bytes_per_token == round(kb * 1000)


def test_vllm_2023_a_llama_13b_sequence_takes_up_to_1_7_gb():
    """vLLM launch blog (2023-06-20): LLaMA-13B, one sequence of 2,048, fp16: 1.678e9 B (1.5625 GiB)."""
    report = kvroof.kv(llama_like(40, 5120, 13_824, 40, 40), tokens=2048)
    assert report.payload_bytes == 2048 * 40 * 5120 * 2 * 2
    assert round(report.payload_bytes / 1e9, 1) == 1.7
    assert report.payload_bytes == 1.5625 * GIB


def test_databricks_14_gb_in_14_ms_on_2_tb_per_s_is_an_mbu_of_one_half():
    """Databricks/MosaicML, LLM inference best practices: 7B in 16 bit, TPOT 14 ms, 2 TB/s peak: MBU 50 %.

    The source takes 14 GB for the weights and nothing for the cache; Llama-2-7B reads 13.2 GB.
    """
    a100 = kvroof.load_hardware("a100-sxm-80gb")
    chip = kvroof.Hardware(
        name="two-terabytes",
        vendor=a100.vendor,
        memory_bytes=a100.memory_bytes,
        hbm_bytes_per_s=2e12,
        peak_flops_per_s=a100.peak_flops_per_s,
    )
    plan = kvroof.Plan.of("llama-2-7b", chip, efficiency=Efficiency(hbm=0.5))
    answer = kvroof.estimate(plan, isl=1, osl=2, batch=1)
    assert answer.mbu.decode == pytest.approx(0.5, rel=2e-3)
    read = answer.mbu.decode * 2e12 * answer.tpot_s
    assert read == pytest.approx(2 * (6_738_415_616 - 32_000 * 4096), rel=1e-3)
    assert answer.tpot_s * 14e9 / read == pytest.approx(14e-3, rel=2e-3)


CONTEXTS = (1024, 16_000, 128_000)
"""What "1k, 16k, 128k" mean in that table; its GB are GiB."""


@pytest.mark.parametrize(
    ("model", "printed"),
    [("llama-3.1-8b", (0.125, 1.95, 15.62)), ("llama-3.1-70b", (0.313, 4.88, 39.06))],
)
def test_hf_llama_3_1_cache_table(model, printed):
    """Hugging Face, Llama 3.1 blog: KV cache in fp16 at 1k, 16k and 128k tokens."""
    shown = [kvroof.kv(kvroof.load_model(model), tokens=t).payload_bytes / GIB for t in CONTEXTS]
    assert shown == pytest.approx(printed, abs=0.0055)


@pytest.mark.parametrize(("tokens", "printed"), list(zip(CONTEXTS, (0.984, 15.38, 123.05), strict=True)))
def test_hf_llama_3_1_405b_row_is_not_reproduced(tokens, printed):
    """Negative control (huggingface/blog#2345): the 405B row supposes 16 KV heads; the model has 8."""
    payload = kvroof.kv(kvroof.load_model("llama-3.1-405b"), tokens=tokens).payload_bytes / GIB
    assert payload < 0.51 * printed
    assert 2 * payload == pytest.approx(printed, rel=1e-3)
