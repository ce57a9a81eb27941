"""Hardware profiles: the right figure of every known trap, and a clear refusal of every wrong file."""

import copy
import functools
import json
import math
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvroof.catalog.names import closest, data_folder
from kvroof.catalog.profiles import (
    MAX_BYTES,
    check_profile,
    hardware_names,
    hardware_of,
    load_hardware,
    load_profile,
)
from kvroof.ground.errors import BadInput, KvroofError, UnknownName

MIB, GIB = 2**20, 2**30
NAMES = hardware_names()


def shipped(name):
    return tomllib.loads((data_folder("hardware") / f"{name}.toml").read_text("utf-8"))


def changed(path, value, name="h100-sxm"):
    """Return a shipped profile with the value at a dotted path replaced, or dropped if it is `...`."""
    data = shipped(name)
    *heads, last = path.split(".")
    table = data
    for head in heads:
        table = table[head]
    if value is ...:
        del table[last]
    else:
        table[last] = value
    return data


def refusal(data):
    with pytest.raises(BadInput) as caught:
        check_profile(data, "my.toml")
    return caught.value


# The catalog


@pytest.mark.parametrize("name", NAMES)
def test_every_shipped_profile_passes_the_checker_under_its_own_name(name):
    profile = load_profile(name)
    assert profile.name == name
    assert hardware_of(profile) == load_hardware(name)
    assert json.loads(json.dumps(profile.as_dict()))["name"] == name


@pytest.mark.parametrize("name", NAMES)
def test_every_number_says_where_it_comes_from_and_nothing_of_our_desks(name):
    for _, held in load_profile(name).quantities():
        assert len(held.source) > 8
        assert all(len(claim.source) > 8 for claim in held.disputed)
    text = (data_folder("hardware") / f"{name}.toml").read_text("utf-8")
    assert not any(word in text for word in ("shared/facts", "/work/", "hardware.json", "UNVERIFIED"))


@pytest.mark.parametrize("name", NAMES)
def test_no_source_disputes_itself_without_a_note(name):
    for _, held in load_profile(name).quantities():
        assert all(claim.note for claim in held.disputed if claim.source in (held.source, held.also))


def test_names_are_those_people_use_and_unverified_machines_are_absent():
    wanted = "h100-sxm h200-sxm a100-sxm-80gb b200-sxm gb200-nvl72 mi300x tpu-v5e rtx-4090"
    assert set(wanted.split()) <= set(NAMES)
    assert sorted(NAMES) == NAMES
    assert len(NAMES) >= 45
    assert not any(word in name for name in NAMES for word in ("groq", "cerebras", "h800"))


def test_no_alias_is_taken_twice_or_hides_a_name():
    aliases = [alias.lower() for name in NAMES for alias in load_profile(name).aliases]
    assert len(set(aliases)) == len(aliases)
    assert not set(aliases) & set(NAMES)


@pytest.mark.parametrize("typed", ["H100-SXM", " h100-sxm ", "NVIDIA H100 80GB  HBM3", "h100-sxm5"])
def test_a_name_is_found_in_any_case_and_by_its_aliases(typed):
    assert load_hardware(typed).name == "h100-sxm"


def test_the_name_jax_gives_a_tpu_is_an_alias():
    assert load_hardware("TPU v5 lite").name == "tpu-v5e"
    assert load_hardware("TPU v6 lite").name == "tpu-v6e"


def test_a_name_shared_by_different_parts_is_not_guessed():
    with pytest.raises(UnknownName, match="h100-sxm, h100-nvl or h100-pcie") as caught:
        load_hardware("h100")
    assert "kvroof list hardware" in str(caught.value)


@pytest.mark.parametrize(
    ("typed", "meant"), [("rtx4090", "rtx-4090"), ("h200_sxm", "h200-sxm"), ("mi300", "mi300x")]
)
def test_a_mistyped_name_gets_the_closest(typed, meant):
    with pytest.raises(UnknownName, match=meant):
        load_hardware(typed)


@pytest.mark.parametrize("typed", ["", "\0", "x" * 5000, "zzzz\n"])
def test_nonsense_is_an_unknown_name_on_one_line(typed):
    with pytest.raises(UnknownName) as caught:
        load_hardware(typed)
    assert "\n" not in str(caught.value)


