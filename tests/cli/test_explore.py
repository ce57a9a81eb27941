"""`kvroof explore` writes one page, of the models and machines that were named."""

import json
import re

import pytest

from kvroof.catalog.models import model_names
from kvroof.catalog.profiles import hardware_names
from kvroof.cli.explore import FIRST_MACHINE, USUAL_MODELS


def tables_of(path):
    return json.loads(re.search(r'id="tables">(.*?)</script>', path.read_text(), re.DOTALL)[1])


def test_the_page_holds_what_was_named_under_the_name_it_was_called(kvroof, tmp_path, config_s):
    out = tmp_path / "explorer.html"
    answer = kvroof(
        "explore", config_s, "smollm2-360m", "--hw", "l4", "--hw", "mi300x", "--out", out, "--json"
    )
    assert answer.code == 0
    assert answer.json["models"] == [str(config_s), "smollm2-360m"]
    assert answer.json["machines"] == ["l4", "mi300x"]
    assert answer.json["bytes"] == out.stat().st_size
    tables = tables_of(out)
    assert [model["name"] for model in tables["models"]] == answer.json["models"]
    assert [machine["name"] for machine in tables["machines"]] == answer.json["machines"]


def test_without_machines_the_page_holds_them_all_and_opens_with_a_common_one(kvroof, tmp_path):
    out = tmp_path / "explorer.html"
    answer = kvroof("explore", "smollm2-360m", "--out", out)
    assert answer.code == 0
    assert f"1 model on {len(hardware_names())} machines written to {out}" in answer.out
    machines = [machine["name"] for machine in tables_of(out)["machines"]]
    assert sorted(machines) == hardware_names()
    assert machines[0] == FIRST_MACHINE


def test_the_usual_models_are_in_the_catalog():
    assert set(USUAL_MODELS) <= set(model_names())
    assert len(set(USUAL_MODELS)) == len(USUAL_MODELS)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("smollm2-360m", "--out", "explorer.pdf"), "--out"),
        (("smollm2-360m", "--out", "nowhere/explorer.html"), "folder does not exist"),
        (("smollm2-360m", "--all", "--out", "explorer.html"), "--all is every model"),
        (("smollm2-360", "--out", "explorer.html"), "smollm2-360m"),
        (("smollm2-360m", "--hw", "h100-smx", "--out", "explorer.html"), "h100-sxm"),
    ],
)
def test_what_cannot_be_written_is_refused_in_one_line(kvroof, tmp_path, monkeypatch, args, said):
    monkeypatch.chdir(tmp_path)
    answer = kvroof("explore", *args)
    assert answer.code == 2
    assert said in answer.err
    assert len(answer.err.splitlines()) == 1
    assert not list(tmp_path.iterdir())
