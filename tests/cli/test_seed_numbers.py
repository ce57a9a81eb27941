"""The worked numbers of the seed lessons through `kvroof kv` and `kvroof fit --json`, a test per row."""

import pytest

KIB, MIB, GIB = 2**10, 2**20, 2**30
PER_TOKEN = 131_072
TIGHT = "--capacity 22GiB --weights 13.04GiB --reserve 3GiB --utilization 1".split()
"""Row 6: 22 GiB, of which 13.04 are weights and 3 are reserved."""


@pytest.fixture
def kv(kvroof, config_s):
    """Return a function that asks `kvroof kv`, of configuration S unless told another."""

    def ask(*args, model=config_s):
        answer = kvroof("kv", model, *args, "--json")
        assert (answer.code, answer.err) == (0, "")
        (report,) = answer.json
        return report

    return ask


@pytest.fixture
def fit(kvroof, config_s):
    """Return a function that asks `kvroof fit` for row 6's budget, and gives exit code and ledger."""

    def ask(*args, model=config_s):
        answer = kvroof("fit", model, *TIGHT, *args, "--json")
        assert answer.err == ""
        return answer.code, answer.json

    return ask


def test_row_1_a_token_is_128_kib(kv):
    assert kv("--tokens", 8192)["bytes_per_token"] == PER_TOKEN == 128 * KIB


@pytest.mark.parametrize(("tokens", "seqs", "gib"), [(8192, 1, 1), (32768, 1, 4), (8192, 8, 8)])
def test_row_2_payload_is_tokens_times_sequences_times_bytes_of_a_token(kv, tokens, seqs, gib):
    assert kv("--tokens", tokens, "--seqs", seqs)["payload_bytes"] == gib * GIB


def test_row_3_keys_and_values_of_a_layer_add_up_over_the_layers(kv, write_config):
    one_layer = write_config("one", num_hidden_layers=1)
    assert kv("--tokens", 2048, "--seqs", 8, model=one_layer)["payload_bytes"] == 67_108_864
    assert kv("--tokens", 2048, "--seqs", 8)["payload_bytes"] == 2_147_483_648


@pytest.mark.parametrize(
    ("heads", "tokens", "seqs", "gib"),
    [(32, 2048, 8, 8), (8, 8192, 8, 8), (8, 2048, 16, 4)],
)
def test_row_4_payload_is_linear_in_kv_heads_tokens_and_sequences(kv, write_config, heads, tokens, seqs, gib):
    model = write_config("heads", num_key_value_heads=heads)
    assert kv("--tokens", tokens, "--seqs", seqs, model=model)["payload_bytes"] == gib * GIB


def test_row_5_growth_of_a_batch_is_per_token_and_per_kv_head(kv, config_mha):
    assert kv("--tokens", 2560, "--seqs", 8)["payload_bytes"] == 2560 * MIB
    assert kv("--tokens", 2560, "--seqs", 8, model=config_mha)["payload_bytes"] == 10 * GIB


def test_row_6_the_ledger_says_no_by_how_much_and_exits_1(fit):
    code, ledger = fit("--tokens", 2048, "--seqs", 8)
    assert (code, ledger["fits"], ledger["ways_out"]) == (0, True, [])
    code, ledger = fit("--tokens", 8192, "--seqs", 8)
    assert (code, ledger["fits"], ledger["kv_bytes"]) == (1, False, 8 * GIB)
    assert round(ledger["total_bytes"] / GIB, 4) == 24.04
    assert round(ledger["headroom_bytes"] / GIB, 4) == -2.04
    assert (ledger["max_seqs"], ledger["max_tokens"]) == (5, 6096)


def test_row_6_the_table_says_no_and_by_how_much(kvroof, config_s):
    answer = kvroof("fit", config_s, *TIGHT, "--tokens", 8192, "--seqs", 8)
    assert (answer.code, answer.err) == (1, "")
    assert answer.out.startswith("NO")
    assert "2.04 GiB short" in answer.out
    assert "-2.04 GiB" in answer.out
    for change in ("fewer sequences", "shorter", "fewer bytes", "fewer KV heads", "more memory"):
        assert change in answer.out


