"""A config becomes an architecture or one clear refusal: nothing that decides cost is silently ignored."""

import copy
import functools
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvroof.catalog.export import export_model, write_entry
from kvroof.catalog.huggingface import read_architecture
from kvroof.catalog.models import load_model, model_names, read_entry
from kvroof.ground.errors import BadInput, KvroofError, Unsupported
from kvroof.memory.kv import kv
from kvroof.spec.architecture import Architecture
from kvroof.spec.params import params_active, params_total, weight_bytes

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
}
NAMES = model_names()


def read(config, ignore=()):
    return read_architecture(config, "my.json", "mine", ignore).architecture


@functools.cache
def entry(name):
    return read_entry(name)


# Spelling and nesting


def test_the_published_count_of_llama_8b_comes_out():
    assert params_total(read(LLAMA)) == 8_030_261_248


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("hidden_size", "n_embd"),
        ("hidden_size", "d_model"),
        ("num_hidden_layers", "n_layer"),
        ("num_attention_heads", "n_head"),
        ("num_key_value_heads", "n_head_kv"),
        ("intermediate_size", "ffn_hidden_size"),
        ("torch_dtype", "dtype"),
    ],
)
def test_other_spellings_describe_the_same_model(name, other):
    renamed = {other if key == name else key: value for key, value in LLAMA.items()}
    assert read(renamed) == read(LLAMA)


def test_a_nested_decoder_is_found_and_its_tower_counted_apart():
    model = load_model("gemma-3-27b")
    nested = read(entry("gemma-3-27b").config)
    assert nested.num_layers == 62
    assert [tower.params > 4 * 10**8 for tower in nested.towers] == [True]
    assert params_active(nested) == params_total(nested) - nested.towers[0].params
    assert nested.layers == model.layers


def test_an_error_inside_a_nested_decoder_names_its_path():
    config = copy.deepcopy(entry("gemma-3-27b").config)
    config["text_config"]["hidden_size"] = "wide"
    with pytest.raises(BadInput) as caught:
        read(config)
    assert caught.value.key == "text_config.hidden_size"


def test_grouped_heads_that_are_left_out_mean_one_per_head():
    without = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    (group,) = read(without).layers
    assert group.layer.mixers[0].num_kv_heads == 32


# What is missing, unknown or unread


@pytest.mark.parametrize(
    "key", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size"]
)
def test_a_key_that_decides_the_size_is_required(key):
    with pytest.raises(BadInput) as caught:
        read({k: v for k, v in LLAMA.items() if k != key})
    assert caught.value.key == key


def test_no_model_type_is_refused():
    with pytest.raises(BadInput) as caught:
        read({k: v for k, v in LLAMA.items() if k != "model_type"})
    assert caught.value.key == "model_type"


def test_an_unknown_model_type_is_refused_with_the_closest_known():
    with pytest.raises(Unsupported) as caught:
        read({**LLAMA, "model_type": "lama"})
    assert caught.value.key == "model_type"
    assert "llama" in caught.value.way_out


UNREAD = [
    "attention_window_pattern",
    "cross_layer_kv",
    "num_state_heads",
    "moe_every",
    "cache_rank",
    "lora.rank",
]


@pytest.mark.parametrize("key", UNREAD)
@pytest.mark.parametrize("value", [1, 0, "on", True, [1], {"a": 1}, 0.5])
def test_a_structural_key_that_is_not_understood_is_refused_by_name(key, value):
    with pytest.raises(Unsupported) as caught:
        read({**LLAMA, key: value})
    assert caught.value.key == key
    assert f"--ignore-key {key}" in caught.value.way_out


@pytest.mark.parametrize("key", UNREAD)
@pytest.mark.parametrize("value", [None, False, [], {}])
def test_a_structural_key_that_is_off_does_no_harm(key, value):
    assert read({**LLAMA, key: value}) == read(LLAMA)


