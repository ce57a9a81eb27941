"""What each option of `kv` and `fit` does to the bytes."""

import pytest

M, H = "llama-3.1-8b", "h100-sxm"
GIB = 2**30


@pytest.fixture
def kv(kvroof):
    """Return a function that asks `kvroof kv` of Llama-3.1-8B, unless told another."""

    def ask(*args, model=M):
        answer = kvroof("kv", model, *args, "--json")
        assert (answer.code, answer.err) == (0, "")
        return answer.json[0]

    return ask


@pytest.mark.parametrize(
    ("dtype", "per_token"),
    [
        ("auto", 131_072),
        ("bf16", 131_072),
        ("fp16", 131_072),
        ("f16", 131_072),
        ("fp32", 262_144),
        ("fp8", 65_536),
        ("int8", 65_536),
        ("q8_0", 32 * 2 * 1024 // 32 * 34),
        ("q5_1", 32 * 2 * 1024 // 32 * 24),
        ("q4_0", 32 * 2 * 1024 // 32 * 18),
        ("iq4_nl", 32 * 2 * 1024 // 32 * 18),
        ("q8_0/iq4_nl", 32 * 1024 // 32 * (34 + 18)),
        ("f16/q8_0", 32 * 1024 // 32 * (64 + 34)),
        ("fp8/bf16", 98_304),
    ],
)
def test_keys_and_values_each_take_the_bytes_of_their_own_dtype(kv, dtype, per_token):
    """ggml stores 32 elements in 34 (q8_0), 24 (q5_1) and 18 (q4_0, iq4_nl) bytes, scales included."""
    assert kv("--kv-dtype", dtype)["bytes_per_token"] == per_token


def test_a_pair_of_equal_dtypes_is_that_dtype(kv):
    assert kv("--kv-dtype", "q8_0/q8_0") == kv("--kv-dtype", "q8_0")


def test_the_dtype_that_is_used_is_said(kv):
    assert kv()["kv_dtype"] == "bf16"
    assert kv("--kv-dtype", "q8_0/iq4_nl")["kv_dtype"] == "q8_0/iq4_nl"
    assert kv("--kv-dtype", "torch.float8_e4m3fn")["kv_dtype"] == "fp8"


def test_ranks_beyond_the_kv_heads_hold_copies(kv):
    eight, sixteen = kv("--tp", 8), kv("--tp", 16)
    assert eight["bytes_per_rank"] * 8 == eight["payload_bytes"]
    assert sixteen["bytes_per_rank"] == eight["bytes_per_rank"]
    assert sixteen["payload_bytes"] == eight["payload_bytes"]


@pytest.mark.parametrize("tp", [1, 2, 8, 16])
def test_a_latent_is_held_whole_by_every_rank(kv, tp):
    report = kv("--tp", tp, model="deepseek-v3")
    assert report["bytes_per_rank"] == report["payload_bytes"]


def test_a_shared_prefix_is_allocated_in_whole_blocks_and_the_rest_is_copied(kv):
    """20 shared of 50 tokens: one block of 16 is common, each of 3 sequences has 3 more of its own."""
    report = kv("--tokens", 50, "--seqs", 3, "--shared-prefix", 20)
    assert report["payload_bytes"] == (3 * 30 + 20) * 131_072
    assert report["num_blocks"] == 1 + 3 * 3
    assert report["allocated_bytes"] == 10 * 16 * 131_072


def test_one_sequence_gains_nothing_by_sharing(kv):
    alone, shared = kv("--tokens", 100), kv("--tokens", 100, "--shared-prefix", 64)
    assert shared["allocated_bytes"] == alone["allocated_bytes"]
    assert shared["payload_bytes"] == alone["payload_bytes"]


def test_a_window_keeps_of_a_shared_prefix_only_what_it_still_sees(kv):
    """Mistral-7B-v0.1 sees 4,096 tokens: a prefix that has left the window of all is stored by none."""
    gone = kv("--tokens", 9000, "--seqs", 4, "--shared-prefix", 1000, model="mistral-7b-v0.1")
    assert gone["payload_bytes"] == 4 * 4096 * 131_072
    seen = kv("--tokens", 4096, "--seqs", 4, "--shared-prefix", 1000, model="mistral-7b-v0.1")
    assert seen["payload_bytes"] == (4 * 3096 + 1000) * 131_072


@pytest.mark.parametrize(
    ("policy", "allocated"),
    [("payload", 3 * 33), ("paged", 3 * 48), ("padded", 3 * 33), ("reserved", 3 * 131_072)],
)
def test_the_allocator_decides_what_is_set_aside(kv, policy, allocated):
    report = kv("--tokens", 33, "--seqs", 3, "--allocator", policy)
    assert report["payload_bytes"] == 99 * 131_072
    assert report["allocated_bytes"] == allocated * 131_072


def test_tokens_beyond_the_model_s_positions_are_answered_and_said(kv):
    report = kv("--tokens", 200_000)
    assert report["payload_bytes"] == 200_000 * 131_072
    assert any("max_position_embeddings" in line for line in report["assumptions"])
    assert not any("max_position_embeddings" in line for line in kv()["assumptions"])


def test_ignored_keys_count_as_absent_and_may_be_several(kvroof, write_config):
    path = write_config(expert_magic=3, cache_magic=4)
    assert kvroof("kv", path, "--ignore-key", "expert_magic").code == 2
    both = kvroof("kv", path, "--ignore-key", "expert_magic", "--ignore-key", "cache_magic", "--json")
    assert both.json[0]["bytes_per_token"] == 131_072


def test_every_verb_that_reads_a_config_takes_ignore_key(kvroof, write_config):
    path = write_config(expert_magic=3)
    for verb in (["kv", path], ["fit", path, H], ["estimate", path, H], ["compare", path], ["show", path]):
        assert kvroof(*verb).code == 2
        assert kvroof(*verb, "--ignore-key", "expert_magic").code == 0


def test_an_ignored_key_that_decides_the_size_is_missed(kvroof, config_s):
    answer = kvroof("kv", config_s, "--ignore-key", "hidden_size")
    assert answer.code == 2
    assert "hidden_size" in answer.err


def test_a_given_capacity_stands_in_for_a_machine_and_overrides_it(kvroof):
    alone = kvroof("fit", M, "--capacity", "40GB", "--json").json
    beside = kvroof("fit", M, H, "--capacity", "40GB", "--json").json
    assert alone["capacity_bytes"] == 40 * 10**9
    assert alone == beside


def test_the_capacity_is_what_software_sees_where_that_is_known(kvroof):
    """An H100's driver shows 81,559 MiB, which is more than 80 GB; a TPU v5e's is not known."""
    seen = kvroof("fit", M, H)
    assert "visible" in seen.out
    assert kvroof("fit", M, H, "--json").json["capacity_bytes"] == 81_559 * 2**20
    nominal = kvroof("fit", M, "tpu-v5e", "--weights-dtype", "int4")
    assert "nominal" in nominal.out


@pytest.mark.parametrize(
    ("text", "size"),
    [("22GiB", 22 * GIB), ("22 GiB", 22 * GIB), ("80 GB", 80 * 10**9), ("13.04GiB", 14_001_593_385),
     ("80000000000", 80 * 10**9), ("1TB", 10**12)],
)  # fmt: skip
def test_sizes_are_read_as_people_write_them_and_round_to_whole_bytes(kvroof, text, size):
    assert kvroof("fit", M, "--capacity", text, "--json").json["capacity_bytes"] == size


def test_weights_default_to_the_count_and_shrink_with_their_dtype(kvroof):
    def weights(*args):
        return kvroof("fit", M, H, *args, "--json").json["weights_bytes"]

    assert weights() == 2 * 8_030_261_248
    assert weights("--weights-dtype", "fp8") < 0.6 * weights()
    assert weights("--weights", "13GiB") == 13 * GIB
    assert weights("--weights", 0) == 0


def test_tensor_parallel_shards_the_weights_of_the_ledger(kvroof):
    whole = kvroof("fit", "llama-3.1-70b", H, "--json").json
    shard = kvroof("fit", "llama-3.1-70b", H, "--tp", 4, "--json").json
    assert not whole["fits"]
    assert shard["fits"]
    assert shard["weights_bytes"] == pytest.approx(whole["weights_bytes"] / 4, rel=1e-3)


def test_more_devices_is_a_way_out_that_fits(kvroof):
    ways = {way["change"]: way for way in kvroof("fit", "llama-3.1-70b", H, "--json").json["ways_out"]}
    assert kvroof("fit", "llama-3.1-70b", H, *ways["tp"]["option"].split()).code == 0
    assert ways["tp"]["from"] == 1


def test_every_way_out_of_a_model_too_large_for_its_machine_fits(kvroof):
    asked = ("fit", "llama-3.1-70b", H, "--tokens", 4096, "--seqs", 4)
    answer = kvroof(*asked, "--json")
    assert answer.code == 1
    options = [way["option"] for way in answer.json["ways_out"]]
    assert options
    for option in options:
        if option.startswith("--"):
            assert kvroof(*asked, *option.split()).code == 0, option


def test_a_chunked_prefill_and_a_cached_prefix_are_taken_into_account(kvroof):
    asked = ("estimate", M, H, "--batch", 1, "--osl", 2, "--json")
    whole = kvroof(*asked).json["prefill_ops"]
    chunked = kvroof(*asked, "--chunk", 512).json["prefill_ops"]
    cached = kvroof(*asked, "--cached-prefix", 1024).json["prefill_ops"]

    def work(ops):
        return sum(op["flops"] for op in ops if op["name"].startswith("attention"))

    assert work(chunked) == work(whole) > work(cached) > 0
