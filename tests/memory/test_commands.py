"""The line that starts an engine: its own words, the roles of two pools, what the ledger has counted."""

import shlex
from dataclasses import replace

import pytest

from kvroof.memory.commands import Served, pool_flags, pool_lines, start_line
from kvroof.spec.parallel import Layout

SERVED = Served(layout=Layout(tp=4, pp=2), tokens=5000, seqs=64, step_tokens=2048, kv_dtype="fp8")


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("vllm", "vllm serve ORG/M --max-model-len 5000 --max-num-seqs 64 --max-num-batched-tokens 2048"
         " --tensor-parallel-size 4 --pipeline-parallel-size 2 --kv-cache-dtype fp8"),
        ("sglang", "python -m sglang.launch_server --model-path ORG/M --context-length 5000"
         " --max-running-requests 64 --chunked-prefill-size 2048 --tp-size 4 --pp-size 2"),
        ("tensorrt-llm", "trtllm-serve ORG/M --max_seq_len 5000 --max_batch_size 64 --max_num_tokens 2048"
         " --tp_size 4 --pp_size 2 --extra_llm_api_options FILE"),
    ],
)  # fmt: skip
def test_a_pool_is_started_by_one_line_in_the_engines_own_words(engine, words):
    line, *rest = pool_lines(engine, "ORG/M", SERVED)
    assert set(shlex.split(words)) <= set(shlex.split(line))
    assert all(note.startswith("# FILE: ") for note in rest)
    assert bool(rest) == (engine == "tensorrt-llm"), "what is no flag goes into its file"


@pytest.mark.parametrize(
    ("engine", "prefill", "decode"),
    [
        (
            "vllm",
            """--kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_producer"}'""",
            """--kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_consumer"}'""",
        ),
        ("sglang", "--disaggregation-mode prefill", "--disaggregation-mode decode"),
    ],
)
def test_the_roles_of_two_pools_are_the_documented_ones(engine, prefill, decode):
    """vLLM's NixlConnector guide and SGLang's guide to PD disaggregation."""
    for role, flag in (("prefill", prefill), ("decode", decode)):
        (line,) = pool_lines(engine, "m", replace(SERVED, role=role))
        assert line.endswith(flag)
    assert "disaggregation" not in start_line(engine, "m", pool_flags(engine, SERVED))


@pytest.mark.parametrize("tokens", [100, 20_000])
def test_where_prompts_run_whole_a_step_is_long_and_tensorrt_llm_gets_the_longest(tokens):
    served = replace(SERVED, tokens=tokens, step_tokens=None)
    assert "--max-num-batched-tokens 8192" in pool_flags("vllm", served)
    assert f"--max_num_tokens {max(tokens, 8192)}" in pool_flags("tensorrt-llm", served)


def test_weights_that_the_checkpoint_does_not_hold_are_quantised_or_asked_for():
    assert "--quantization fp8" in pool_flags("vllm", replace(SERVED, weights_dtype="fp8"))
    assert "--quantization fp8" not in pool_flags("vllm", SERVED)
    *_, note = pool_lines("vllm", "m", replace(SERVED, weights_dtype="int4"))
    assert note == "# the checkpoint has to hold its weights in int4"


@pytest.mark.parametrize(
    ("engine", "flag"), [("vllm", "--max-num-seqs"), ("tensorrt-llm", "--max_batch_size")]
)
def test_each_group_of_data_parallelism_schedules_its_own_sequences(engine, flag):
    flags = pool_flags(engine, replace(SERVED, layout=Layout(tp=1, dp=8, ep=8), seqs=60))
    assert f"{flag} 8" in flags


def test_fit_tells_the_engine_of_the_sequences_that_the_ledger_counted(kvroof):
    asked = ("fit", "llama-3.1-8b", "h100-sxm", "--engine", "vllm", "--tokens", 512, "--json")
    given = kvroof(*asked, "--seqs", 16).json
    assert (given["seqs"], given["admitted_seqs"]) == (16, 16)
    assert "--max-num-seqs 16" in given["flags"]
    assert given["command"].startswith("vllm serve meta-llama/")
    assert all(flag in given["command"] for flag in given["flags"])
    free = kvroof(*asked).json
    assert free["max_seqs"] > 256, "more fit than the logits and block tables are counted for"
    assert free["admitted_seqs"] == 256
    assert "--max-num-seqs 256" in free["flags"]


def test_a_pipeline_is_told_of_what_all_its_stages_hold(kvroof):
    asked = ("fit", "llama-3.1-70b", "h100-sxm", "--engine", "vllm", "--pp", 4, "--json")
    found = kvroof(*asked).json
    assert f"--max-num-seqs {found['admitted_seqs']}" in found["flags"]
    assert found["admitted_seqs"] <= found["max_seqs"]
    assert found["flags"][-1] == "--pipeline-parallel-size 4"
