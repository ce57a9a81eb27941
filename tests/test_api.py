"""The public API: about 25 names, found from the top, that answer with frozen records."""

import dataclasses
import re
from pathlib import Path

import pytest

import kvroof

README = Path(__file__).parents[1] / "README.md"


@pytest.mark.parametrize("name", kvroof.__all__)
def test_every_public_name_resolves_and_says_what_it_is(name):
    assert getattr(kvroof, name).__doc__
    assert name in dir(kvroof)


def test_the_names_behind_the_verbs_are_public():
    wanted = {"load_model", "load_hardware", "Plan", "kv", "fit", "estimate", "compare"}
    assert wanted <= set(kvroof.__all__)
    assert len(kvroof.__all__) <= 30


def test_a_name_that_is_not_public_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = kvroof.nonsense


def test_five_lines_answer_does_it_fit_how_fast_and_what_bounds_it():
    model, machine = kvroof.load_model("llama-3.1-8b"), kvroof.load_hardware("h100-sxm")
    assert kvroof.kv(model, tokens=8192).payload_bytes == 2**30
    assert kvroof.fit(model, 80 * 10**9, tokens=8192).max_seqs == 52
    answer = kvroof.estimate(kvroof.Plan.of(model, machine), batch=8)
    assert (answer.bound.prefill, answer.bound.decode) == ("compute", "hbm")


def test_the_python_of_the_readme_runs_and_prints_what_its_comments_say(capsys):
    """A comment that starts with a number states what the line prints, to three digits."""
    (block,) = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), flags=re.DOTALL)
    exec(compile(block, str(README), "exec"), {})
    printed = [float(line) for line in capsys.readouterr().out.split()]
    stated = [float(number) for number in re.findall(r"#\s*([\d.]+(?:e-?\d+)?)", block)]
    assert printed == pytest.approx(stated, rel=5e-3)


def test_names_and_records_are_interchangeable_in_a_plan():
    model, machine = kvroof.load_model("llama-3.1-8b"), kvroof.load_hardware("h100-sxm")
    assert kvroof.Plan.of("llama-3.1-8b", "h100-sxm") == kvroof.Plan.of(model, machine)


def records():
    model, machine = kvroof.load_model("llama-3.1-8b"), kvroof.load_hardware("h100-sxm")
    plan = kvroof.Plan.of(model, machine)
    (row,) = kvroof.compare([model])
    answers = (kvroof.kv(model), kvroof.fit(model, 10**11), kvroof.estimate(plan, isl=16, osl=2), row)
    return {type(record).__name__: record for record in (model, machine, plan, *answers)}


RECORDS = ("Architecture", "Hardware", "Plan", "KVReport", "Ledger", "Estimate", "Comparison")


@pytest.mark.parametrize("name", RECORDS)
def test_records_are_frozen_and_take_no_other_attribute(name):
    record = records()[name]
    field = dataclasses.fields(record)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(record, field, "other")
    assert not hasattr(record, "__dict__")


@pytest.mark.parametrize("name", RECORDS)
def test_records_are_equal_when_their_fields_are_and_can_be_changed_only_into_others(name):
    record = records()[name]
    assert dataclasses.replace(record) == record
    assert record == records()[name]


def test_errors_are_one_tree_that_names_place_key_reason_and_way_out():
    with pytest.raises(kvroof.UnknownName) as caught:
        kvroof.load_model("lama-3.1-8b")
    assert isinstance(caught.value, kvroof.BadInput)
    assert isinstance(caught.value, kvroof.KvroofError)
    assert (caught.value.where, "llama-3.1-8b" in caught.value.way_out) == ("lama-3.1-8b", True)
    with pytest.raises(kvroof.KvroofError):
        kvroof.load_hardware("h999")


def test_what_is_not_modelled_is_refused_as_such(write_config):
    with pytest.raises(kvroof.Unsupported) as caught:
        kvroof.load_model(write_config(model_type="brand_new_arch_9"))
    assert caught.value.key == "model_type"


def test_ignored_keys_reach_the_reader(write_config):
    path = write_config(expert_magic=3)
    with pytest.raises(kvroof.Unsupported):
        kvroof.load_model(path)
    assert kvroof.kv(kvroof.load_model(path, ignore_keys=["expert_magic"])).bytes_per_token == 131_072
