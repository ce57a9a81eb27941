"""Engines as allocators: what they set aside, budgets and their exact inverse, flags, logs explained."""

import contextlib
import dataclasses
import io
import json
import random
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvroof as api
from kvroof.ground.errors import BadInput, KvroofError, Unsupported
from kvroof.ground.units import GIB, MIB
from kvroof.memory.allocators import parse_allocator, plain_engine
from kvroof.memory.demand import Demand, equal_lengths
from kvroof.memory.engines.engine import Question
from kvroof.memory.engines.explain import explain_log
from kvroof.memory.engines.llama_cpp import LlamaCpp
from kvroof.memory.engines.logs import MAX_LINES_KEPT, read_log
from kvroof.memory.engines.prediction import Served
from kvroof.memory.engines.sglang import SGLang
from kvroof.memory.engines.tensorrt_llm import TensorRTLLM
from kvroof.memory.engines.vllm import VLLM
from kvroof.memory.kv import engine_formats
from kvroof.memory.ledger import fit
from kvroof.memory.terms import adapters, budget_terms, step_activations
from kvroof.spec.parallel import Layout
from kvroof.spec.precision import BF16_KV, HF_STATE, parse_kv_format

ENGINES = ("vllm", "sglang", "tensorrt-llm", "llama.cpp")
MODELS = ("llama-3.1-8b", "gemma-3-27b", "qwen3.5-27b", "kimi-linear-48b-a3b", "gpt-oss-20b", "deepseek-v3")
LOADED = {name: api.load_model(name) for name in MODELS}
both = pytest.mark.parametrize(
    ("model", "engine"),
    [(LOADED[m], e) for m in MODELS for e in ENGINES],
    ids=lambda v: getattr(v, "name", v),
)


def held(model, engine, demand, kv_dtype="bf16", tp=1):
    engine = plain_engine(engine) if isinstance(engine, str) else engine
    formats = engine.formats(model, parse_kv_format(kv_dtype, model), HF_STATE)
    return engine.hold(model, demand, *formats, tp)


def figures(model, engine, size, kv_dtype="bf16", tp=1):
    formats = engine.formats(model, parse_kv_format(kv_dtype, model), HF_STATE)
    return engine.figures(model, size, *formats, tp)


# What is set aside.


@both
def test_an_engine_sets_aside_at_least_what_is_stored(model, engine):
    report = api.kv(model, tokens=5000, seqs=3, allocator=parse_allocator(engine))
    assert report.allocated_bytes >= report.payload_bytes
    assert report.empty_slots >= 0


@both
def test_more_tokens_and_more_sequences_never_take_less(model, engine):
    lengths = [1, 15, 16, 17, 127, 1024, 1025, 5000, 40_000]
    sizes = [held(model, engine, equal_lengths(n, 2)).held_bytes for n in lengths]
    assert sizes == sorted(sizes)
    counts = [held(model, engine, equal_lengths(1000, n)).held_bytes for n in (1, 2, 3, 7)]
    assert counts == sorted(counts)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm", "llama.cpp"])
def test_a_shared_prefix_is_stored_once_by_whole_blocks(engine):
    model = LOADED["llama-3.1-8b"]
    apart = held(model, engine, equal_lengths(4096, 4)).held_bytes
    together = held(model, engine, equal_lengths(4096, 4, shared_prefix=2048)).held_bytes
    assert apart - together == 3 * 2048 * 131_072


@both
def test_ragged_sequences_take_between_the_shortest_and_the_longest(model, engine):
    demand = Demand(lengths=((100, 1), (3000, 1)))
    short, long = (held(model, engine, equal_lengths(n, 2)).held_bytes for n in (100, 3000))
    assert short <= held(model, engine, demand).held_bytes <= long


@pytest.mark.parametrize("engine", ENGINES[:3])
@pytest.mark.parametrize("name", MODELS)
def test_what_holds_a_demand_is_what_the_figures_say(name, engine):
    """`hold` is the inverse of `figures`: with that memory the log has those blocks, a byte less has not."""
    model, made = LOADED[name], plain_engine(engine)
    needed = held(model, made, equal_lengths(6000, 5))
    given_that = figures(model, made, needed.held_bytes)
    assert given_that.num_blocks >= needed.blocks
    if engine == "vllm":
        assert given_that.num_blocks == needed.blocks
        assert figures(model, made, needed.held_bytes - 1).num_blocks == needed.blocks - 1


# The budget and its inverse.