def test_row_6_each_way_out_fits_when_its_option_is_passed_and_a_step_beyond_it_does_not(fit, write_config):
    asked = ("--tokens", 8192, "--seqs", 8)
    _, ledger = fit(*asked)
    ways = {way["change"]: way for way in ledger["ways_out"]}
    assert set(ways) == {"seqs", "tokens", "kv_dtype", "num_kv_heads", "capacity_bytes"}

    def fits(*options, **where):
        code, answer = fit(*asked, *options, **where)
        assert answer["fits"] == (code == 0)
        return answer["fits"]

    def option(change):
        return ways[change]["option"].split()

    assert {change: ways[change]["from"] for change in ways} == {
        "seqs": 8, "tokens": 8192, "kv_dtype": "bf16", "num_kv_heads": 8, "capacity_bytes": 22 * GIB,
    }  # fmt: skip
    assert fits(*option("seqs"))
    assert not fits("--seqs", ways["seqs"]["to"] + 1)
    assert fits(*option("tokens"))
    assert not fits("--tokens", ways["tokens"]["to"] + 16)
    assert fits(*option("kv_dtype"))
    assert fits(*option("capacity_bytes"))
    assert not fits("--capacity", ways["capacity_bytes"]["to"] - 1)
    heads = ways["num_kv_heads"]["to"]
    assert fits(model=write_config("thin", num_key_value_heads=heads))
    assert not fits(model=write_config("thick", num_key_value_heads=2 * heads))


@pytest.mark.parametrize(("tokens", "blocks", "empty"), [(6, 2, 2), (7, 2, 1), (8, 2, 0), (9, 3, 3)])
def test_row_7_a_block_of_4_is_taken_whole_and_filled_before_the_next(kv, tokens, blocks, empty):
    report = kv("--tokens", tokens, "--block-size", 4)
    assert (report["num_blocks"], report["empty_slots"]) == (blocks, empty)
    assert report["allocated_bytes"] == blocks * 4 * PER_TOKEN


def paged(report):
    payload, allocated = report["payload_bytes"] / MIB, report["allocated_bytes"] / MIB
    return report["num_blocks"], payload, allocated, report["empty_slots"]


def test_row_9_18_tokens_take_2_blocks_of_16(kv):
    assert paged(kv("--tokens", 18, "--block-size", 16)) == (2, 2.25, 4, 14)


def test_row_10_33_tokens_take_3_blocks_of_16(kv):
    assert paged(kv("--tokens", 33, "--block-size", 16)) == (3, 4.125, 6, 15)


def test_row_11_two_requests_store_their_shared_prefix_once(kv):
    assert kv("--tokens", 6144, "--seqs", 2)["payload_bytes"] == 1536 * MIB
    assert kv("--tokens", 6144, "--seqs", 2, "--shared-prefix", 4096)["payload_bytes"] == GIB


def test_row_12_three_requests_store_their_shared_prefix_once(kv):
    assert kv("--tokens", 6144, "--seqs", 3)["payload_bytes"] == 2304 * MIB
    assert kv("--tokens", 6144, "--seqs", 3, "--shared-prefix", 4096)["payload_bytes"] == 1280 * MIB


@pytest.mark.parametrize(
    ("policy", "slots"),
    [
        ("--allocator payload", 2181),
        ("--allocator paged", (7 + 128 + 3) * 16),
        ("--allocator padded", 3 * 2048),
        ("--allocator reserved --max-model-len 4096", 3 * 4096),
        ("--allocator reserved", 3 * 131_072),
    ],
)
def test_row_16_ragged_payload_is_the_sum_and_what_is_allocated_is_another_account(kv, policy, slots):
    report = kv("--lengths", "100,2048,33", *policy.split())
    assert report["payload_bytes"] == 2181 * PER_TOKEN
    assert report["allocated_bytes"] == slots * PER_TOKEN
    assert report["empty_slots"] == slots - 2181


@pytest.mark.parametrize(("tp", "per_token"), [(1, 131_072), (2, 65_536), (8, 16_384), (16, 16_384)])
def test_row_17_kv_heads_shard_or_replicate(kv, tp, per_token):
    report = kv("--tokens", 1024, "--tp", tp)
    assert report["bytes_per_rank"] == per_token * 1024
    assert report["payload_bytes"] == PER_TOKEN * 1024
    assert any("replicated" in line for line in report["assumptions"]) == (tp == 16)


def test_row_17_the_capacity_of_a_machine_does_not_simply_divide(fit):
    def cached(tp):
        return fit("--weights", 0, "--tp", tp)[1]["kv_capacity_tokens"]

    assert cached(16) == cached(8) == 8 * cached(1)


def test_row_18_windows_and_latents_have_their_own_storage_model(kv):
    assert kv("--tokens", 8192, model="mistral-7b-v0.1")["payload_bytes"] == 512 * MIB
    assert kv("--tokens", 8192, model="deepseek-v3")["payload_bytes"] == 549 * MIB


def test_row_21_paging_and_io_aware_attention_combine(kvroof):
    asked = "estimate llama-3.1-8b h100-sxm --isl 4096 --osl 2 --batch 1 --json".split()
    flash, plain = kvroof(*asked).json, kvroof(*asked, "--materialised").json
    assert plain["memory"]["kv_bytes"] == flash["memory"]["kv_bytes"]
    assert plain["prefill_s"] > flash["prefill_s"]


def test_row_22_every_account_carries_its_assumptions(kv, fit):
    assert kv("--tokens", 33)["assumptions"]
    assert fit("--tokens", 33)[1]["assumptions"]