def test_closest_says_nothing_when_nothing_is_near():
    assert closest("qqqq", ["h100", "mi300x"]) == ""
    assert closest("mi300", ["h100", "mi300x"]) == "did you mean mi300x?"
    assert closest("l", ["l4", "l40s"]) == "did you mean l4 or l40s?"


# Traps


@pytest.mark.parametrize(
    ("name", "dtype", "teraflops"),
    [
        ("a100-sxm-80gb", "bf16", 312), ("a100-sxm-80gb", "tf32", 156), ("a100-sxm-80gb", "int8", 624),
        ("h100-sxm", "bf16", 989.4), ("h100-sxm", "fp8", 1979), ("h100-sxm", "tf32", 494.7),
        ("h100-pcie", "bf16", 756.5), ("h20", "bf16", 148),
        ("b200-sxm", "fp4", 9000), ("b200-sxm", "bf16", 2250),
        ("b300-sxm", "fp4", 13500), ("b300-sxm", "int8", 153.5), ("gb300-nvl72", "int8", 165),
        ("a40", "bf16", 149.7), ("a40", "int8", 299.3),
        ("l4", "bf16", 121), ("l40s", "bf16", 362.05), ("mi355x", "fp4", 10066.3), ("trainium2", "fp8", 1299),
        ("gb10-dgx-spark", "fp4", 500),
    ],
)  # fmt: skip
def test_peaks_are_dense(name, dtype, teraflops):
    assert load_hardware(name).peak_flops_per_s[dtype] == pytest.approx(teraflops * 1e12, rel=1e-12)


@pytest.mark.parametrize(("name", "half"), [("rtx-3090", 71.2), ("rtx-4090", 165.2), ("rtx-5090", 209.5)])
def test_geforce_peaks_are_of_fp32_accumulation(name, half):
    assert load_hardware(name).peak_flops_per_s["bf16"] == half * 1e12


def test_professional_cards_accumulate_in_fp32_at_the_full_rate():
    assert load_hardware("rtx-6000-ada").peak_flops_per_s["bf16"] == 364.2e12
    assert load_hardware("rtx-pro-6000-blackwell-ws").peak_flops_per_s["bf16"] == 503.8e12


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [
        ("a100-sxm-80gb", 300), ("h100-sxm", 450), ("h200-sxm", 450), ("b200-sxm", 900), ("gb200-nvl72", 900),
        ("tpu-v5p", 600), ("tpu-v7x-ironwood", 600), ("tpu-v6e", 400), ("tpu-v5e", 200), ("mi300x", 448),
        ("a40", 56.25),
    ],
)  # fmt: skip
def test_scale_up_links_are_one_way(name, gigabytes):
    assert load_hardware(name).scale_up.bytes_per_s == gigabytes * 1e9


@pytest.mark.parametrize(
    ("name", "gigabytes"), [("mi300x", 64), ("tpu-v5e", 50), ("tpu-v5p", 100), ("tpu-v6e", 100)]
)
def test_a_mesh_or_torus_gives_one_peer_one_link(name, gigabytes):
    assert load_profile(name).scale_up.peer_bytes_per_s.value == gigabytes * 1e9


def test_a_switch_gives_any_peer_the_whole_rate():
    assert load_profile("h100-sxm").scale_up.peer_bytes_per_s is None


def test_b200_is_180_gb_with_400_gbit_nics_and_pcie_5():
    b200 = load_hardware("b200-sxm")
    assert (b200.memory_bytes, b200.capacity_bytes) == (180 * 10**9, 183_359 * MIB)
    assert b200.scale_out.bytes_per_s == 400e9 / 8
    assert b200.host.bytes_per_s == 63e9


@pytest.mark.parametrize(
    ("name", "mebibytes"),
    [("h100-sxm", 81_559), ("h200-sxm", 143_771), ("b300-sxm", 275_040), ("a100-sxm-80gb", 81_920)],
)
def test_capacity_is_what_the_driver_shows_where_that_is_known(name, mebibytes):
    assert load_hardware(name).capacity_bytes == mebibytes * MIB