@both
@pytest.mark.parametrize("capacity", [90 * GIB, 700 * GIB])
def test_the_inverse_of_the_budget_is_exact(model, engine, capacity):
    asked = {"allocator": parse_allocator(engine), "reserve_bytes": GIB, "weights_bytes": 60 * GIB}
    ledger = fit(model, capacity, tokens=7000, seqs=3, **asked)
    assert fit(model, capacity, tokens=7000, seqs=ledger.max_seqs, **asked).fits
    assert not fit(model, capacity, tokens=7000, seqs=ledger.max_seqs + 1, **asked).fits
    assert fit(model, capacity, tokens=ledger.max_tokens, seqs=3, **asked).fits
    assert not fit(model, capacity, tokens=ledger.max_tokens + 1, seqs=3, **asked).fits
    assert ledger.fits == (ledger.headroom_bytes >= 0)
    assert ledger.total_bytes == ledger.weights_bytes + ledger.kv_bytes + ledger.reserve_bytes
    assert ledger.budget_bytes <= capacity


def available(engine, **changes):
    asked = {"weights_bytes": 20 * GIB, "reserve_bytes": 4 * GIB, "utilization": 0.9} | changes
    ledger = fit(LOADED["llama-3.1-8b"], 80 * GIB, allocator=parse_allocator(engine), **asked)
    return ledger.headroom_bytes + ledger.kv_bytes


def test_each_engine_has_its_own_budget():
    """vLLM takes a share of the total; SGLang too, what runs outside it; TensorRT-LLM one of the free."""
    assert available("vllm") == 72 * GIB - 24 * GIB
    assert available("sglang") == 72 * GIB - 20 * GIB
    assert available("tensorrt-llm") == 56 * GIB * 9 // 10
    assert available("llama.cpp") == 72 * GIB - 24 * GIB


def test_what_runs_beside_sglangs_share_never_exceeds_the_memory():
    assert available("sglang", utilization=0.99) == 80 * GIB - 24 * GIB


def test_a_way_out_on_an_engine_is_true():
    ledger = fit(LOADED["qwen3.5-27b"], 80 * GIB, tokens=100_000, seqs=40, allocator=parse_allocator("vllm"))
    assert not ledger.fits
    ways = {way.change: way.to for way in ledger.ways_out}
    assert {"seqs", "tokens", "capacity_bytes"} <= set(ways)
    wider = {"tokens": 100_000, "seqs": 40, "allocator": parse_allocator("vllm")}
    assert fit(LOADED["qwen3.5-27b"], ways["capacity_bytes"], **wider).fits
    assert not fit(LOADED["qwen3.5-27b"], ways["capacity_bytes"] - 1, **wider).fits


def test_the_activation_peak_is_the_logged_one():
    """vllm#10517: 17.06 GiB at the peak, 14.9888 GiB of weights, 20,000 tokens in a step."""
    logged = (17.06 - 14.9888) * GIB
    assert step_activations(LOADED["llama-3.1-8b"], 20_000, 1).term_bytes == pytest.approx(logged, rel=0.025)


def test_adapters_are_two_thin_matrices_beside_each_projection():
    """Llama-3.1-8B, all linear layers: 41,943,040 parameters at rank 16, as PEFT prints."""
    assert adapters(LOADED["llama-3.1-8b"], 1, 16).term_bytes == 2 * 41_943_040
    assert adapters(LOADED["llama-3.1-8b"], 8, 16).term_bytes == 8 * 2 * 41_943_040
    assert adapters(LOADED["llama-3.1-8b"], 1, 16, tp=8).term_bytes < 2 * 41_943_040


@pytest.mark.parametrize(("count", "rank"), [(0, 16), (-1, 16), (1, 0), (2**30, 16)])
def test_adapters_that_cannot_be_are_refused(count, rank):
    with pytest.raises(BadInput, match="--adapter"):
        adapters(LOADED["llama-3.1-8b"], count, rank)


def test_terms_are_named_and_can_be_given():
    model, allocator = LOADED["llama-3.1-8b"], parse_allocator("vllm")
    counted = {t.name: t.term_bytes for t in budget_terms(model, allocator, 1)}
    assert set(counted) == {"activation peak", "non-torch"}
    told = budget_terms(model, allocator, 1, activations=5, non_torch=6, graphs=7)
    assert [(t.name, t.term_bytes) for t in told] == [
        ("activation peak", 5),
        ("non-torch", 6),
        ("CUDA graphs", 7),
    ]
    assert budget_terms(model, allocator, 1, reserved=True) == ()
    assert budget_terms(model, parse_allocator("paged"), 1) == ()


def test_a_multimodal_model_has_an_encoder_cache():
    names = [t.name for t in budget_terms(LOADED["gemma-3-27b"], parse_allocator("vllm"), 1)]
    assert "encoder cache" in names


def test_a_draft_model_takes_weights_and_cache(kvroof):
    small = api.load_model("llama-3.2-1b")
    asked = ("fit", "llama-3.1-8b", "h100-sxm", "--engine", "vllm", "--json")
    alone, drafted = kvroof(*asked).json, kvroof(*asked, "--draft", "llama-3.2-1b").json
    assert drafted["kv_bytes"] - alone["kv_bytes"] == api.kv(small, tokens=8192).payload_bytes
    (weights,) = [t["term_bytes"] for t in drafted["terms"] if t["name"] == "draft weights"]
    assert weights == drafted["reserve_bytes"] - alone["reserve_bytes"] > 2 * GIB