@pytest.mark.parametrize("key", UNREAD)
def test_an_ignored_key_is_as_good_as_absent(key):
    assert read({**LLAMA, key: 7}, ignore=(key,)) == read(LLAMA)


def test_a_key_is_ignored_at_any_depth_and_a_required_one_is_then_missing():
    config = copy.deepcopy(entry("gemma-3-27b").config)
    config["text_config"]["num_state_heads"] = 3
    with pytest.raises(Unsupported) as caught:
        read(config)
    assert caught.value.key == "text_config.num_state_heads"
    assert read(config, ignore=("num_state_heads",)) == read(entry("gemma-3-27b").config)
    with pytest.raises(BadInput):
        read(LLAMA, ignore=("hidden_size",))


@pytest.mark.parametrize(
    "key", ["bos_token_id", "rope_theta", "hidden_act", "initializer_range", "use_cache"]
)
def test_a_key_without_structure_does_no_harm(key):
    assert read({**LLAMA, key: 1}) == read(LLAMA)


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(BadInput) as caught:
        read({**LLAMA, "num_key_value_heads": 5})
    assert caught.value.key == "num_key_value_heads"
    with pytest.raises(BadInput):
        read({**LLAMA, "num_attention_heads": 24, "num_key_value_heads": 24})


def test_more_active_experts_than_there_are_is_refused():
    config = {**entry("qwen3-30b-a3b").config, "num_experts_per_tok": 129}
    with pytest.raises(BadInput) as caught:
        read(config)
    assert caught.value.key == "num_experts_per_tok"


def test_an_expert_model_whose_layers_are_all_dense_is_still_understood():
    """A shortened test checkpoint: its expert keys are of its family, though no layer has experts."""
    config = {**entry("deepseek-v3").config, "num_hidden_layers": 3}
    assert read(config).num_layers == 3


def test_a_quantization_that_is_not_known_is_refused_and_not_guessed():
    with pytest.raises(Unsupported) as caught:
        read({**LLAMA, "quantization_config": {"quant_method": "magic"}})
    assert "quantization_config" in caught.value.key
    with pytest.raises(KvroofError):
        read({**LLAMA, "quantization_config": "fp8"})


def test_the_old_falcon_decoder_ignores_the_kv_heads_that_saved_configs_carry():
    config = entry("falcon-7b").config
    assert read({**config, "num_kv_heads": 71}) == read(config)


def test_a_window_that_is_switched_off_is_no_window():
    config = {**LLAMA, "model_type": "qwen2", "sliding_window": 4096, "max_window_layers": 28}
    off, on = (read({**config, "use_sliding_window": flag}) for flag in (False, True))
    assert {g.layer.mixers[0].reach.window for g in off.layers} == {None}
    assert {(g.layer.mixers[0].reach.window, g.count) for g in on.layers} == {(None, 28), (4096, 4)}


# The catalog and its exporter


@pytest.mark.parametrize("name", NAMES)
def test_an_exported_entry_reloads_to_an_equal_architecture(name, tmp_path):
    source = tmp_path / "config.json"
    source.write_text(json.dumps({**entry(name).config, "bos_token_id": 1, "unread": {"a": 1}}))
    side = entry(name).hf_quant_config
    if side is not None:
        (tmp_path / "hf_quant_config.json").write_text(json.dumps(side))
    original = read_architecture(json.loads(source.read_text()), "x", name, side=side).architecture
    made = export_model(
        source, hub_id=entry(name).hub_id, source="here", params=params_total(original), checked="a test"
    )
    path = write_entry({**made, "name": name}, tmp_path)
    assert path.name == f"{name}.json"
    assert "bos_token_id" not in made["config"]
    again = read_architecture(made["config"], "x", name, side=made.get("hf_quant_config"))
    assert again.architecture == original
    assert load_model(path) == original


