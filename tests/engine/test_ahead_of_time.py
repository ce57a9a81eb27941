"""Without a device: kernel and portable path lower for CUDA and TPU, and compile for H100, v5e and v6e."""

import importlib.util
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from tests.engine.ahead_of_time import CASES, KERNELS, arguments, decode_step

SCRIPT = Path(__file__).with_name("ahead_of_time.py")
MISSING = {
    "tpu": ("libtpu", "pip install libtpu==0.0.42.1"),
    "cuda": (
        "jax_plugins.xla_cuda12",
        "pip install --no-deps jax-cuda12-plugin jax-cuda12-pjrt, as old as jaxlib",
    ),
}


def _has(module):
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _needs(platform):
    module, install = MISSING[platform]
    return pytest.mark.skipif(not _has(module), reason=f"{module} is not installed: {install}")


def _abstract(platform, kind):
    """Return a device that only has a name; JAX before 0.10 does not ask for its platform."""
    known = {"device_kind": kind, "num_cores": 1, "platform": platform}
    wanted = inspect.signature(jax.sharding.AbstractDevice).parameters
    return jax.sharding.AbstractDevice(**{name: known[name] for name in wanted if name in known})


@pytest.mark.skipif(not _has("flatbuffers"), reason="flatbuffers is not installed: pip install flatbuffers")
@pytest.mark.parametrize("path", ["kernel", "portable"])
@pytest.mark.parametrize("platform", ["cuda", "tpu"])
@pytest.mark.parametrize("name", ["gqa, window", "mla"])
def test_a_decode_step_exports(platform, path, name):
    from jax import export

    kinds = {"cuda": "NVIDIA H100 80GB HBM3", "tpu": "TPU v5 lite"}
    device = _abstract(platform, kinds[platform])
    mesh = jax.sharding.AbstractMesh((1,), ("x",), abstract_device=device)
    calls = ["triton_kernel_call", "__gpu$xla.gpu.triton", "tpu_custom_call"]
    kernel = KERNELS[platform] if path == "kernel" else None
    with jax.sharding.use_abstract_mesh(mesh):
        exported = export.export(
            jax.jit(decode_step(CASES[name], kernel)),
            platforms=[platform],
            disabled_checks=[export.DisabledSafetyCheck.custom_call(call) for call in calls],
        )(*arguments(CASES[name]))
    assert exported.platforms == (platform,)
    assert any(call in exported.mlir_module() for call in calls) == (path == "kernel")


def _compiled(platform, topology, names):
    root = SCRIPT.parents[2]
    path = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, str(SCRIPT), platform, topology, *names],
        capture_output=True,
        text=True,
        # libtpu is loaded here too, where JAX looks for devices, and would lock the other process out.
        env={**os.environ, "PYTHONPATH": path, "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"},
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def _assert_pages_are_all_that_is_large(answers, slack_bytes):
    """Arguments are the pages and the small rest; the pages are updated in place; a kernel copies none."""
    for answer in answers:
        given = answer["page_bytes"] + answer["other_argument_bytes"]
        assert given <= answer["argument_bytes"] <= given + slack_bytes, answer
        assert answer["page_bytes"] <= answer["aliased_bytes"] <= answer["page_bytes"] + slack_bytes, answer
        if answer["path"] == "kernel":
            assert answer["temporary_bytes"] < answer["page_bytes"], answer


@pytest.mark.aot_tpu
@_needs("tpu")
@pytest.mark.parametrize("topology", ["v5e:2x2", "v6e:2x2"])
def test_a_decode_step_compiles_for_a_tpu(topology):
    names = ["gqa", "gqa, window", "mla"]
    answers = _compiled("tpu", topology, names)
    assert [(a["case"], a["path"]) for a in answers] == [
        (n, p) for n in names for p in ("kernel", "portable")
    ]
    _assert_pages_are_all_that_is_large(answers, slack_bytes=2**14)


@pytest.mark.aot_cuda
@_needs("cuda")
def test_a_decode_step_compiles_for_an_h100():
    names = list(CASES)
    answers = _compiled("cuda", "1x1x1", names)
    assert [(a["case"], a["path"]) for a in answers] == [
        (n, p) for n in names for p in ("kernel", "portable")
    ]
    _assert_pages_are_all_that_is_large(answers, slack_bytes=2**14)
