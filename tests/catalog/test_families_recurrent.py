"""State-space, linear-attention and hybrid decoders: counts of published models, one law per trap.

Totals were counted anew on meta tensors with transformers 5.24 from these same configs; MiniMax-Text-01's,
whose `model_type` it does not know, is the total found in public copies of its index. State bytes are
written out from the widths that the models' papers and classes give.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvroof.catalog.huggingface import read_architecture
from kvroof.cost.forward import forward
from kvroof.cost.products import Run
from kvroof.ground.dtypes import DTYPES
from kvroof.ground.errors import BadInput, KvroofError
from kvroof.memory.kv import fixed_bytes, growth_bytes, kinds, kv
from kvroof.spec.architecture import Architecture
from kvroof.spec.ffn import MoE
from kvroof.spec.parallel import Layout
from kvroof.spec.params import params_total
from kvroof.spec.precision import BF16_KV, StateFormat
from kvroof.spec.weights import unquantised
from kvroof.spec.workload import decode

MODELS: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "recurrent_models.json").read_text())
"""The published configs, without the keys that decide nothing here."""

MAMBA = MODELS["MAMBA"]
FALCON_MAMBA = MODELS["FALCON_MAMBA"]
CODESTRAL = MODELS["CODESTRAL"]
JAMBA = MODELS["JAMBA"]
ZAMBA = MODELS["ZAMBA"]
ZAMBA2 = MODELS["ZAMBA2"]
GRANITE = MODELS["GRANITE"]
FALCON_H1 = MODELS["FALCON_H1"]
NEMOTRON_SUPER = MODELS["NEMOTRON_SUPER"]
NEMOTRON_56B = MODELS["NEMOTRON_56B"]
QWEN3_NEXT = MODELS["QWEN3_NEXT"]
KIMI = MODELS["KIMI"]
MINIMAX = MODELS["MINIMAX"]
GRIFFIN = MODELS["GRIFFIN"]
LFM2 = MODELS["LFM2"]
LFM2_MOE = MODELS["LFM2_MOE"]
XLSTM = MODELS["XLSTM"]
RWKV = MODELS["RWKV"]
ZAYA = MODELS["ZAYA"]


def read(config: dict[str, Any], **changes: Any) -> Architecture:
    """Return the architecture of a config with some keys changed, or left out where None."""
    said = {**config, **changes}
    return read_architecture(said, "config.json", "model").architecture


PUBLISHED = [
    pytest.param(MAMBA, 129_135_360, id="mamba-130m-hf"),
    pytest.param(FALCON_MAMBA, 7_272_665_088, id="falcon-mamba-7b"),
    pytest.param(CODESTRAL, 7_285_403_648, id="mamba-codestral-7b"),
    pytest.param(JAMBA, 51_570_323_328, id="jamba-1.5-mini"),
    pytest.param(ZAMBA, 7_232_490_496, id="zamba-7b"),
    pytest.param(ZAMBA2, 1_215_064_704, id="zamba2-1.2b"),
    pytest.param(GRANITE, 32_207_337_984, id="granite-4.0-h-small"),
    pytest.param(FALCON_H1, 3_149_256_192, id="falcon-h1-3b"),
    pytest.param(NEMOTRON_SUPER, 120_668_687_360, id="nemotron-3-super"),
    pytest.param(NEMOTRON_56B, 56_324_350_464, id="nemotron-h-56b"),
    pytest.param(QWEN3_NEXT, 79_674_391_296, id="qwen3-next-80b"),
    pytest.param(KIMI, 49_122_675_072, id="kimi-linear-48b"),
    pytest.param(MINIMAX, 456_089_655_296, id="minimax-text-01"),
    pytest.param(GRIFFIN, 2_682_862_080, id="recurrentgemma-2b"),
    pytest.param(LFM2, 1_170_340_608, id="lfm2-1.2b"),
    pytest.param(LFM2_MOE, 8_339_929_856, id="lfm2-8b-a1b"),
    pytest.param(XLSTM, 6_865_424_896, id="xlstm-7b"),
    pytest.param(RWKV, 169_342_464, id="rwkv-4-169m"),
    pytest.param(ZAYA, 8_840_488_784, id="zaya1-8b"),
]


@pytest.mark.parametrize(("config", "total"), PUBLISHED)
def test_parameters_are_the_published_ones(config: dict[str, Any], total: int) -> None:
    """A total is equal to the last parameter, biases, norms and decay vectors included."""
    assert params_total(read(config)) == total


STATES = [
    pytest.param(MAMBA, 24 * (1536 * 4 * 2 + 1536 * 16 * 4), 0, id="mamba1"),
    pytest.param(CODESTRAL, 64 * ((8192 + 2 * 8 * 128) * 4 * 2 + 128 * 64 * 128 * 4), 0, id="mamba2"),
    pytest.param(JAMBA, 28 * (8192 * 4 * 2 + 8192 * 16 * 4), 4 * 2 * 8 * 128 * 2, id="jamba"),
    pytest.param(ZAMBA, 76 * (7424 * 4 * 2 + 7424 * 16 * 4), 13 * 2 * 16 * 464 * 2, id="zamba"),
    pytest.param(NEMOTRON_56B, 914_817_024, 10 * 2 * 8 * 128 * 2, id="nemotron-h-56b"),
    pytest.param(NEMOTRON_SUPER, 171_048_960, 8 * 2 * 2 * 128 * 2, id="nemotron-3-super"),
    pytest.param(FALCON_H1, 135_397_376, 32 * 2 * 2 * 128 * 2, id="falcon-h1"),
    pytest.param(QWEN3_NEXT, 36 * (8192 * 4 * 2 + 32 * 128 * 128 * 4), 12 * 2 * 2 * 256 * 2, id="gdn"),
    pytest.param(KIMI, 20 * (3 * 4096 * 4 * 2 + 32 * 128 * 128 * 4), 7 * 576 * 2, id="kda"),
    pytest.param(MINIMAX, 70 * 64 * 128 * 128 * 2, 10 * 2 * 8 * 128 * 2, id="lightning"),
    pytest.param(GRIFFIN, 18 * (2560 * 3 * 2 + 2560 * 4), 8 * 2 * 256 * 2, id="rglru"),
    pytest.param(LFM2, 10 * 2048 * 3 * 2, 6 * 2 * 8 * 64 * 2, id="short-conv"),
    pytest.param(XLSTM, 32 * 8 * (256 * 512 + 256 + 1) * 2, 0, id="mlstm"),
    pytest.param(RWKV, 12 * (2 * 768 * 2 + 3 * 768 * 4), 0, id="rwkv"),
    pytest.param(ZAYA, 40 * (1280 * 2 * 2 + 128 * 2), 40 * 2 * 2 * 128 * 2, id="cca"),
]


@pytest.mark.parametrize(("config", "fixed", "per_token"), STATES)
def test_a_state_does_not_grow_and_attention_layers_do(
    config: dict[str, Any], fixed: int, per_token: int
) -> None:
    """Payload is `fixed + T per_token`: transformers keeps d_conv columns in bf16, most recurrences fp32."""
    model = read(config)
    assert fixed_bytes(model) == fixed
    assert growth_bytes(model, 0) == per_token
    assert [kv(model, tokens=t).payload_bytes for t in (1, 128)] == [
        fixed + per_token,
        fixed + 128 * per_token,
    ]


def test_engines_keep_one_column_fewer_but_none_of_griffin() -> None:
    """RG-LRU and CCA keep k - 1 columns everywhere; a Mamba convolution k in transformers, k - 1 in engines.

    CCA's in vLLM: `cca_state_shape` of `ZayaForCausalLM`, `(cca_time0 - 1) + (cca_time1 - 1)` columns.
    """
    engine = StateFormat(dropped_columns=1)
    assert fixed_bytes(read(MAMBA), engine) == 24 * (1536 * 3 * 2 + 1536 * 16 * 4)
    assert fixed_bytes(read(GRIFFIN), engine) == fixed_bytes(read(GRIFFIN))
    assert fixed_bytes(read(RWKV), engine) == fixed_bytes(read(RWKV))
    assert fixed_bytes(read(ZAYA), engine) == fixed_bytes(read(ZAYA))


def test_the_dtype_of_a_recurrence_that_follows_the_model_is_the_convolutions() -> None:
    """Lightning's state is kept in the model's dtype: an fp32 model doubles it."""
    fp32 = StateFormat(conv=DTYPES["fp32"])
    assert fixed_bytes(read(MINIMAX), fp32) == 70 * 64 * 128 * 128 * 4


def test_falcon_mambas_expand_is_a_decoy() -> None:
    """The stated width decides; 16 x 4,096 channels would make a model eight times as large."""
    assert read(FALCON_MAMBA) == read(FALCON_MAMBA, expand=2)


def test_falcon_h1s_multipliers_hold_nothing() -> None:
    """Falcon-H1-34B-Instruct's config says all three; its class has 33,642,221,312 parameters."""
    large = read(
        FALCON_H1,
        hidden_size=5120,
        intermediate_size=21504,
        num_hidden_layers=72,
        num_attention_heads=20,
        num_key_value_heads=4,
        mamba_d_ssm=4096,
        mamba_n_heads=32,
        mamba_d_head=128,
        mamba_n_groups=2,
        mamba_d_state=256,
        vocab_size=261_120,
        ssm_in_multiplier=0.8,
        ssm_multipliers=[0.35, 0.25, 0.35, 0.5, 0.35],
        ssm_out_multiplier=0.2357,
    )
    assert params_total(large) == 33_642_221_312


