"""`kvroof list` and what an argument that is left out may be."""

import pytest

from kvroof.catalog.families import FAMILIES
from kvroof.catalog.models import model_names, read_entry
from kvroof.catalog.towers import TOWERS


def test_every_model_type_that_is_read_is_listed_with_what_it_is(kvroof):
    rows = kvroof("list", "families", "--json").json
    listed = {row["model_type"]: row["family"] for row in rows}
    assert listed.keys() == {*FAMILIES, *TOWERS}
    assert list(listed) == sorted(listed)
    assert all(len(family) > 20 and family.endswith(".") for family in listed.values())
    assert {read_entry(name).config["model_type"] for name in model_names()} <= listed.keys()
    lines = [line.split() for line in kvroof("list", "families").out.splitlines()]
    assert listed.keys() <= {words[0] for words in lines if words}


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (("estimate", "llama-3.1-8b"), "hardware"),
        (("optimize", "llama-3.1-8b"), "hardware"),
        (("fit",), "models"),
        (("kv",), "models"),
        (("compare",), "models"),
        (("show",), "models"),
    ],
)
def test_an_argument_that_is_left_out_says_where_its_names_are(kvroof, words, kind):
    answer = kvroof(*words)
    assert (answer.code, answer.out) == (2, "")
    assert "Missing argument" in answer.err
    assert f"kvroof list {kind}" in answer.err


@pytest.mark.parametrize("model", ["qwen3.5-27b", "gemma-3-27b", "llama-3.1-8b"])
def test_fewer_tokens_in_many_sequences_than_in_one_are_explained(kvroof, model):
    answer = kvroof("fit", model, "h200-sxm", "--json").json
    fewer = answer["kv_capacity_tokens"] < answer["max_tokens"]
    assert fewer == (model != "llama-3.1-8b")
    assert any("fewer than longer ones" in line for line in answer["assumptions"]) == fewer