# vLLM.


def test_pages_that_do_not_divide_are_padded_or_refused():
    """A kind with 3/4 of the largest page keeps its block and pads; older releases raise."""
    model = api.load_model("mimo-v2-flash")
    older = VLLM(mismatch="raise")
    formats = VLLM().formats(model, BF16_KV, HF_STATE)
    wide = next(g for g in model.layers if g.layer.mixers[0].num_kv_heads == 8)
    three = dataclasses.replace(wide.layer.mixers[0], num_kv_heads=3)
    odd = dataclasses.replace(
        model,
        layers=tuple(
            dataclasses.replace(g, layer=dataclasses.replace(g.layer, mixers=(three,))) if g is wide else g
            for g in model.layers
        ),
    )
    assert VLLM().pool(odd, *formats).groups[0].block_size == 16
    with pytest.raises(Unsupported, match="does not divide"):
        older.pool(odd, *formats)


@pytest.mark.parametrize(("ratio", "size", "padding"), [("3/2", 13, 1), ("1", 12, 11)])
def test_kinds_of_alike_counts_share_a_group_size(ratio, size, padding):
    """12 windowed and 13 full layers: groups of 13 with 1 layer of padding, or of 12 with 11."""
    model = LOADED["gpt-oss-20b"]
    more = tuple(
        dataclasses.replace(g, count=g.count + (g.layer.mixers[0].reach.window is None)) for g in model.layers
    )
    engine = VLLM(similar=Fraction(ratio))
    made = engine.pool(dataclasses.replace(model, layers=more), *engine.formats(model, BF16_KV, HF_STATE))
    assert ({g.layers for g in made.groups}, made.padding_layers) == ({size}, padding)


def test_states_beside_latents_align_the_block_to_128():
    model = LOADED["kimi-linear-48b-a3b"]
    made = VLLM().pool(model, *VLLM().formats(model, BF16_KV, HF_STATE))
    assert made.block_size % 128 == 0


def test_a_latent_is_replicated_over_ranks_and_divided_by_the_decode_context():
    model = LOADED["deepseek-v3"]
    whole = held(model, VLLM(), equal_lengths(8192, 1)).held_bytes
    assert held(model, VLLM(), equal_lengths(8192, 1), tp=8).held_bytes == whole
    assert held(model, VLLM(dcp=8), equal_lengths(8192, 1), tp=8).held_bytes == whole // 8
    assert figures(model, VLLM(dcp=8), whole, tp=8).kv_cache_tokens_old == 8 * 8192


def test_a_decode_context_divides_ranks_that_hold_the_same_head():
    """GQA: up to tp / kv_heads."""
    model = api.load_model("llama-3-70b")
    held(model, VLLM(dcp=2), equal_lengths(100, 1), tp=16)
    with pytest.raises(BadInput, match="--dcp"):
        held(model, VLLM(dcp=2), equal_lengths(100, 1), tp=8)


def test_fp8_of_sparse_latents_is_packed_and_index_keys_have_a_scale():
    model = api.load_model("deepseek-v3.2")
    for kv_dtype, row in (("fp8", 656 + 132), ("fp8_ds_mla", 656 + 132), ("bf16", 1152 + 132)):
        assert held(model, VLLM(), equal_lengths(16, 1), kv_dtype).held_bytes == 16 * 61 * row
    plain = api.kv(model, tokens=1, kv_format=parse_kv_format("fp8", model))
    assert plain.bytes_per_token == 61 * (576 + 128), "without an engine: fp8 throughout"


def test_scales_beside_each_head_are_counted():
    model = LOADED["llama-3.1-8b"]
    report = api.kv(model, tokens=1, kv_format=parse_kv_format("int8_per_token_head", model))
    assert report.bytes_per_token == 32 * 8 * 2 * (128 + 4)


@pytest.mark.parametrize(("dtype", "size"), [(None, 4), ("bf16", 2), ("fp32", 4)])
def test_the_state_dtype_follows_the_checkpoint_unless_it_is_given(dtype, size):
    model = LOADED["qwen3.5-27b"]
    engine = VLLM(state_dtype=parse_kv_format(dtype, model).k if dtype else None)
    made = engine.pool(model, *engine.formats(model, BF16_KV, HF_STATE))
    assert made.state_bytes == 48 * 128 * 128 * size + 10_240 * 3 * 2


def test_a_checkpoint_that_does_not_say_keeps_its_state_in_the_models_dtype():
    model = api.load_model("qwen3-next-80b-a3b")
    assert model.state_dtype is None
    made = VLLM().pool(model, *VLLM().formats(model, BF16_KV, HF_STATE))
    assert made.state_bytes == 32 * 128 * 128 * 2 + 8192 * 3 * 2


