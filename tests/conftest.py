"""Fixtures shared by all tests: configuration S of the seed lessons, config files, and the command line."""

import json
import os
import sys
from typing import Any, NamedTuple

import pytest

# As the command does, for the workers that share the cores.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Workers of pytest-xdist are told a width, which tables would take for the reader's.
os.environ.pop("COLUMNS", None)

CONFIG_S = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
}
"""32 layers, 8 KV heads of 128, 2 bytes, full attention: 131,072 B per token."""


class Answer(NamedTuple):
    """What the command left behind: exit code, standard output, standard error."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The answer as a program reads it; NaN and Infinity are not JSON."""
        return json.loads(self.out, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))


@pytest.fixture
def write_config(tmp_path):
    """Return a function that writes configuration S with changes, less some keys, and returns its path."""

    def write(name="s", without=(), **changes):
        data = {key: value for key, value in (CONFIG_S | changes).items() if key not in without}
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(data), encoding="utf-8")
        return path

    return write


@pytest.fixture
def config_s(write_config):
    """Return the path of configuration S."""
    return write_config()


@pytest.fixture
def config_mha(write_config):
    """Return the path of configuration S with 32 KV heads."""
    return write_config("mha", num_key_value_heads=32)


@pytest.fixture
def kvroof(monkeypatch, capsys):
    """Return a function that runs the command in this process, through the entry point users run."""
    from kvroof.cli.main import run

    def call(*args) -> Answer:
        monkeypatch.setattr(sys, "argv", ["kvroof", *map(str, args)])
        capsys.readouterr()
        code = 0
        try:
            run()
        except SystemExit as stop:
            code = stop.code or 0
        out, err = capsys.readouterr()
        return Answer(code, out, err)

    return call


@pytest.fixture
def few_kernels(monkeypatch):
    """Let the local device be calibrated with four small products, and the host's time be stated."""
    from kvroof.calibration.local import calibrate
    from kvroof.calibration.local.shapes import Shapes
    from kvroof.calibration.profile import Host

    shapes = Shapes(
        products=((4, 64, 64), (16, 64, 128), (64, 128, 64), (32, 128, 128)),
        attention=(),
        layers=((4, 64),),
        dtypes=("fp32",),
        passes=(2**22,),
    )
    stated = Host(step_s=1e-4, seq_s=1e-6, source="stated by a test")
    monkeypatch.setattr(calibrate, "shapes_for", lambda platform, quick: shapes)
    monkeypatch.setattr(calibrate, "_host", lambda *given: stated)
    return shapes