def test_falcon_h1s_d_ssm_beats_expand_and_null_restores_it() -> None:
    """2 x 2,560 channels are not the mixer's 4,096; with null they are, and the heads must make them up."""
    assert read(FALCON_H1) == read(FALCON_H1, mamba_expand=7)
    widened = read(FALCON_H1, mamba_d_ssm=None, mamba_n_heads=40)
    assert fixed_bytes(widened) == 32 * ((5120 + 512) * 4 * 2 + 40 * 128 * 256 * 4)
    with pytest.raises(BadInput, match="do not make"):
        read(FALCON_H1, mamba_d_ssm=None)


def test_parallel_attention_and_mamba_are_one_layer() -> None:
    """A Falcon-H1 layer has a cache and a state, and counts once."""
    model = read(FALCON_H1)
    assert model.num_layers == 32
    assert [(k.kind, k.layers) for k in kinds(model)] == [("full", 32), ("mamba2", 32)]


def test_zambas_block_is_stored_once_and_cached_by_each_layer() -> None:
    """Zamba2-1.2B's 6 hybrid layers cache 98,304 B a token, of one block's weights."""
    model = read(ZAMBA2)
    assert growth_bytes(model, 0) == 98_304
    one = sum(w.elements for w in model.shared)
    assert params_total(read(ZAMBA2, num_mem_blocks=2)) == params_total(model) + one