def test_an_mtp_layer_is_one_more_layer_of_attention():
    model = LOADED["deepseek-v3"]
    one, two = (held(model, VLLM(mtp_layers=n), equal_lengths(16, 1)).held_bytes for n in (0, 1))
    assert two - one == 16 * 1152


def test_compressed_caches_are_refused_on_every_engine():
    model = api.load_model("deepseek-v4-flash")
    for engine in ENGINES:
        with pytest.raises(Unsupported, match="compressed"):
            held(model, engine, equal_lengths(16, 1))


# SGLang, TensorRT-LLM, llama.cpp.


def test_sglangs_windowed_pool_is_a_share_of_the_full_one():
    model = LOADED["gpt-oss-20b"]
    made = figures(model, SGLang(), 10 * GIB)
    assert made.kv_cache_tokens == int(10 * GIB / (12 * 2048 * 1.8))
    assert f"swa size: {int(made.kv_cache_tokens * 0.8)}" in made.lines[0]


def test_sglangs_radix_cache_takes_three_slots_per_request():
    model = LOADED["qwen3.5-27b"]
    with_radix, without = (figures(model, SGLang(prefix_caching=p), 40 * GIB) for p in (True, False))
    assert with_radix.max_requests == without.max_requests // 3
    state = 48 * (48 * 128 * 128 * 4 + 10_240 * 3 * 2)
    assert without.max_requests == int(40 * GIB * 0.9 / 1.9) // state - 1


def test_tensorrt_llm_counts_whole_blocks_of_all_layers():
    made = figures(LOADED["llama-3.1-8b"], TensorRTLLM(max_model_len=4096), 10 * GIB)
    assert (made.num_blocks, made.kv_cache_tokens) == (2560, 81_920)
    assert made.max_requests == 20


def test_llama_cpp_gives_whole_layers_to_devices():
    with pytest.raises(Unsupported, match="--tp"):
        held(LOADED["llama-3.1-8b"], LlamaCpp(), equal_lengths(16, 1), tp=2)


def test_llama_cpp_has_no_block_size():
    assert plain_engine("llama.cpp", 16) == plain_engine("llama.cpp")


def test_the_context_of_llama_cpp_is_the_largest_that_fits():
    model = LOADED["llama-3.1-8b"]
    made = figures(model, LlamaCpp(), 10 * GIB + 5)
    assert made.kv_cache_tokens == 10 * GIB // 131_072 // 256 * 256


# Flags.


@pytest.mark.parametrize(
    ("engine", "flags"),
    [
        ("vllm", ("--max-model-len 4096", "--max-num-seqs 7", "--gpu-memory-utilization 0.9")),
        ("vllm", ("--kv-cache-dtype fp8", "--block-size 16", "--tensor-parallel-size 2")),
        ("sglang", ("--context-length 4096", "--max-running-requests 7", "--mem-fraction-static 0.9")),
        ("sglang", ("--kv-cache-dtype fp8_e4m3", "--page-size 1", "--tp-size 2")),
        ("tensorrt-llm", ("--max_seq_len 4096", "--max_batch_size 7", "--tp_size 2")),
        ("tensorrt-llm", ("--kv_cache_free_gpu_memory_fraction 0.9", "kv_cache_config.dtype: fp8")),
        ("llama.cpp", ("--ctx-size 28672", "--parallel 7", "--ubatch-size 512")),
    ],
)
def test_flags_are_in_the_engines_own_names(engine, flags):
    question = Question(tokens=4096, seqs=7, utilization=0.9, kv_dtype="fp8", tp=2)
    assert set(flags) <= set(plain_engine(engine).flags(question))


def test_flags_of_llama_cpp_name_its_types_and_turn_flash_attention_on_for_a_quantised_v():
    question = Question(tokens=4096, seqs=1, utilization=0.9, kv_dtype="bf16/q8_0", tp=1)
    flags = LlamaCpp().flags(question)
    assert {"--cache-type-k f16", "--cache-type-v q8_0", "--flash-attn on"} <= set(flags)


def test_fit_admits_what_can_grow_or_what_is_expected(kvroof):
    asked = ("fit", "llama-3.1-8b", "h100-sxm", "--engine", "vllm", "--tokens", 32768, "--json")
    careful = kvroof(*asked).json
    bold = kvroof(*asked, "--admission", "optimistic", "--typical-tokens", 2048).json
    assert careful["admitted_seqs"] == careful["max_seqs"] == bold["max_seqs"]
    assert bold["admitted_seqs"] == pytest.approx(16 * careful["max_seqs"], rel=0.05)
    assert f"--max-num-seqs {bold['admitted_seqs']}" in bold["flags"]
    assert kvroof(*asked, "--typical-tokens", 2048).code == 2


# The command line.


