"""Weight bytes from the headers of a checkpoint's files: safetensors or GGUF, never the tensors.

The readers are the formats' own packages (`safetensors`, `gguf`), imported only when such files are there.
"""

from __future__ import annotations

from pathlib import Path

from kvroof.ground.errors import BadInput

MAX_FILES = 4096
LENGTH_PREFIX = 8
"""Bytes before a safetensors header that say how long it is."""


def checkpoint_bytes(folder: Path) -> int | None:
    """Return the bytes of all tensors in a checkpoint's folder, None where it holds no tensor files.

    Sharded `model*.safetensors` are taken before others of the kind (a repository may hold the same
    weights twice), and safetensors before GGUF.

    Raises:
        BadInput: A file that is not what its name says, or more files than a checkpoint has.
    """
    for pattern in ("model*.safetensors", "*.safetensors", "*.gguf"):
        files = sorted(path for path in folder.glob(pattern) if path.is_file())
        if len(files) > MAX_FILES:
            raise BadInput(f"{len(files)} files are more than {MAX_FILES}", where=str(folder))
        if files:
            read = _gguf_bytes if pattern.endswith("gguf") else _safetensors_bytes
            return sum(read(path) for path in files)
    return None


def _safetensors_bytes(path: Path) -> int:
    """Return the tensor bytes of one file: what follows its header, which the reader has checked."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="numpy") as opened:
            opened.keys()
        with path.open("rb") as file:
            header = int.from_bytes(file.read(LENGTH_PREFIX), "little")
    except (SafetensorError, OSError, ValueError) as error:
        raise BadInput(f"not a whole safetensors file ({error})", where=str(path)) from None
    return path.stat().st_size - LENGTH_PREFIX - header


def _gguf_bytes(path: Path) -> int:
    """Return the tensor bytes that a GGUF header lists."""
    from gguf import GGUFReader

    try:
        tensors = GGUFReader(str(path)).tensors
    except Exception as error:  # the reader raises whatever the bytes lead it to
        raise BadInput(f"not a whole GGUF file ({error})", where=str(path)) from None
    return sum(int(tensor.n_bytes) for tensor in tensors)
