"""A draft model is the same to `fit`, which counts it, and to `estimate`, which also runs it."""

import pytest

H = "h100-sxm"


def drafted(kvroof, verb, target, draft, *options):
    """Return what a drafter adds to a ledger: the bytes of its weights, and of its cache."""
    sizes = {
        "fit": ("--tokens", 2303, "--seqs", 8),
        "estimate": ("--isl", 2048, "--osl", 256, "--batch", 8, "--spec-tokens", 2),
    }
    ledgers = []
    for model in (("--draft", draft), ()):
        answer = kvroof(verb, target, H, *sizes[verb], *options, *model, "--json")
        assert (answer.code, answer.err) == (0, "")
        ledgers.append(answer.json.get("memory", answer.json))
    return tuple(ledgers[0][key] - ledgers[1][key] for key in ("reserve_bytes", "kv_bytes"))


@pytest.mark.parametrize(
    "options",
    [
        ("--tp", 8),
        ("--tp", 4),
        ("--tp", 4, "--dp", 2),
        ("--tp", 8, "--kv-dtype", "fp8"),
        ("--tp", 16, "--dcp", 2),
    ],
    ids=lambda given: " ".join(map(str, given)),
)
@pytest.mark.parametrize("draft", ["smollm2-360m", "llama-3.2-1b"])
def test_a_ledger_and_an_estimate_count_the_same_drafter(kvroof, draft, options):
    counted = drafted(kvroof, "fit", "llama-3.1-70b", draft, *options)
    assert counted == drafted(kvroof, "estimate", "llama-3.1-70b", draft, *options)
    assert min(counted) > 0


def test_a_drafter_that_the_ranks_do_not_divide_is_whole_on_one(kvroof):
    """SmolLM2-360M has 15 attention heads: vLLM's draft_tensor_parallel_size is the target's or 1."""
    alone = kvroof("fit", "smollm2-360m", H, "--tokens", 2303, "--seqs", 8, "--json").json
    weights, cache = drafted(kvroof, "fit", "llama-3.1-70b", "smollm2-360m", "--tp", 8)
    assert (weights, cache) == (alone["weights_bytes"], alone["kv_bytes"])
    said = kvroof("fit", "llama-3.1-70b", H, "--tp", 8, "--draft", "smollm2-360m").out
    assert "whole on one rank: it is not split over 8" in " ".join(said.split())
    split = drafted(kvroof, "fit", "llama-3.1-70b", "llama-3.2-1b", "--tp", 8)
    whole = drafted(kvroof, "fit", "llama-3.1-8b", "llama-3.2-1b")
    assert whole[1] == 8 * split[1]


def test_the_cache_of_a_drafter_has_the_dtype_that_was_asked_for(kvroof):
    wide, narrow = (
        drafted(kvroof, "estimate", "llama-3.1-70b", "llama-3.2-1b", "--tp", 4, *dtype)
        for dtype in ((), ("--kv-dtype", "fp8"))
    )
    assert wide == (narrow[0], 2 * narrow[1])


def test_a_key_that_is_ignored_is_ignored_in_the_drafter_s_config_too(kvroof, write_config):
    draft = write_config("draft", expert_magic=3)
    for verb, options in (("fit", ()), ("estimate", ("--spec-tokens", 2))):
        asked = (verb, "llama-3.1-70b", H, "--tp", 4, "--draft", draft, *options)
        assert kvroof(*asked).code == 2
        assert kvroof(*asked, "--ignore-key", "expert_magic").code == 0


def test_each_group_of_ranks_drafts_for_its_own_sequences(kvroof):
    def drafting(*options):
        asked = ("--tp", 4, "--spec-tokens", 2, "--draft", "llama-3.2-1b", "--json")
        answer = kvroof("estimate", "llama-3.1-70b", H, *asked, *options)
        return {
            op["name"]: op["seconds"] for op in answer.json["decode_ops"] if op["name"].startswith("draft.")
        }

    one, two = drafting("--batch", 8), drafting("--batch", 16, "--dp", 2)
    assert one.keys() == two.keys()
    assert list(two.values()) == pytest.approx(list(one.values()))