def test_kv_says_what_the_engine_will_log(kvroof):
    asked = ("kv", "gemma-4-31b", "--engine", "vllm", "--max-model-len", 131072, "--json")
    (plain,), (told,) = kvroof(*asked).json, kvroof(*asked, "--available", "24.54GiB").json
    assert plain["engine"] is None
    assert told["engine"]["num_blocks"] == 10_051
    assert told["engine"]["kv_cache_tokens_old"] == 26_800
    assert told["engine"]["lines"][-1] == "Maximum concurrency for 131,072 tokens per request: 1.99x"


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_answers_kv_and_fit(kvroof, engine):
    (report,) = kvroof("kv", "llama-3.1-8b", "--engine", engine, "--available", "10GiB", "--json").json
    assert report["allocator"] == report["engine"]["name"] == engine
    (same,) = kvroof("kv", "llama-3.1-8b", "--allocator", engine, "--json").json
    assert same["allocated_bytes"] == report["allocated_bytes"]
    answer = kvroof("fit", "llama-3.1-8b", "h100-sxm", "--engine", engine, "--adapters", 2, "--json")
    assert answer.code == 0
    assert answer.json["engine"] == engine
    assert any("lora" in flag for flag in answer.json["flags"])
    assert sum(t["term_bytes"] for t in answer.json["terms"]) == answer.json["reserve_bytes"]
    without = kvroof("fit", "llama-3.1-8b", "h100-sxm", "--engine", engine, "--json")
    assert without.code == 0
    assert without.json["flags"]
    assert not any("lora" in flag for flag in without.json["flags"])


@pytest.mark.parametrize(
    "arguments",
    [
        ("--engine", "llamafile"),
        ("--engine", "vllm", "--allocator", "paged"),
        ("--engine", "sglang", "--dcp", 2),
        ("--engine", "vllm", "--swa-full"),
        ("--dcp", 2),
        ("--available", "10GiB"),
        ("--engine", "vllm", "--block-size", 0),
        ("--engine", "vllm", "--max-num-batched-tokens", -5),
        ("--engine", "vllm", "--spec-tokens", -1),
        ("--engine", "sglang", "--swa-ratio", "0"),
        ("--engine", "sglang", "--swa-ratio", "nan"),
        ("--engine", "sglang", "--swa-ratio", "1/0"),
        ("--engine", "vllm", "--state-dtype", "fp13"),
        ("--state-dtype", "fp13"),
        ("--engine", "llama.cpp", "--block-size", 16),
        ("--engine", "vllm", "--page-mismatch", "ignore"),
    ],
    ids=lambda a: " ".join(map(str, a)),
)
def test_flags_that_mean_nothing_are_refused_in_one_line(kvroof, arguments):
    answer = kvroof("kv", "llama-3.1-8b", *arguments)
    assert (answer.code, answer.out) == (2, "")
    assert len(answer.err.strip().splitlines()) == 1


def test_the_state_dtype_is_an_option_without_an_engine_too(kvroof):
    (fp32,) = kvroof("kv", "qwen3.5-27b", "--json").json
    (bf16,) = kvroof("kv", "qwen3.5-27b", "--state-dtype", "bf16", "--json").json
    assert fp32["fixed_bytes_per_seq"] - bf16["fixed_bytes_per_seq"] == 48 * 48 * 128 * 128 * 2


# Logs.

VLLM_LOG = """
(EngineCore pid=1) INFO [gpu_worker.py:298] Available KV cache memory: 5.98 GiB
(EngineCore pid=1) INFO [config.py:1] Setting attention block size to 2096 tokens to ensure ...
(EngineCore pid=1) INFO [kv_cache_utils.py:1087] GPU KV cache size: 567,978 tokens
(EngineCore pid=1) INFO [kv_cache_utils.py:1091] Maximum concurrency for 131,072 tokens per request: 4.33x
"""


def explained(name, engine, text, kv_dtype="bf16", **asked):
    model = LOADED.get(name) or api.load_model(name)
    kv_format, state = engine_formats(model, parse_allocator(engine.name, engine=engine), BF16_KV, HF_STATE)
    kv_format = parse_kv_format(kv_dtype, model)
    served = Served(model=model, engine=engine, kv_format=kv_format, state_format=state, **asked)
    return explain_log(served, read_log(text))


def test_a_log_is_explained_line_by_line():
    log = VLLM_LOG.replace("2096", "1568").replace("567,978", "91,392").replace("4.33x", "0.70x")
    lines = explained("qwen3.5-27b", VLLM(), log.replace("5.98", "8.50"), "fp8")
    assert [line.unit for line in lines] == ["tokens", "tokens", "x"]
    assert lines[0].predicted == lines[0].logged == 1568
    assert lines[0].reason == "exact"
    assert all(line.reason for line in lines)


