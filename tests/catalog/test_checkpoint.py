"""Weight bytes from headers: exact, bounded, and refused where a file is not whole."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter
from safetensors.numpy import save_file

import kvroof
from kvroof.catalog.checkpoint import checkpoint_bytes
from kvroof.ground.errors import BadInput
from kvroof.spec.params import weight_bytes

CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
    "torch_dtype": "bfloat16",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a config."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def test_safetensors_shards_are_added_up(folder: Path) -> None:
    save_file({"a": np.zeros((10, 10), np.float16)}, folder / "model-00001-of-00002.safetensors")
    save_file(
        {"b": np.zeros(7, np.float32), "c": np.zeros(3, np.int8)}, folder / "model-00002-of-00002.safetensors"
    )
    assert checkpoint_bytes(folder) == 200 + 28 + 3
    assert weight_bytes(kvroof.load_model(folder)) == 231


def test_weights_kept_twice_are_counted_once(folder: Path) -> None:
    save_file({"a": np.zeros(8, np.float16)}, folder / "model.safetensors")
    save_file({"a": np.zeros(8, np.float16)}, folder / "consolidated.safetensors")
    assert checkpoint_bytes(folder) == 16


def test_gguf_headers_give_the_bytes_of_their_tensors(folder: Path) -> None:
    writer = GGUFWriter(folder / "weights.gguf", "llama")
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float32))
    writer.add_tensor("output.weight", np.zeros((4, 32), np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert checkpoint_bytes(folder) == 4 * 32 * 4 + 4 * 32 * 2


def test_a_folder_without_tensors_leaves_the_count(folder: Path) -> None:
    assert checkpoint_bytes(folder) is None
    model = kvroof.load_model(folder)
    assert weight_bytes(model) == 2 * sum(
        w.elements for w in [*model.embedding, model.lm_head, *model.final]
    ) + 2 * sum(w.elements * group.count for group in model.layers for w in group.layer.weights)


@pytest.mark.parametrize("name", ["model.safetensors", "weights.gguf"])
@pytest.mark.parametrize("content", [b"", b"\x00" * 7, b"\xff" * 64, b"GGUF\x03\x00\x00\x00" + b"\xff" * 16])
def test_files_that_are_not_whole_are_refused(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(BadInput, match="not a whole"):
        kvroof.load_model(folder)


def test_a_truncated_shard_is_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    save_file({"a": np.zeros(1000, np.float32)}, path)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(BadInput, match="not a whole"):
        checkpoint_bytes(folder)