def test_h100_shows_more_than_80_gb_and_less_than_80_gib():
    assert 80 * 10**9 < load_hardware("h100-sxm").capacity_bytes < 80 * GIB


def test_google_counts_in_gib():
    assert load_hardware("tpu-v5e").memory_bytes == 16 * GIB
    assert load_hardware("tpu-v5p").memory_bytes == 95 * GIB


@pytest.mark.parametrize(
    ("name", "terabytes"),
    [
        ("a100-sxm-40gb", 1.555), ("a100-pcie-80gb", 1.935), ("a100-sxm-80gb", 2.039),
        ("h100-pcie", 2.0), ("h100-sxm", 3.35), ("h100-nvl", 3.9), ("b200-sxm", 7.7),
        ("rtx-pro-6000-blackwell-server", 1.597), ("rtx-pro-6000-blackwell-ws", 1.792), ("rtx-5090", 1.792),
        ("tpu-v5p", 2.765), ("tpu-v5e", 0.819),
    ],
)  # fmt: skip
def test_parts_of_one_name_keep_their_own_bandwidth(name, terabytes):
    assert load_hardware(name).hbm_bytes_per_s == pytest.approx(terabytes * 1e12, rel=1e-12)


def test_mi250x_is_one_of_its_two_devices():
    die = load_hardware("mi250x")
    assert die.memory_bytes == 64 * 10**9
    assert die.hbm_bytes_per_s == 1.6385e12
    assert die.peak_flops_per_s["int8"] == die.peak_flops_per_s["bf16"] == 191.5e12


@pytest.mark.parametrize(
    ("name", "dtype", "ratio"),
    [
        ("tpu-v4", "int8", 1), ("gaudi3", "fp8", 1), ("tpu-v5p", "fp8", 1), ("tpu-v6e", "fp8", 1),
        ("tpu-v5e", "int8", 2),
    ],
)  # fmt: skip
def test_ratios_to_bf16_are_not_uniform(name, dtype, ratio):
    peaks = load_hardware(name).peak_flops_per_s
    assert peaks[dtype] == ratio * peaks["bf16"]


@pytest.mark.parametrize("name", ["a100-sxm-80gb", "v100-sxm2-32gb", "t4", "mi250x", "tpu-v4", "tpu-v5e"])
def test_chips_without_fp8_have_no_fp8_peak(name):
    assert "fp8" not in load_hardware(name).peak_flops_per_s


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("b200-sxm", "8 TB/s"), ("b300-sxm", "12.6 PFLOP/s"), ("b300-sxm", "int8"),
        ("a10g", "tdp_w"), ("a10g", "fp32"),
        ("h20", "500 W"), ("gh200-144gb", "4.8 TB/s"), ("mi355x", "576 GB/s"), ("tpu-v5e", "45 GB/s"),
        ("rtx-5090", "774 TFLOP/s"), ("gaudi3", "1.835 PFLOP/s"), ("gb200-nvl72", "2.45 PFLOP/s"),
        ("rtx-pro-6000-blackwell-server", "1.792 TB/s"),
    ],
)  # fmt: skip
def test_open_disagreements_stay_visible(name, word):
    assert any(word in line for line in load_hardware(name).disagreements)


@pytest.mark.parametrize(
    ("name", "field"), [("a10g", "tdp_w"), ("l4", "cores"), ("b300-sxm", "cores"), ("tpu-v5e", "tdp_w")]
)
def test_a_number_nobody_vouches_for_is_left_out(name, field):
    assert getattr(load_hardware(name), field) is None


def test_memory_shared_with_the_cpu_is_marked():
    assert [name for name in NAMES if load_hardware(name).unified_memory] == [
        "gb10-dgx-spark", "m2-ultra", "m3-ultra", "m4-max-40c",
    ]  # fmt: skip


# Refusals

BF16 = "peak_flops_per_s.bf16"