def test_zambas_layers_follow_its_period_where_the_file_lists_none() -> None:
    """76 layers: the third, then every sixth from the eighth on, 13 in all."""
    listed = ["hybrid" if i == 2 or (i > 2 and (i - 3) % 6 == 4) else "linear_attention" for i in range(76)]
    assert listed.count("hybrid") == 13
    assert read(ZAMBA).layers == read(ZAMBA, layers_block_type=listed).layers


def test_no_experts_leaves_granites_shared_mlp() -> None:
    """Granite-4.0-h-1b: `num_local_experts: 0`, and every layer still has its shared MLP."""
    dense = read(
        GRANITE,
        hidden_size=1536,
        num_attention_heads=12,
        num_key_value_heads=4,
        mamba_n_heads=48,
        shared_intermediate_size=4096,
        num_local_experts=0,
        num_experts_per_tok=0,
    )
    assert params_total(dense) == 1_461_538_368


def test_nemotrons_mlp_layers_hold_nothing() -> None:
    """Each letter is a layer of one part: 54 Mamba, 54 MLP and 10 attention layers of 118."""
    model = read(NEMOTRON_56B)
    assert model.num_layers == 118
    assert [(k.kind, k.layers) for k in kinds(model)] == [("full", 10), ("mamba2", 54)]
    assert all(len(g.layer.mixers) + len(g.layer.ffns) == 1 for g in model.layers)


def test_a_nemotron_list_is_the_pattern_in_words() -> None:
    """Ultra's files list blocks, Super's give letters; a count that contradicts them is refused."""
    words = {"M": "mamba", "E": "moe", "*": "attention", "-": "mlp"}
    pattern = str(NEMOTRON_SUPER["hybrid_override_pattern"])
    listed = read(NEMOTRON_SUPER, layers_block_type=[words[c] for c in pattern])
    assert listed.layers == read(NEMOTRON_SUPER).layers
    with pytest.raises(BadInput, match="num_hidden_layers"):
        read(NEMOTRON_SUPER, num_hidden_layers=87)


def test_nemotrons_attention_has_no_biases_whatever_the_file_says() -> None:
    """`attention_bias` is in the files and not in the class."""
    assert params_total(read(NEMOTRON_56B, attention_bias=True)) == 56_324_350_464