def test_old_and_new_reporting_are_told_apart():
    text = "Available KV cache memory: 24.54 GiB\nGPU KV cache size: {} tokens\n"
    text += "Maximum concurrency for 131,072 tokens per request: 1.99x"
    old, _ = explained("gemma-4-31b", VLLM(), text.format("26,800"))
    new, _ = explained("gemma-4-31b", VLLM(), text.format("260,305"))
    assert (old.predicted, "up to v0.20" in old.reason) == (26_800, True)
    assert (new.predicted, "since about v0.21" in new.reason) == (260_305, True)


def test_another_dtype_or_number_of_ranks_is_named_as_the_reason():
    text = "Available KV cache memory: 10.00 GiB\nGPU KV cache size: {} tokens"
    half, quarter = 81_920 * 2, 81_920 * 4
    assert explained("llama-3.1-8b", VLLM(), text.format(half))[0].reason == "as with --kv-dtype fp8"
    assert explained("llama-3.1-8b", VLLM(), text.format(quarter))[0].reason == "as with --tp 4"


def test_the_fewest_blocks_over_the_ranks_decide():
    text = "Available KV cache memory: 8.69 GiB\nAvailable KV cache memory: 7.46 GiB\n"
    (line,) = explained("llama-3.1-8b", VLLM(), text + "GPU KV cache size: 61,104 tokens")
    assert line.difference_pct == pytest.approx(0, abs=0.1)
    assert "fewest blocks" in line.reason


def test_what_is_needed_and_the_longest_request_are_predicted():
    text = (
        "max seq len (200000), (24.41 GiB KV cache is needed, which is larger than the available KV cache "
        "memory (12.00 GiB). ... the estimated maximum model length is 98304."
    )
    needed, longest = explained("llama-3.1-8b", VLLM(), text)
    assert (needed.predicted, longest.predicted) == (pytest.approx(24.41, abs=0.005), 98_304)


def test_sglangs_lines_are_explained_and_older_builds_named():
    text = "KV Cache is allocated. #tokens: 975424, KV size: {} GB"
    (line,) = explained("deepseek-v3.2", SGLang(), text.format("43.67"), "fp8")
    assert line.reason == "equal within the digits printed"
    (line,) = explained("deepseek-v3.2", SGLang(), text.format("36.35"), "fp8")
    assert "older build" in line.reason


def test_llama_cpps_lines_are_explained():
    text = (
        "llama_context: n_seq_max     = 4\n"
        "llama_kv_cache: size = 16384.00 MiB (262144 cells,  16 layers,  4/1 seqs), K (f16): 8192.00 MiB,"
        " V (f16): 8192.00 MiB\n"
        "llama_memory_recurrent: size =  598.50 MiB (     4 cells,  64 layers,  4 seqs), R (f32): 22.50 MiB\n"
    )
    lines = explained("qwen3.5-27b", LlamaCpp(), text)
    assert [line.predicted for line in lines] == [16_384, 598.5]
    old = "n_ctx = 32768\nKV self size  = 4352.00 MiB, K (q8_0): 2176.00 MiB, V (q8_0): 2176.00 MiB"
    (line,) = explained("llama-3.1-8b", LlamaCpp(), old.replace("4352", "2176").replace("2176", "1088", 2))
    assert line.predicted == 2176
    trimmed = "n_ctx = 131072\nKV self size = 63488.00 MiB, K (f16): 31744.00 MiB, V (f16): 31744.00 MiB"
    (line,) = explained("gemma-3-27b", LlamaCpp(), trimmed)
    assert "--swa-full" in line.reason


def test_a_decimal_comma_is_a_point():
    (line,) = read_log("KV self size  = 2160,00 MiB, c^KV (f16): 2160,00 MiB, kv^T: not used").lines
    assert line.numbers[0] == 2160 * MIB


@both
def test_what_an_engine_will_log_is_read_back_as_equal(model, engine):
    """The lines that are predicted are those that are understood, in an engine's own words."""
    made = plain_engine(engine, max_model_len=8192)
    context = {"context": figures(model, made, 8 * GIB).max_model_len} if engine == "llama.cpp" else {}
    lines = figures(model, made, 8 * GIB).lines
    said = explained(model.name, made, "\n".join(lines), available_bytes=8 * GIB, **context)
    assert all(line.reason.startswith(("exact", "equal")) for line in said), said
    named = {line.line for line in said}
    skipped = [line for line in lines if not any(text in line for text in named)]
    assert all("Available KV cache memory" in line for line in skipped)


def test_the_lines_of_vllms_older_releases_are_explained():
    """Source: https://github.com/vllm-project/vllm/issues/10517, 29k on an RTX 3090."""
    text = (
        "kv_cache_size=2.89GiB gpu_memory_utilization=0.90\n# {} blocks: 1478, # CPU blocks: 2048\n"
        "The model's max seq len (29000) is larger than the maximum number of tokens that can be stored in"
        " KV cache (23648). Try increasing `gpu_memory_utilization`"
    )
    for device in ("GPU", "cuda"):
        blocks, swapped, tokens = explained("llama-3.1-8b", VLLM(), text.format(device))
        assert (blocks.logged, tokens.logged) == (1478, 23_648)
        assert blocks.reason == tokens.reason == "equal within the digits printed"
        assert swapped.predicted == swapped.logged == 2048