@pytest.mark.parametrize(
    ("path", "value", "key", "reason"),
    [
        ("memory_bytes.source", ..., "memory_bytes.source", "missing"),
        ("memory_bytes.source", "  ", "memory_bytes.source", "empty"),
        ("memory_bytes.source", "two\nlines", "memory_bytes.source", "unprintable"),
        ("scale_up.domain.source", ..., "scale_up.domain.source", "missing"),
        ("hbm_bytes_per_s", ..., "hbm_bytes_per_s", "missing"),
        ("name", ..., "name", "missing"),
        ("name", "", "name", "not a name"),
        ("vendor", "\x1b[31m", "vendor", "not a name"),
        ("notes", [""], "notes", "empty"),
        (f"{BF16}.density", ..., f"{BF16}.density", "not declared dense"),
        (f"{BF16}.density", "sparse", f"{BF16}.density", "not declared dense"),
        (f"{BF16}.note", "with 2:4 sparsity", f"{BF16}.note", "sparsity"),
        (f"{BF16}.source", "data sheet (sparse)", f"{BF16}.source", "sparsity"),
        (f"{BF16}.confused_with", [{"value": 989.4e12, "reason": "x"}], f"{BF16}.value", "confused_with"),
        (f"{BF16}.disputed", [{"value": 1e12}], f"{BF16}.disputed[0].source", "missing"),
        (f"{BF16}.disputed", [{"value": -1e12, "source": "x"}], f"{BF16}.disputed.value", "not a positive"),
        ("peak_flops_per_s.fp8.value", 3957e12, "peak_flops_per_s.fp8", "implausible as dense"),
        ("peak_flops_per_s.int8.value", 3958e12, "peak_flops_per_s.int8.value", "confused_with"),
        ("peak_flops_per_s.tf32.value", 1979e12, "peak_flops_per_s.tf32", "implausible as dense"),
        ("peak_flops_per_s", {}, "peak_flops_per_s", "no bf16"),
        ("scale_up.bytes_per_s.direction", ..., "scale_up.bytes_per_s.direction", "not declared one-way"),
        ("scale_up.bytes_per_s.direction", "both ways", "scale_up.bytes_per_s.direction", "one-way"),
        ("scale_up.domain.value", 0, "scale_up.domain.value", "not a positive"),
        ("hbm_bytes_per_s.value", -1, "hbm_bytes_per_s.value", "not a positive"),
        ("hbm_bytes_per_s.value", 0.0, "hbm_bytes_per_s.value", "not a positive"),
        ("hbm_bytes_per_s.value", math.nan, "hbm_bytes_per_s.value", "nan is not a positive"),
        ("hbm_bytes_per_s.value", math.inf, "hbm_bytes_per_s.value", "not a positive"),
        ("hbm_bytes_per_s.value", 3.35, "hbm_bytes_per_s.value", "outside"),
        ("hbm_bytes_per_s.value", 1.792e15, "hbm_bytes_per_s.value", "outside"),
        ("hbm_bytes_per_s.value", 10**400, "hbm_bytes_per_s.value", "out of range"),
        ("memory_bytes.value", 10**400, "memory_bytes.value", "outside"),
        ("memory_bytes.value", -(10**400), "memory_bytes.value", "not a positive"),
        ("memory_bytes.value", 80, "memory_bytes.value", "outside"),
        ("memory_bytes.value", 80e9, "memory_bytes.value", "Expected `int`"),
        ("memory_bytes.value", True, "memory_bytes.value", "Expected `int`"),
        ("memory_bytes.value", "80 GB", "memory_bytes.value", "Expected `int`"),
        ("visible_memory_bytes.value", 8_555_200_000, "visible_memory_bytes.value", "far from memory_bytes"),
        ("hbm_bytes_per_s", 3.35e12, "hbm_bytes_per_s", "is not a table"),
        ("hbm_bytes", -1, "hbm_bytes", "unknown key"),
        ("scale_up.latency", 1, "scale_up.latency", "unknown key"),
        ("peak_flops_per_s.fp9", {}, "peak_flops_per_s.fp9", "unknown key"),
        ("tdp_w.value", 0.7e9, "tdp_w.value", "outside"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_with_file_key_reason_and_way_out(path, value, key, reason):
    error = refusal(changed(path, value))
    assert (error.where, error.key and error.key.startswith(key)) == ("my.toml", True)
    assert reason in error.reason
    assert error.way_out
    assert "\n" not in str(error)


def test_a_missing_source_says_that_ones_own_measurement_is_one():
    assert "my own measurement" in str(refusal(changed("memory_bytes.source", ...)))


def test_a_peer_cannot_get_more_than_the_whole_rate():
    error = refusal(changed("scale_up.peer_bytes_per_s.value", 896e9, "mi300x"))
    assert error.key == "scale_up.peer_bytes_per_s.value"


def test_a_reason_explains_an_odd_ratio_but_not_any_ratio():
    assert "ratio_reason" in str(refusal(changed("peak_flops_per_s.fp4.ratio_reason", ..., "b300-sxm")))
    assert refusal(changed("peak_flops_per_s.fp4.value", 18e16, "b300-sxm"))


@pytest.mark.parametrize("text", ["without sparsity", "dense, no sparsity", "not sparse", "non-sparse"])
def test_denying_sparsity_is_welcome(text):
    assert check_profile(changed(f"{BF16}.note", text), "my.toml")


def test_a_figure_with_sparsity_may_stand_in_confused_with():
    others = load_profile("h100-sxm").peak_flops_per_s.bf16.confused_with
    assert [(other.value, other.reason) for other in others] == [(1979e12, "with sparsity")]


# Files


def write(folder, content):
    path = folder / "mine.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


MINIMAL = """
name = "my card"
vendor = "me"
[memory_bytes]
value = 24_000_000_000
source = "my own measurement"
[hbm_bytes_per_s]
value = 900e9
source = "my own measurement"
[peak_flops_per_s.bf16]
value = 100e12
density = "dense"
source = "my own measurement"
"""


@pytest.mark.parametrize("start", ["", "\ufeff"])
def test_a_users_file_needs_only_memory_bandwidth_and_a_peak(tmp_path, start):
    mine = load_hardware(write(tmp_path, start + MINIMAL))
    assert (mine.name, mine.capacity_bytes) == ("my card", 24 * 10**9)
    assert mine.peak_flops_per_s == {"bf16": 100e12}
    assert mine.scale_up is mine.scale_out is mine.host is mine.tdp_w is None
    assert mine.disagreements == ()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("hbm_bytes = -1", "unknown key"),
        ("", "missing"),
        ("name = ", "not readable as TOML"),
        (b"\x00\xff\xfe\x80", "not readable as TOML"),
        (b"\x00\x01\x02", "not readable as TOML"),
        ("a = " + "[" * 20_000, "nested too deep"),
        ("a = " + "9" * 5000, "not readable as TOML"),
        ("name = 1979-05-27", "Expected `str`"),
        (MINIMAL + MINIMAL, "not readable as TOML"),
        (b"#" * (MAX_BYTES + 1), "larger than a machine"),
    ],
    ids=["one-line", "empty", "cut", "not-utf8", "binary", "deep", "long-int", "date", "twice", "huge"],
)
def test_a_file_that_is_no_profile_is_refused_on_one_line(tmp_path, content, reason):
    path = write(tmp_path, content)
    with pytest.raises(BadInput) as caught:
        load_hardware(path)
    assert caught.value.where == path
    assert reason in caught.value.reason
    assert "\n" not in str(caught.value)
    assert caught.value.way_out


def test_one_line_of_a_file_names_the_key_it_was_meant_to_be(tmp_path):
    with pytest.raises(BadInput, match=r"hbm_bytes: unknown key \(did you mean hbm_bytes_per_s"):
        load_hardware(write(tmp_path, "hbm_bytes = -1"))


NEWCOMERS = """
name = "mine"
memory_bytes = 80e9
hbm_bytes_per_s = { value = 3e12 }
tdp_w = { value = -1, source = "x" }
[peak_flops_per_s]
bf16 = { value = 1e15, source = "x" }
fp8 = 2e15
[scale_up]
bytes_per_s = { value = 450e9 }
"""
MISFITS = {
    "vendor": "missing",
    "memory_bytes": "is not a table",
    "hbm_bytes_per_s.source": "missing",
    "tdp_w.value": "is not a positive number",
    "peak_flops_per_s.bf16.density": "is not declared dense",
    "peak_flops_per_s.fp8": "is not a table",
    "scale_up.name": "missing",
    "scale_up.bytes_per_s.source": "missing",
}


def test_all_that_is_missing_is_said_at_once(tmp_path):
    path = write(tmp_path, NEWCOMERS)
    with pytest.raises(BadInput) as caught:
        load_hardware(path)
    said = caught.value.one_line()
    for key, reason in MISFITS.items():
        assert any(key in part and reason in part for part in said.split("; ")), (key, said)
    assert "kvroof show h100-sxm --toml" in said


REQUIRED = [
    *(
        "name",
        "vendor",
        "memory_bytes",
        "memory_bytes.value",
        "memory_bytes.source",
        "hbm_bytes_per_s.source",
    ),
    *("peak_flops_per_s.bf16.value", "peak_flops_per_s.fp8.density", "scale_up.name", "host.bytes_per_s"),
    *("scale_up.bytes_per_s.direction", "scale_out.bytes_per_s.source", "tdp_w.value", "cores.source"),
]


@given(st.sets(st.sampled_from(REQUIRED), min_size=1))
def test_each_of_any_missing_keys_is_named_and_nothing_else(keys):
    keys = {key for key in keys if not any(key.startswith(f"{other}.") for other in keys)}
    data = shipped("h100-sxm")
    for key in keys:
        *path, last = key.split(".")
        del functools.reduce(dict.__getitem__, path, data)[last]
    error = refusal(data)
    heads = [part.rpartition(": ")[0] or error.key for part in error.reason.split("; ")]
    assert {key for head in heads for key in head.split(", ")} == keys


@pytest.mark.parametrize("name", NAMES)
def test_a_profile_that_is_shown_as_toml_is_read_back_as_it_was(kvroof, name):
    shown = kvroof("show", name, "--toml")
    assert shown.code == 0
    assert check_profile(tomllib.loads(shown.out), "shown") == load_profile(name)


def test_a_model_has_no_toml(kvroof):
    answer = kvroof("show", "llama-3.1-8b", "--toml")
    assert (answer.code, "--toml" in answer.err) == (2, True)


def test_a_missing_file_a_folder_and_an_endless_name_are_refused(tmp_path):
    for path in (tmp_path / "none.toml", tmp_path, tmp_path / ("x" * 5000 + ".toml")):
        with pytest.raises(BadInput) as caught:
            load_hardware(str(path))
        assert "\n" not in str(caught.value)


# Fuzz

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(10**300, 10**320),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from([-1, 0, 1e12, "dense", "one-way", [], {}, [{}], {"value": 1e12, "source": "me"}]),
)