@pytest.mark.parametrize("off_by", [-1, 1])
def test_a_count_that_does_not_agree_is_not_exported(tmp_path, off_by):
    source = tmp_path / "config.json"
    source.write_text(json.dumps(LLAMA))
    with pytest.raises(BadInput, match="counts 8,030,261,248 parameters"):
        export_model(source, hub_id="a/b", source="here", params=8_030_261_248 + off_by, checked="nobody")


@pytest.mark.parametrize("name", NAMES)
def test_every_entry_counts_what_it_was_checked_against(name):
    assert params_total(load_model(name)) == entry(name).params_total


# Mutations


def places(data, path=()):
    """Return the path of every value of nested mappings and lists."""
    found = []
    for key, value in data.items() if isinstance(data, dict) else enumerate(data):
        found.append((*path, key))
        if isinstance(value, (dict, list)):
            found += places(value, (*path, key))
    return found


DROP = "drop the key"
nasty = st.one_of(
    st.just(DROP),
    st.none(),
    st.booleans(),
    st.sampled_from((0, -1, 1, 2, 3, 2**24, 2**24 + 1, 10**30, 0.5, -0.0, float("nan"), float("inf"))),
    st.sampled_from(("", "4096", "full_attention", "llama", "\x1b[31m", "bfloat16", "fp8", "float32")),
    st.sampled_from(([], {}, [0], [1, 1], ["sliding_attention"], [""], {"a": 1}, [None], [-1, 128])),
)
scaled = st.sampled_from(
    (lambda v: -v, lambda v: v + 1, lambda v: v * 2, lambda v: v // 2, lambda v: v * 10**6)
)


@st.composite
def mutated(draw, most=2):
    config = copy.deepcopy(entry(draw(st.sampled_from(NAMES))).config)
    for _ in range(draw(st.integers(1, most))):
        every = places(config)
        if not every:
            break
        *heads, last = draw(st.sampled_from(every))
        table = config
        for head in heads:
            table = table[head]
        value = table[last]
        whole = isinstance(value, int) and not isinstance(value, bool)
        new = draw(scaled)(value) if whole and draw(st.booleans()) else copy.copy(draw(nasty))
        if new == DROP:
            del table[last]
        else:
            table[last] = new
    return config


fuzz = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}


def outcome(config):
    """Return the architecture that a config describes, or the error that refuses it."""
    try:
        return read(config)
    except KvroofError as error:
        return error


def is_clear(error):
    """Return whether a refusal is one printable line of a bounded length that names the file."""
    line = error.one_line()
    return line.isprintable() and len(line) < 600 and error.where == "my.json"


@settings(max_examples=1500, **fuzz)
@given(mutated())
def test_a_mutated_config_is_an_architecture_or_a_clear_refusal(config):
    found = outcome(config)
    assert isinstance(found, Architecture) or is_clear(found)


@settings(max_examples=300, **fuzz)
@given(mutated(most=1))
def test_an_architecture_that_was_accepted_can_be_counted(config):
    model = outcome(config)
    if isinstance(model, Architecture):
        assert 0 < params_active(model) <= params_total(model)
        assert weight_bytes(model) > 0
        assert kv(model, tokens=100).payload_bytes >= 0


@settings(max_examples=200, **fuzz)
@given(st.dictionaries(st.text(max_size=12), st.none() | st.integers() | st.text(max_size=8), max_size=4))
def test_any_object_is_an_architecture_or_a_clear_refusal(extra):
    for base in ({}, LLAMA):
        found = outcome({**extra, **base})
        assert is_clear(found) if isinstance(found, KvroofError) else found.num_layers == 32


@pytest.mark.parametrize("block", [[0, 128], [128, 0], [-1, 128], [128], [128, 128, 128], [True, 128], "128"])
def test_scale_blocks_that_cannot_be_are_refused(block):
    quantization = {"quant_method": "fp8", "weight_block_size": block}
    with pytest.raises(KvroofError):
        read({**LLAMA, "quantization_config": quantization})