def test_blocks_in_host_memory_tell_the_ranks():
    """Source: https://github.com/OpenRLHF/OpenRLHF/issues/336, Llama-3-70B: 378 and 1,638 blocks."""
    (_, line) = explained("llama-3.1-70b", VLLM(), "# GPU blocks: 378, # CPU blocks: 1638", tp=2)
    assert line.predicted == 1638


def test_sglangs_states_are_explained_with_their_spare_slot():
    """48 layers of 48 heads of 128 x 128 in fp32 are 144 MiB a slot, 361 of them 50.77 GiB.

    Source: a public start-up log of Qwen3.8-27B, of the shape of Qwen3.5-27B, on SGLang.
    """
    sizes = "conv_state size: 0.99GB, ssm_state size: 50.77GB"
    text = f"Mamba Cache is allocated. max_mamba_cache_size: 360, {sizes}"
    conv, ssm = explained("qwen3.5-27b", SGLang(), text)
    assert ssm.predicted == 361 * 144 / 1024
    assert conv.reason == ssm.reason == "equal within the digits printed"
    for line in explained("qwen3.5-27b", SGLang(), f"Mamba Cache is allocated. {sizes}"):
        assert (line.predicted, "how many" in line.reason) == (None, True)


def test_llama_cpps_buffers_on_several_devices_are_one_cache():
    text = "n_ctx = 4096\n{0}CUDA0 KV buffer size =   256.00 MiB\n{0}CUDA1 KV buffer size =   256.00 MiB"
    (line,) = explained("llama-3.1-8b", LlamaCpp(), text.format("llama_kv_cache: "))
    assert (line.predicted, line.logged, line.reason) == (512, 512, "exact")
    whole = "\nKV self size  =  512.00 MiB, K (f16):  256.00 MiB, V (f16):  256.00 MiB"
    assert len(explained("llama-3.1-8b", LlamaCpp(), text.format("init: ") + whole)) == 1


@pytest.mark.parametrize(
    ("text", "engine"),
    [
        ("max_total_num_tokens=228520, max_running_requests=72", "sglang"),
        ("llama_kv_cache: CUDA0 KV buffer size =   256.00 MiB", "llama.cpp"),
        ("# cuda blocks: 5678, # CPU blocks: 1310", "vllm"),
        ("Using 10718 tokens in paged KV cache.", "tensorrt-llm"),
    ],
)
def test_a_line_tells_its_engine(kvroof, tmp_path, text, engine):
    (tmp_path / "x.log").write_text(text)
    (report,) = kvroof("kv", "llama-3.1-8b", "--log", tmp_path / "x.log", "--json").json
    assert report["allocator"] == engine
    assert report["log"]


def test_a_log_of_the_memory_alone_says_that_nothing_follows(kvroof, tmp_path):
    (tmp_path / "x.log").write_text("Available KV cache memory: 5.38 GiB")
    answer = kvroof("kv", "llama-3.1-8b", "--log", tmp_path / "x.log")
    assert (answer.code, answer.out) == (2, "")
    assert "5.38 GiB" in answer.err
    assert "--available" in answer.err


def test_tokens_that_were_not_asked_for_are_no_more_than_are_served(kvroof, tmp_path):
    (tmp_path / "x.log").write_text("Available KV cache memory: 5.38 GiB\n# GPU blocks: 2754, #")
    served = ("--engine", "vllm", "--max-model-len", 4096, "--json")
    assert kvroof("kv", "llama-3.1-8b", *served).json[0]["tokens"] == 4096
    assert kvroof("kv", "llama-3.1-8b", "--log", tmp_path / "x.log", *served).json[0]["log"]
    assert kvroof("fit", "llama-3.1-8b", "h100-sxm", *served).json["tokens"] == 4096
    asked = kvroof("kv", "llama-3.1-8b", "--tokens", 8192, *served)
    assert (asked.code, "8192 tokens are more than the 4096 served" in asked.err) == (2, True)
    (reserved,) = kvroof("kv", "openai-community/gpt2-medium", "--allocator", "reserved", "--json").json
    assert reserved["tokens"] == 1024


def test_tensorrt_llms_tokens_are_predicted_from_its_bytes():
    text = "[MemUsageChange] Allocated 10.00 GiB for max tokens in paged KV cache (81920).\n"
    (line,) = explained("llama-3.1-8b", TensorRTLLM(), text)
    assert (line.predicted, line.reason) == (81_920, "exact")
    (line,) = explained("llama-3.1-8b", TensorRTLLM(), "Using 10718 tokens in paged KV cache.")
    assert (line.predicted, "--available" in line.reason) == (None, True)