def paths(data, here=()):
    for key, value in data.items():
        yield (*here, key)
        if isinstance(value, dict):
            yield from paths(value, (*here, key))


FUZZED = {name: shipped(name) for name in ("b300-sxm", "a10g", "tpu-v5e")}


@settings(max_examples=300, deadline=None)
@given(st.data(), st.sampled_from(sorted(FUZZED)), st.integers(1, 3))
def test_a_mutated_profile_gives_a_typed_refusal_or_a_sound_answer(data, name, changes):
    profile = copy.deepcopy(FUZZED[name])
    for _ in range(changes):
        *heads, last = data.draw(st.sampled_from(sorted(paths(profile))))
        table = profile
        for head in heads:
            table = table[head]
        action = data.draw(st.sampled_from(["set", "drop", "rename"]))
        old = table.pop(last)
        if action == "set":
            table[last] = data.draw(SCALARS)
        elif action == "rename":
            table[data.draw(st.text(max_size=8))] = old
    try:
        checked = check_profile(profile, "fuzz.toml")
    except KvroofError as error:
        refused = error
    else:
        refused, hardware = None, hardware_of(checked)
    if refused:
        assert "\n" not in str(refused)
        assert refused.where == "fuzz.toml"
        return
    numbers = [hardware.memory_bytes, hardware.hbm_bytes_per_s, *hardware.peak_flops_per_s.values()]
    assert all(0 < number < math.inf for number in numbers)
    assert json.dumps(checked.as_dict(), allow_nan=False)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_bytes_of_any_kind_never_end_in_a_traceback(tmp_path_factory, content):
    path = write(tmp_path_factory.getbasetemp(), content)
    with pytest.raises(BadInput):
        load_hardware(path)
