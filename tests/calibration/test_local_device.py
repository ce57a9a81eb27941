"""The local machine's profile: nothing guessed, every number with its source, and a file that loads."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvroof.calibration.local.device import KINDS, Device, Reached, known_as, local_device, propose
from kvroof.calibration.local.hardware_file import hardware_toml, write_hardware
from kvroof.catalog.profiles import check_profile, hardware_names, load_hardware, load_profile

CPU = Device(
    platform="cpu",
    kind="AMD EPYC 7763 (64-Core)",
    count=2,
    jax_version="0.10.2",
    memory_bytes=25_276_063_744,
    memory_source="reported by the operating system",
    llc_bytes=2**25,
    llc_source="reported by the operating system",
    cores=2,
)
REACHED = Reached(
    bytes_per_s=1.23456e10,
    bytes_source="a copy",
    flops_per_s={"fp32": 1.5e11, "bf16": 4e10},
    flops_sources={"fp32": "512 x 512", "bf16": "512 x 512"},
    link_bytes_per_s=3e9,
)
WHEN = "2026-11-30, jax 0.10.2"


def test_kinds_are_of_machines_in_the_catalog():
    assert set(KINDS.values()) <= set(hardware_names())
    assert known_as("NVIDIA H200") == "h200-sxm"
    assert known_as("TPU v5 lite") == "tpu-v5e"
    assert known_as("NVIDIA H100  80GB HBM3") == "h100-sxm"
    assert known_as("cpu") is None


def test_a_proposal_is_a_file_that_the_catalog_reads(tmp_path):
    path = tmp_path / "cpu.toml"
    profile = propose(CPU, REACHED, WHEN)
    write_hardware(profile, path)
    machine = load_hardware(str(path))
    assert machine.name == "cpu-amd-epyc-7763-64-core-2-cores"
    assert machine.memory_bytes == CPU.memory_bytes
    assert machine.hbm_bytes_per_s == pytest.approx(REACHED.bytes_per_s, rel=1e-3)
    assert machine.peak_flops_per_s == pytest.approx(REACHED.flops_per_s, rel=1e-3)
    assert machine.scale_up.bytes_per_s == pytest.approx(3e9)
    assert machine.scale_up.domain == 2
    assert (machine.cores, machine.llc_bytes) == (2, 2**25)


def test_every_rate_says_that_it_was_measured_when_and_with_what(tmp_path):
    path = tmp_path / "cpu.toml"
    write_hardware(propose(CPU, REACHED, WHEN), path)
    held = dict(load_profile(str(path)).quantities())
    rates = [q for key, q in held.items() if key.endswith("per_s") or "flops" in key]
    assert len(rates) == 4
    assert all(q.source.startswith(f"measured by kvroof calibrate, {WHEN}") for q in rates)
    assert held["memory_bytes"].source == CPU.memory_source


@given(kind=st.text(max_size=60), cores=st.integers(1, 512))
@settings(max_examples=50)
def test_any_device_gets_a_name_that_the_catalog_takes(kind, cores):
    device = Device(platform="cpu", kind=kind, memory_bytes=2**34, memory_source="said", cores=cores)
    profile = propose(device, REACHED, WHEN)
    assert check_profile(profile.as_dict(), "here") == profile
    assert hardware_toml(profile).isascii() or kind


def test_the_device_here_is_described():
    device = local_device()
    assert device.memory_bytes > 2**28
    assert device.count >= 1
    assert device.jax_version