def test_kv_reads_a_log_from_a_file_or_standard_input(kvroof, tmp_path, monkeypatch):
    log = tmp_path / "vllm.log"
    log.write_text("Available KV cache memory: 5.38 GiB\nGPU KV cache size: 78,384 tokens\n")
    (report,) = kvroof("kv", "gpt-oss-120b", "--log", log, "--json").json
    (line,) = report["log"]
    assert (line["logged"], report["allocator"]) == (78_384, "vllm")
    assert abs(line["difference_pct"]) < 0.1
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(log.read_bytes())))
    assert json.loads(kvroof("kv", "gpt-oss-120b", "--log", "-", "--json").out)[0]["log"] == [line]
    assert "line by line" in kvroof("kv", "gpt-oss-120b", "--log", log).out


def test_a_log_names_ranks_and_dtype_itself(kvroof, tmp_path):
    log = tmp_path / "vllm.log"
    log.write_text(
        "Initializing a V1 LLM engine with config: tensor_parallel_size=4, kv_cache_dtype=fp8_e4m3, x\n"
        "Available KV cache memory: 10.00 GiB\nGPU KV cache size: 655,360 tokens\n"
    )
    (report,) = kvroof("kv", "llama-3.1-8b", "--log", log, "--json").json
    assert report["log"][0]["reason"] == "exact"


@pytest.mark.parametrize(
    "text",
    ["", "nothing of the kind", "\x00\xff", "GPU KV cache size: 99999999999999999999999 tokens", "n_ctx = 5"],
)
def test_a_log_without_a_line_about_the_cache_is_refused(kvroof, tmp_path, text):
    log = tmp_path / "x.log"
    log.write_bytes(text.encode("latin-1"))
    answer = kvroof("kv", "llama-3.1-8b", "--log", log)
    assert answer.code == 2
    assert len(answer.err.strip().splitlines()) == 1


def test_a_log_that_is_missing_too_large_or_another_engines_is_refused(kvroof, tmp_path):
    big, other = tmp_path / "big.log", tmp_path / "other.log"
    with big.open("wb") as file:
        file.truncate(17 * MIB)
    other.write_text("KV Cache is allocated. #tokens: 975424, KV size: 43.67 GB")
    for file, engine in ((tmp_path / "none", "vllm"), (tmp_path, "vllm"), (big, "vllm"), (other, "vllm")):
        answer = kvroof("kv", "llama-3.1-8b", "--log", file, "--engine", engine)
        assert (answer.code, len(answer.err.strip().splitlines())) == (2, 1)
    assert kvroof("kv", "llama-3.1-8b", "gemma-2-2b", "--log", other).code == 2


def test_a_long_log_is_read_in_bounded_memory():
    text = "GPU KV cache size: 26,800 tokens\n" * (MAX_LINES_KEPT + 5)
    assert len(read_log(text).lines) == MAX_LINES_KEPT
    assert read_log("x" * 10**6 + "GPU KV cache size: 26,800 tokens").lines == ()


SAID = [
    *VLLM_LOG.strip().splitlines(),
    "max seq len (30000), (6.66 GiB KV cache is needed, which is larger than the available KV cache memory"
    " (5.44 GiB). estimated maximum model length is 13528",
    "# GPU blocks: 1952, # CPU blocks: 2048",
    "Add 3 padding layers, may waste at most 6.25% KV cache memory",
    "Padding mamba page size by 0.13%",
]


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.lists(st.sampled_from(SAID), min_size=1, max_size=5))
def test_a_mutated_log_is_explained_or_refused(seed, lines):
    """Digits and characters are changed, doubled and dropped: an answer or a typed error."""
    source = random.Random(seed)
    characters = list("\n".join(lines))
    for _ in range(source.randrange(8)):
        at = source.randrange(len(characters))
        characters[at] = source.choice(
            ["", "9" * source.randrange(30), "-", "\x00", ".", ",", "0", "\n", "é"]
        )
    with contextlib.suppress(KvroofError):
        lines = explained("qwen3.5-27b", VLLM(), "".join(characters), "fp8")
        assert all(line.logged >= 0 and line.reason for line in lines)


def test_layouts_reach_the_engine():
    model = LOADED["llama-3.1-8b"]
    report = api.kv(model, tokens=160, allocator=parse_allocator("vllm"), layout=Layout(tp=4))
    assert report.allocated_bytes == 4 * report.bytes_per_rank


@pytest.mark.parametrize("odd", ["1e400f16", "9", "\u00b2", "1.2.3", ""])
def test_a_cache_type_that_is_none_is_passed_over(odd):
    line = (
        "llama_kv_cache: size = 2560.00 MiB (131072 cells, 5 layers, 1/1 seqs), K ({}): 1280.00 MiB, V (f16)"
    )
    good, read = (read_log(line.format(kind)).lines[0] for kind in ("f16", odd))
    assert (read.numbers, read.types) == (good.numbers, ())
