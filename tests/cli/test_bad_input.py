"""Bad input gets exit 2 and one line that names the place and the reason; never a traceback or an answer."""

import json

import pytest

from kvroof.cli.main import VERBS

LONGEST_LINE = 600
M, H = "llama-3.1-8b", "h100-sxm"


@pytest.fixture
def refused(kvroof):
    """Return a function that runs the command and gives its one line, having checked what all share."""

    def run(*args, says=()):
        answer = kvroof(*args)
        assert answer.code == 2, answer.out[:300]
        assert answer.out == ""
        (line,) = answer.err.splitlines()
        assert line.startswith("kvroof: ")
        assert len(line) < LONGEST_LINE
        assert line.isprintable()
        assert "Traceback" not in line
        for word in says:
            assert str(word) in line
        return line

    return run


@pytest.fixture
def write(tmp_path):
    """Return a function that writes bytes or text to a file and returns its path."""

    def put(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return put


CONFIG_FAULTS = {
    "negative layers": ({"num_hidden_layers": -1}, "num_hidden_layers"),
    "layers in words": ({"num_hidden_layers": "thirty-two"}, "num_hidden_layers"),
    "no KV heads": ({"num_key_value_heads": 0}, "num_key_value_heads"),
    "a billion layers, as a float": ({"num_hidden_layers": 1e9}, "num_hidden_layers"),
    "a billion layers": ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
    "a number of 400 digits": ({"num_hidden_layers": 10**400}, "num_hidden_layers"),
    "absurd width": ({"hidden_size": 10**15}, "hidden_size"),
    "zero width": ({"hidden_size": 0}, "hidden_size"),
    "width in fractions": ({"hidden_size": 4096.5}, "hidden_size"),
    "width is true": ({"hidden_size": True}, "hidden_size"),
    "width is infinite": ({"hidden_size": float("inf")}, "hidden_size"),
    "head_dim is not a number": ({"head_dim": float("nan")}, "head_dim"),
    "head_dim is zero": ({"head_dim": 0}, "head_dim"),
    "heads in a list": ({"num_attention_heads": [32]}, "num_attention_heads"),
    "KV heads that do not divide heads": ({"num_key_value_heads": 3}, "num_key_value_heads"),
    "more KV heads than heads": ({"num_key_value_heads": 64}, "num_key_value_heads"),
    "negative vocabulary": ({"vocab_size": -5}, "vocab_size"),
    "negative positions": ({"max_position_embeddings": -4}, "max_position_embeddings"),
    "unknown model_type": ({"model_type": "brand_new_arch_9"}, "model_type"),
    "empty model_type": ({"model_type": ""}, "model_type"),
    "model_type is a number": ({"model_type": 5}, "model_type"),
    "dtype is unknown": ({"torch_dtype": "float13"}, "float13"),
    "dtype is a number": ({"torch_dtype": 5}, "torch_dtype"),
    "nested config is a list": ({"text_config": [1]}, "text_config"),
    "unknown quantization": ({"quantization_config": {"quant_method": "magic"}}, "quant_method"),
    "quantization is a list": ({"quantization_config": [1]}, "quantization_config"),
}


@pytest.mark.parametrize("fault", CONFIG_FAULTS)
def test_a_config_with_an_impossible_value_is_refused_by_file_and_key(refused, write_config, fault):
    change, key = CONFIG_FAULTS[fault]
    path = write_config(**change)
    refused("kv", path, "--json", says=(path, key))


@pytest.mark.parametrize(
    "key", ["hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"]
)
def test_a_config_without_a_key_that_decides_the_size_is_refused(refused, write_config, key):
    path = write_config(without=[key])
    refused("kv", path, says=(path, key, "missing"))


def test_a_config_without_a_model_type_is_refused(refused, write_config):
    refused("kv", write_config(without=["model_type"]), says=("model_type",))


@pytest.mark.parametrize("block", [[0, 0], [-1, 128], [128], [128, 128, 128]], ids=str)
def test_an_impossible_scale_block_is_refused_by_key(refused, write_config, block):
    quantised = {"quant_method": "fp8", "weight_block_size": block}
    path = write_config(quantization_config=quantised)
    refused("fit", path, H, says=(path, "weight_block_size"))


UNREADABLE = {
    "empty": b"",
    "truncated": b'{"model_type": "llama", ',
    "binary": b"\x00\x01\x02",
    "not UTF-8": b'{"model_type": "ll\xe4ma"}',
    "UTF-16": '{"model_type": "llama"}'.encode("utf-16"),
    "a list": b"[1,2]",
    "null": b"null",
    "a string": b'"llama"',
    "objects nested 5000 deep": b'{"text_config":' * 5000 + b"{}" + b"}" * 5000,
    "lists nested 5000 deep": b'{"x":' + b"[" * 5000 + b"]" * 5000 + b"}",
    "nested 100 deep": b'{"text_config":' * 100 + b"{}" + b"}" * 100,
    "a number of 5000 digits": b'{"hidden_size": ' + b"9" * 5000 + b"}",
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_a_file_that_is_no_config_is_refused_by_name(refused, write, case):
    path = write("config.json", UNREADABLE[case])
    refused("kv", path, "--json", says=(path,))


def test_a_config_of_200_mb_is_refused_unread(refused, tmp_path):
    path = tmp_path / "big.json"
    with path.open("wb") as file:
        file.truncate(200 * 10**6)
    refused("kv", path, says=(path, "MiB"))


def test_a_missing_file_is_refused_by_name(refused, tmp_path):
    refused("kv", tmp_path / "missing.json", says=("missing.json", "no such file"))


def test_a_folder_without_a_config_is_refused_by_name(refused, tmp_path):
    refused("kv", tmp_path, says=(tmp_path, "config.json"))


def test_a_device_or_a_pipe_is_not_read(refused):
    refused("kv", "/dev/zero", says=("/dev/zero",))


def test_an_unknown_structural_key_is_refused_by_name_with_its_way_out(refused, kvroof, write_config):
    path = write_config(moba_attention_rank=4)
    refused("kv", path, says=(path, "moba_attention_rank", "--ignore-key moba_attention_rank"))
    accepted = kvroof("kv", path, "--ignore-key", "moba_attention_rank", "--json")
    assert (accepted.code, accepted.json[0]["bytes_per_token"]) == (0, 131_072)


@pytest.mark.parametrize(
    "key",
    ["attention_k", "kv_cache_group", "second_window", "head_groups", "num_expert_groups", "layer_reuse",
     "delta_rank", "state_width"],
)  # fmt: skip
def test_each_word_of_structure_makes_an_unknown_key_suspect(refused, write_config, key):
    refused("kv", write_config(**{key: 7}), says=(key, "--ignore-key"))


@pytest.mark.parametrize("value", [None, False], ids=str)
def test_a_structural_key_that_is_off_does_no_harm(kvroof, write_config, value):
    assert kvroof("kv", write_config(moba_attention_rank=value)).code == 0


def test_an_unknown_harmless_key_does_no_harm(kvroof, write_config, config_s):
    plain = kvroof("kv", config_s, "--json").json[0]
    path = write_config("s2", favourite_colour="red", trained_on={"tokens": 1}, bos_token_id=1)
    answer = kvroof("kv", path, "--json")
    assert answer.code == 0
    assert answer.json[0] | {"model": "s"} == plain


OPTIONS = {
    "no verb": ("nonsense",),
    "no such option": ("kv", M, "--nonsense"),
    "no model": ("kv",),
    "unknown model": ("kv", "no-such-model"),
    "unknown machine": ("estimate", M, "h999"),
    "unknown machine to compare on": ("compare", M, "--hw", "h999"),
    "unknown to show": ("show", "no-such-thing"),
    "unknown list": ("list", "secrets"),
    "an argument too many": ("fit", M, H, "extra"),
    "negative tokens": ("kv", M, "--tokens", "-5"),
    "tokens in words": ("kv", M, "--tokens", "many"),
    "absurd tokens": ("kv", M, "--tokens", 10**30),
    "no tokens to fit": ("fit", M, H, "--tokens", 0),
    "no sequences": ("kv", M, "--seqs", 0),
    "negative sequences": ("fit", M, H, "--seqs", -1),
    "absurd sequences": ("kv", M, "--seqs", 10**30),
    "lengths in words": ("kv", M, "--lengths", "1,two"),
    "a length left out": ("kv", M, "--lengths", "1,,2"),
    "a negative length": ("kv", M, "--lengths", "5,-1"),
    "no block": ("kv", M, "--block-size", 0),
    "a negative block": ("kv", M, "--block-size", -16),
    "a prefix longer than a sequence": ("kv", M, "--tokens", 10, "--shared-prefix", 11),
    "a negative prefix": ("kv", M, "--shared-prefix", -1),
    "a shared prefix under an allocator that does not share": (
        "kv", M, "--seqs", 2, "--shared-prefix", 5, "--allocator", "padded",
    ),
    "unknown allocator": ("kv", M, "--allocator", "magic"),
    "more tokens than are reserved": (
        "kv", M, "--tokens", 101, "--allocator", "reserved", "--max-model-len", 100,
    ),
    "nothing reserved": ("kv", M, "--allocator", "reserved", "--max-model-len", 0),
    "unknown KV dtype": ("kv", M, "--kv-dtype", "float13"),
    "half a pair of dtypes": ("kv", M, "--kv-dtype", "fp8/"),
    "half a pair of dtypes, the other": ("kv", M, "--kv-dtype", "/fp8"),
    "three dtypes": ("kv", M, "--kv-dtype", "fp8/fp8/fp8"),
    "unknown weights dtype": ("estimate", M, "a100-sxm-80gb", "--weights-dtype", "fp99"),
    "unknown weights dtype to fit": ("fit", M, H, "--weights-dtype", "fp99"),
    "unknown weights dtype for kv": ("kv", M, "--weights-dtype", "fp99"),
    "unknown weights dtype to compare": ("compare", M, "--weights-dtype", "fp99"),
    "unknown compute dtype": ("estimate", M, H, "--compute-dtype", "fp99"),
    "a compute dtype the chip lacks": ("estimate", M, "a100-sxm-80gb", "--compute-dtype", "fp8"),
    "no ranks": ("kv", M, "--tp", 0),
    "negative ranks": ("fit", M, H, "--tp", -2),
    "ranks that do not divide": ("kv", M, "--tp", 3),
    "ranks that do not divide, estimated": ("estimate", M, H, "--tp", 3),
    "ranks that do not divide, compared": ("compare", M, "--tp", 3),
    "an axis that is not modelled": ("kv", M, "--ep", 2),
    "unknown calibration": ("estimate", M, H, "--calibration", "mine"),
    "a reserve in words": ("fit", M, H, "--reserve", "lots"),
    "a negative reserve": ("fit", M, H, "--reserve", "-1GiB"),
    "a reserve without a number": ("fit", M, H, "--reserve", "GiB"),
    "a reserve in seconds": ("fit", M, H, "--reserve", "3s"),
    "a reserve that is not a number": ("fit", M, H, "--reserve", "nan"),
    "weights of 10**999 GiB": ("fit", M, H, "--weights", "1e999GiB"),
    "a capacity of 10**999 GiB": ("fit", M, "--capacity", "1e999GiB"),
    "no capacity": ("fit", M, "--capacity", 0),
    "neither machine nor capacity": ("fit", M),
    "no utilization": ("fit", M, H, "--utilization", 0),
    "negative utilization": ("fit", M, H, "--utilization", -0.5),
    "utilization beyond all": ("fit", M, H, "--utilization", 1.5),
    "utilization that is not a number": ("fit", M, H, "--utilization", "nan"),
    "utilization without bound": ("fit", M, H, "--utilization", "inf"),
    "utilization beyond all, compared": ("compare", M, "--utilization", 5),
    "no batch": ("estimate", M, H, "--batch", 0),
    "a negative batch": ("estimate", M, H, "--batch", -1),
    "no prompt": ("estimate", M, H, "--isl", 0),
    "no output": ("estimate", M, H, "--osl", 0),
    "a negative prompt": ("estimate", M, H, "--isl", -2048),
    "an absurd prompt": ("estimate", M, H, "--isl", 10**24),
    "no chunk": ("estimate", M, H, "--chunk", 0),
    "a cached prefix that leaves nothing to run": ("estimate", M, H, "--isl", 8, "--cached-prefix", 8),
    "a negative cached prefix": ("estimate", M, H, "--cached-prefix", -1),
    "empty model": ("kv", ""),
    "blank model": ("kv", " "),
    "empty model to fit": ("fit", "", H),
    "empty model to show": ("show", ""),
    "empty machine": ("estimate", M, ""),
    "empty machine to fit": ("fit", M, ""),
    "empty machine to compare on": ("compare", M, "--hw", ""),
    "empty tokens": ("kv", M, "--tokens", ""),
    "empty lengths": ("kv", M, "--lengths", ""),
    "empty KV dtype": ("kv", M, "--kv-dtype", ""),
    "empty allocator": ("kv", M, "--allocator", ""),
    "empty capacity": ("fit", M, "--capacity", ""),
    "a zero byte in the model": ("kv", "a\0b"),
    "a zero byte in the config": ("kv", "a\0b.json"),
    "a zero byte in the machine": ("estimate", M, "a\0b"),
    "a zero byte in the profile": ("estimate", M, "a\0b.toml"),
    "a zero byte to show": ("show", "a\0b"),
    "a name of 5000 letters": ("kv", "a" * 5000),
    "a machine of 5000 letters": ("estimate", M, "a" * 5000),
    "a profile of 5000 letters": ("estimate", M, "a" * 5000 + ".toml"),
    "5000 letters to show": ("show", "a" * 5000),
    "a name in control characters": ("kv", "\x1b[31mred\nline"),
}  # fmt: skip


@pytest.mark.parametrize("as_json", [False, True], ids=["table", "json"])
@pytest.mark.parametrize("case", OPTIONS)
def test_an_impossible_request_is_refused_in_one_line(refused, case, as_json):
    refused(*OPTIONS[case], *(["--json"] if as_json and OPTIONS[case][0] in VERBS else []))


NAMED = {
    "negative tokens": "--tokens",
    "a negative length": "--lengths",
    "no sequences": "--seqs",
    "no block": "--block-size",
    "unknown KV dtype": "--kv-dtype",
    "unknown weights dtype": "--weights-dtype",
    "a compute dtype the chip lacks": "--compute-dtype",
    "ranks that do not divide": "--tp",
    "an axis that is not modelled": "--ep",
    "a reserve in words": "--reserve",
    "no capacity": "--capacity",
    "no utilization": "--utilization",
    "no batch": "--batch",
    "neither machine nor capacity": "--capacity",
    "unknown allocator": "--allocator",
    "no chunk": "--chunk",
    "a prefix longer than a sequence": "--shared-prefix",
    "a cached prefix that leaves nothing to run": "--cached-prefix",
}


@pytest.mark.parametrize("case", NAMED)
def test_the_line_names_the_option(refused, case):
    refused(*OPTIONS[case], says=(NAMED[case],))


@pytest.mark.parametrize(
    ("args", "meant"),
    [
        (("kv", "lama-3.1-8b"), "llama-3.1-8b"),
        (("estimate", M, "h100"), "h100-sxm"),
        (("show", "gemma-3-28b"), "gemma-3-27b"),
        (("kv", M, "--kv-dtype", "fp88"), "fp8"),
    ],
)
def test_an_unknown_name_gets_the_closest_match(refused, args, meant):
    refused(*args, says=("did you mean", meant))


def test_a_compute_dtype_the_chip_lacks_is_answered_with_those_it_has(refused):
    refused("estimate", M, "a100-sxm-80gb", "--compute-dtype", "fp8", says=("a100-sxm-80gb", "fp8", "bf16"))


def test_weights_stored_in_a_format_the_chip_cannot_multiply_are_no_fault(kvroof):
    """`--weights-dtype` is storage: weights are de-quantised and multiplied at the activation's peak."""
    answer = kvroof("estimate", M, "a100-sxm-80gb", "--weights-dtype", "fp8", "--json")
    assert (answer.code, answer.err) == (0, "")


PROFILES = {
    "negative memory": b"hbm_bytes = -1",
    "unterminated": b'name = "x',
    "not UTF-8": b'name = "\xe4"',
    "empty": b"",
    "binary": b"\x00\x01",
    "larger than a profile": b"#" * (2 * 10**6),
}


@pytest.mark.parametrize("verb", ["fit", "estimate"])
@pytest.mark.parametrize("case", PROFILES)
def test_a_profile_that_cannot_be_used_is_refused_by_name(refused, write, case, verb):
    path = write("mine.toml", PROFILES[case])
    refused(verb, M, path, "--json", says=(path,))


def test_a_config_is_no_profile_and_a_profile_no_config(refused, write, config_s):
    refused("estimate", M, config_s, says=(config_s,))
    profile = write("mine.toml", b'name = "x"')
    refused("kv", profile, says=(profile,))


def test_a_folder_with_a_config_is_read(kvroof, tmp_path, config_s):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(config_s.read_text())
    answer = kvroof("kv", tmp_path / "mine", "--json")
    assert (answer.code, answer.json[0]["model"]) == (0, "mine")


def test_infinity_where_it_decides_no_cost_is_read(kvroof, tmp_path, config_s):
    """Real configs hold `Infinity` (Mamba's time_step_limit)."""
    path = tmp_path / "inf.json"
    path.write_text(json.dumps(json.loads(config_s.read_text()) | {"time_step_limit": [0.0, float("inf")]}))
    assert kvroof("kv", path).code == 0


@pytest.mark.parametrize("letters", [120, 300, 5000])
@pytest.mark.parametrize(
    "args", [("show",), ("kv",), ("estimate", M), ("kv", M, "--log"), ("validate", "--points")]
)
def test_a_name_too_long_for_a_path_is_one_that_is_not_known(refused, args, letters):
    refused(*args, "b" * letters)
