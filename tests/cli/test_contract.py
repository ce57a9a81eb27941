"""The keys a program reads, and the exit codes: a public interface, kept stable."""

import itertools

import pytest

M, H = "llama-3.1-8b", "h100-sxm"

KEYS = {
    ("kv", M, "deepseek-v3"): """
        0.model 0.tokens 0.seqs 0.kv_dtype 0.bytes_per_token 0.fixed_bytes_per_seq 0.payload_bytes
        0.allocated_bytes 0.num_blocks 0.empty_slots 0.bytes_per_rank 0.kinds 0.kinds.0.kind
        0.kinds.0.layers 0.kinds.0.bytes_per_token 0.kinds.0.window 0.kinds.0.state_bytes
        0.params_total 0.assumptions 1.payload_bytes
    """,
    ("fit", M, H): """
        fits capacity_bytes budget_bytes weights_bytes kv_bytes reserve_bytes total_bytes headroom_bytes
        max_seqs max_tokens kv_capacity_tokens ways_out assumptions
    """,
    ("fit", M, "--capacity", "16GiB"): "ways_out.0.change ways_out.0.from ways_out.0.to ways_out.0.option",
    ("estimate", M, H): """
        prefill_s ttft_s tpot_s e2e_s tokens_per_s tokens_per_s_per_device bound.prefill bound.decode
        mfu.prefill mfu.decode mbu.prefill mbu.decode lower_bound_s.prefill lower_bound_s.decode devices
        calibration interval prefill_ops.0.name decode_ops.0.name decode_ops.0.count decode_ops.0.flops
        decode_ops.0.hbm_bytes decode_ops.0.net_bytes decode_ops.0.seconds decode_ops.0.bound
        prefill_ops.0.bound fits assumptions
    """,
    ("compare", M, "gemma-3-27b", "--hw", H): """
        0.model 0.bytes_per_token 0.payload_bytes 0.tpot_s 0.decode_bound 0.max_seqs 1.model
    """,
    ("list", "models"): "0.name 0.hub_id 0.params_total 0.source",
    ("list", "hardware"): "0.name 0.memory_bytes 0.hbm_bytes_per_s 0.peak_flops_per_s 0.disagreements",
    ("show", "gemma-3-27b"): "name params_total params_active kinds.0.kind layers.0.layers source hub_id",
    ("show", H): "name memory_bytes.value memory_bytes.source hbm_bytes_per_s.source peak_flops_per_s.bf16",
    ("doctor",): "kvroof python packages.jax devices calibrations missing",
}


def lookup(answer, path):
    for part in path.split("."):
        answer = answer[int(part)] if isinstance(answer, list) else answer[part]
    return answer


@pytest.mark.parametrize("args", KEYS, ids=" ".join)
def test_the_promised_keys_are_there(kvroof, args):
    answer = kvroof(*args, "--json")
    assert answer.err == ""
    for path in KEYS[args].split():
        lookup(answer.json, path)


def test_kv_answers_a_list_with_an_entry_per_model_in_the_order_asked(kvroof):
    names = ["gemma-3-27b", M, "deepseek-v3"]
    assert [report["model"] for report in kvroof("kv", *names, "--json").json] == names


def test_compare_without_a_machine_has_no_times(kvroof):
    (row,) = kvroof("compare", M, "--json").json
    assert (row["tpot_s"], row["decode_bound"], row["max_seqs"]) == (None, None, None)


def test_an_uncalibrated_estimate_says_so_with_null(kvroof):
    for choice in ([], ["--calibration", "none"]):
        answer = kvroof("estimate", M, H, *choice, "--json").json
        assert answer["calibration"] is None or choice == []
        assert (answer["interval"] is None) == (answer["calibration"] is None)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_what_bounds_a_phase_is_one_of_four(kvroof, phase):
    answer = kvroof("estimate", M, H, "--calibration", "none", "--json").json
    assert answer["bound"][phase] in {"compute", "hbm", "network", "overhead"}
    assert {op["bound"] for op in answer[f"{phase}_ops"]} <= {"compute", "hbm", "network", "overhead"}
    assert answer["lower_bound_s"][phase] <= answer[{"prefill": "ttft_s", "decode": "tpot_s"}[phase]]
    seconds = sum(op["seconds"] for op in answer[f"{phase}_ops"])
    assert seconds == pytest.approx(answer[{"prefill": "prefill_s", "decode": "tpot_s"}[phase]])


def test_the_ledger_adds_up(kvroof):
    for args in ((M, H), (M, "--capacity", "16GiB"), ("llama-3.1-70b", H, "--tp", 4)):
        ledger = kvroof("fit", *args, "--reserve", "3GiB", "--json").json
        parts = ledger["weights_bytes"] + ledger["kv_bytes"] + ledger["reserve_bytes"]
        assert ledger["total_bytes"] == parts
        assert ledger["headroom_bytes"] == ledger["budget_bytes"] - parts
        assert ledger["fits"] == (ledger["headroom_bytes"] >= 0)


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("kv", M), 0),
        (("fit", M, H), 0),
        (("fit", M, "--capacity", "16GiB"), 1),
        (("fit", "llama-3.1-405b", H), 1),
        (("estimate", M, H), 0),
        (("estimate", "llama-3.1-70b", H), 1),
        (("compare", M, "llama-3.1-405b", "--hw", H), 0),
        (("list", "models"), 0),
        (("show", M), 0),
        (("doctor",), 0),
        (("--version",), 0),
        (("--help",), 0),
        (("kv", "no-such-model"), 2),
        (("kv", M, "--tp", "3"), 2),
        (("nonsense",), 2),
        ((), 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_exit_0_is_answered_1_is_no_and_2_is_bad_input(kvroof, args, code):
    answer = kvroof(*args)
    assert answer.code == code
    assert (answer.err == "") == (code < 2 or not args)


def test_an_estimate_that_does_not_fit_still_gives_its_times(kvroof):
    answer = kvroof("estimate", "llama-3.1-70b", H, "--json")
    assert (answer.code, answer.json["fits"]) == (1, False)
    assert answer.json["tpot_s"] > 0
    assert answer.json["memory"]["ways_out"]


def test_the_catalog_names_and_aliases_of_the_contract_are_known(kvroof):
    machines = {machine["name"] for machine in kvroof("list", "hardware", "--json").json}
    wanted = "h100-sxm h200-sxm a100-sxm-80gb b200-sxm gb200-nvl72 mi300x tpu-v5e rtx-4090".split()
    assert set(wanted) <= machines
    for alias in ("meta-llama/Llama-3.1-8B", "meta-llama/Meta-Llama-3.1-8B", "LLAMA-3.1-8B"):
        assert kvroof("kv", alias, "--json").json[0]["model"] == M


def test_every_listed_name_can_be_shown(kvroof):
    models = [entry["name"] for entry in kvroof("list", "models", "--json").json]
    machines = [entry["name"] for entry in kvroof("list", "hardware", "--json").json]
    for name in itertools.chain(models[::5], machines[::5]):
        assert kvroof("show", name, "--json").json["name"] == name