def test_latent_experts_read_the_latent_and_its_projections_run_for_every_token() -> None:
    """Without the latent, 512 experts of 4,096 instead of 1,024 are four times the size."""
    latent, whole = read(NEMOTRON_SUPER), read(NEMOTRON_SUPER, moe_latent_size=None)
    expert = 2 * 512 * 2688
    assert params_total(whole) - params_total(latent) == 40 * (expert * (4096 - 1024) - 2 * 4096 * 1024)


def test_kimis_layers_count_from_one_and_lie_in_one_list() -> None:
    """Layer 4 is the first latent; a layer in both lists, or in none, is refused."""
    model = read(KIMI)
    assert [i for i, g in enumerate(model.order) if model.layers[g].layer.mixers[0].caches] == [
        3,
        7,
        11,
        15,
        19,
        23,
        26,
    ]
    linear = dict(KIMI["linear_attn_config"])
    for broken in ({**linear, "kda_layers": [1, 2, 3, 4]}, {**linear, "full_attn_layers": [4]}):
        with pytest.raises(BadInput, match="exactly one"):
            read(KIMI, linear_attn_config=broken)


def test_kimis_head_dim_is_a_decoy() -> None:
    """72 is neither the latent's width nor the linear heads' 128."""
    assert read(KIMI) == read(KIMI, head_dim=64, num_key_value_heads=1)


def test_griffins_tile_runs_on_past_the_last_whole_one() -> None:
    """Three over 26 layers: attention on 8, two recurrent layers at the end; its window is 2,048."""
    model = read(GRIFFIN)
    assert [(k.kind, k.layers, k.window) for k in kinds(model)] == [
        ("sliding", 8, 2048),
        ("rglru", 18, None),
    ]
    assert kv(model, tokens=8192).payload_bytes == kv(model, tokens=2048).payload_bytes


def test_lfm2s_width_is_two_thirds_rounded_up_unless_told_otherwise() -> None:
    """12,288 makes 8,192; left alone it makes half as many again."""
    left = read(LFM2, block_auto_adjust_ff_dim=False)
    assert params_total(left) - params_total(read(LFM2)) == 16 * 3 * 2048 * 4096


def test_qwens_query_gate_doubles_the_query_and_its_bias() -> None:
    """16 heads of 256 make 8,192 columns of queries, and as many biases where there are any."""
    biased = params_total(read(QWEN3_NEXT, attention_bias=True)) - params_total(read(QWEN3_NEXT))
    assert biased == 12 * (2 * 4096 + 2 * 512 + 2048)


def test_zayas_convolutions_cost_one_product_per_head_and_token() -> None:
    """The second mixes 128 channels over two tokens in each of 10 heads, the first 2 of one channel."""
    run = Run(formats=unquantised(DTYPES["bf16"]), kv_format=BF16_KV)
    ops = {op.name: op for op in forward(read(ZAYA), decode(1, 64), run)}
    assert ops["conv_qk_grouped"].flops == 2 * 10 * (2 * 128) * 128
    assert ops["scan.cca"].flops == 2 * 1280 * 2


def test_zayas_first_layer_has_no_scale_for_the_router_before_it() -> None:
    """The 256 numbers that weigh the router's state of the layer before are of layers 2 to 40."""
    first, rest = read(ZAYA).layers
    assert (first.count, rest.count) == (1, 39)
    assert sum(w.elements for w in rest.layer.weights) - sum(w.elements for w in first.layer.weights) == 256


def test_zayas_router_scores_sixteen_experts_and_the_choice_of_none() -> None:
    """Its last matrix reads the MLP's 256, not the residual, and one choice of 17 computes nothing."""
    (moe,) = read(ZAYA).layers[0].layer.ffns
    assert isinstance(moe, MoE)
    assert moe.router.shape == (256, 17)
    assert moe.computed_per_tok == pytest.approx(16 / 17)


def test_zayas_sliding_layers_keep_a_window() -> None:
    """A listed `hybrid_sliding` layer stops growing; all layers keep their convolutions' state."""
    half = read(ZAYA, layer_types=["hybrid", "hybrid_sliding"] * 20, sliding_window=4096)
    assert [(k.kind, k.layers, k.window) for k in kinds(half)] == [
        ("full", 20, None),
        ("sliding", 20, 4096),
        ("cca", 40, None),
    ]
    assert growth_bytes(half, 4096) == growth_bytes(read(ZAYA), 4096) // 2


