"""What a mistyped model, machine or architecture was meant to be, in the catalog and beside it."""

import json

import pytest

from kvroof.catalog.models import load_model, read_entry
from kvroof.catalog.names import MOST_NEARBY, closest, nearby
from kvroof.catalog.profiles import load_hardware
from kvroof.ground.errors import BadInput, KvroofError, UnknownName

LLAMA = {key: value for key, value in read_entry("llama-3.1-8b").config.items() if key != "torch_dtype"}


@pytest.fixture
def acme(tmp_path, monkeypatch):
    """A folder `acme-14b` with a config.json, in the current one."""
    (tmp_path / "acme-14b").mkdir()
    (tmp_path / "acme-14b" / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "empty-14b").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refusal(load, name):
    with pytest.raises(KvroofError) as caught:
        load(name)
    return caught.value


def test_names_that_begin_with_what_was_typed_come_first_in_the_order_of_those_known():
    assert closest("h1", ["h200", "h1-c", "h1-a", "h1-b"]) == "did you mean h1-c, h1-a or h1-b?"
    assert closest("nothing", ["h200"]) == ""


@pytest.mark.parametrize("typed", ["acme14b", "acme", "ACME-14B/x"])
def test_a_folder_beside_the_typed_name_is_named(acme, typed):
    error = refusal(load_model, typed)
    near = "acme-14b/" in (error.way_out or "")
    assert near == ("/" not in typed)
    assert "config.json" in (error.way_out or "")


def test_a_folder_elsewhere_is_named_with_its_path(acme):
    assert f"{acme}/acme-14b/" in refusal(load_model, f"{acme}/acme14b").way_out


def test_a_machines_file_beside_the_typed_name_is_named(acme):
    (acme / "mybox.toml").write_text("")
    assert "did you mean mybox.toml?" in refusal(load_hardware, "mybox").way_out


def test_only_so_many_files_are_looked_at(tmp_path):
    for n in range(MOST_NEARBY + 5):
        (tmp_path / f"{n}.json").touch()
    assert len(nearby(f"{tmp_path}/x", ".json")) == MOST_NEARBY
    assert nearby(f"{tmp_path}/none/x", ".json") == nearby("\0/x", ".json") == []


@pytest.mark.parametrize("typed", ["nvidia-h100", "NVIDIA H100", "nvidia_h100", "h100"])
def test_a_chip_with_its_makers_name_is_the_board_in_a_socket_first(typed):
    assert "did you mean h100-sxm, h100-nvl or h100-pcie?" in refusal(load_hardware, typed).way_out


def test_a_hub_id_of_no_catalog_may_be_given_as_a_file():
    error = refusal(load_model, "acme/acme-rocket-14b")
    assert isinstance(error, UnknownName)
    assert "or give its config.json" in error.way_out


def test_an_unknown_architecture_may_be_a_renamed_one(acme):
    path = acme / "acme-14b" / "config.json"
    path.write_text(json.dumps(LLAMA | {"model_type": "acme"}))
    assert "renamed llama or qwen2" in refusal(load_model, path).way_out
    path.write_text(json.dumps(LLAMA | {"model_type": "llama"}))
    assert load_model(path).model_type == "llama"


def test_a_config_is_called_as_its_folder_from_within_too(acme, monkeypatch):
    monkeypatch.chdir(acme / "acme-14b")
    assert load_model("config.json").name == load_model(".").name == load_model(str(acme / "acme-14b")).name
    assert load_model("config.json").name == "acme-14b"


def test_a_dtype_that_is_not_named_is_an_assumption(kvroof, acme):
    said = "the config names no dtype: bf16"
    for asked in (("kv",), ("fit", "h100-sxm"), ("estimate", "h100-sxm", "--batch", 1)):
        verb, *rest = asked
        answer = kvroof(verb, "acme-14b", *rest, "--json").json
        assumptions = (answer[0] if verb == "kv" else answer)["assumptions"]
        assert any(said in line for line in assumptions), verb
    for key in ("torch_dtype", "dtype"):
        (acme / "acme-14b" / "config.json").write_text(json.dumps(LLAMA | {key: "float16"}))
        assert not any(said in line for line in kvroof("kv", "acme-14b", "--json").json[0]["assumptions"])


def test_a_file_that_is_not_there_is_said_to_be_missing(tmp_path):
    with pytest.raises(BadInput, match="no such file"):
        load_model(tmp_path / "none.json")