REFUSED = [
    pytest.param(ZAYA, {"zaya_mlp_expansion": 256}, "zaya_mlp_expansion", id="zayas-first-layout"),
    pytest.param(ZAYA, {"layer_types": ["full_attention"] * 40}, "layer_types", id="zaya-unknown-layer"),
    pytest.param(ZAYA, {"layer_types": ["hybrid_sliding"] * 40}, "sliding_window", id="zaya-no-window"),
    pytest.param(ZAYA, {"head_dim": 1, "num_key_value_heads": 1}, "head_dim", id="zaya-odd-values"),
    pytest.param(QWEN3_NEXT, {"attn_output_gate": False}, "attn_output_gate", id="no-gate"),
    pytest.param(MINIMAX, {"shared_intermediate_size": 9216}, "shared_intermediate_size", id="shared"),
    pytest.param(MINIMAX, {"attn_type_list": None}, "layer_types", id="no-list"),
    pytest.param(GRANITE, {"layer_types": ["mamba", "ring"] * 20}, "layer_types", id="unknown-block"),
    pytest.param(ZAMBA2, {"tie_word_embeddings": False}, "tie_word_embeddings", id="untied-zamba"),
    pytest.param(KIMI, {"tie_word_embeddings": True}, "tie_word_embeddings", id="tied-kimi"),
    pytest.param(JAMBA, {"attn_layer_offset": 8}, "attn_layer_offset", id="offset-past-period"),
    pytest.param(LFM2, {"full_attn_idxs": None}, "layer_types", id="lfm2-no-list"),
    pytest.param(CODESTRAL, {"num_heads": 64}, "num_heads", id="heads-do-not-fill"),
    pytest.param(NEMOTRON_SUPER, {"n_shared_experts": 2}, "n_shared_experts", id="two-shared"),
    pytest.param(NEMOTRON_56B, {"hybrid_override_pattern": "M?"}, "hybrid_override", id="unknown-letter"),
    pytest.param(MAMBA, {"kv_window_heads": 4}, "kv_window_heads", id="unknown-structure"),
    pytest.param(QWEN3_NEXT, {"linear_num_value_heads": 24}, "linear_num_value_heads", id="ragged-heads"),
]


@pytest.mark.parametrize(("config", "changes", "key"), REFUSED)
def test_what_is_not_modelled_is_refused_by_key(
    config: dict[str, Any], changes: dict[str, Any], key: str
) -> None:
    """An option that would change the count is named, never ignored."""
    with pytest.raises(KvroofError, match=key):
        read(config, **changes)


def test_one_groups_b_and_c_are_whole_on_every_rank() -> None:
    """Falcon-H1 shares one group among its heads: 2 x 256 of 4,608 channels do not shard."""
    rank = fixed_bytes(read(FALCON_H1), tp=2)
    assert rank == 32 * ((4096 // 2 + 512) * 4 * 2 + 32 // 2 * 128 * 256 * 4)


def test_ranks_may_not_outnumber_groups_that_are_not_shared() -> None:
    """Codestral's 8 groups go to at most 8 ranks, though it has 128 heads."""
    model = read(CODESTRAL)
    assert fixed_bytes(model, tp=8) * 8 == fixed_bytes(model)
    with pytest.raises(BadInput, match="do not divide"):
        kv(model, layout=Layout(tp=16))


@pytest.mark.parametrize("config", [ZAMBA2, NEMOTRON_SUPER, KIMI, RWKV, ZAYA])
def test_every_matrix_a_token_runs_is_multiplied(config: dict[str, Any]) -> None:
    """Adapters, latent projections and gates cost FLOPs; a shared block as often as it runs."""
    model = read(config)
    run = Run(formats=unquantised(DTYPES["bf16"]), kv_format=BF16_KV)
    done = sum(op.flops * op.count for op in forward(model, decode(1, 64), run) if op.kind in ("gemm", "moe"))
    idle = sum(
        g.count * (sum(w.elements for w in f.weights) - f.active_elements)
        for g in model.layers
        for f in g.layer.ffns
        if isinstance(f, MoE)
    )
    matrices = sum(g.count * w.elements for g in model.layers for w in g.layer.weights if w.role != "vector")
    assert done == pytest.approx(2 * (matrices - idle + model.lm_head.elements))


def test_a_layer_of_one_part_reduces_once() -> None:
    """Nemotron's layers are summed over ranks once each: 118 of them, not 236."""
    run = Run(formats=unquantised(DTYPES["bf16"]), kv_format=BF16_KV, layout=Layout(tp=8))
    ops = forward(read(NEMOTRON_56B), decode(1, 64), run)
    reduced = [op.count for op in ops if op.name in ("attention_all_reduce", "ffn_all_reduce")]
    assert sum(reduced) == 118
