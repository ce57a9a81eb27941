"""Weight bytes from the headers of a checkpoint's files: safetensors or GGUF, never the tensors.

The readers are the formats' own packages (`safetensors`, `gguf`), imported only when such files are there.
"""

from __future__ import annotations

import re
from pathlib import Path

from kvroof.ground.errors import BadInput

MAX_FILES = 4096
LENGTH_PREFIX = 8
"""Bytes before a safetensors header that say how long it is."""


_SHARD = re.compile(r"(?P<model>.+?)(?:-(?P<part>\d{5})-of-(?P<parts>\d{5}))?\.(?:safetensors|gguf)")


def checkpoint_bytes(folder: Path) -> int | None:
    """Return the bytes of all tensors in a checkpoint's folder, None where it holds no tensor files.

    safetensors are taken before GGUF, and `model*` before a second copy under another name.

    Raises:
        BadInput: A file that is not what its name says, a missing shard, or several models at once.
    """
    for ending, read in (("safetensors", _safetensors_bytes), ("gguf", _gguf_bytes)):
        files = sorted(path for path in folder.glob(f"*.{ending}") if path.is_file())
        if files:
            return sum(read(path) for path in _one_model(folder, files))
    return None


def _one_model(folder: Path, files: list[Path]) -> list[Path]:
    """Return the files of the one model in a folder, all of its shards."""
    if len(files) > MAX_FILES:
        raise BadInput(f"{len(files)} files are more than {MAX_FILES}", where=str(folder))
    models: dict[str, list[re.Match[str]]] = {}
    for path in files:
        found = _SHARD.fullmatch(path.name)
        if found is not None:
            models.setdefault(found["model"], []).append(found)
    chosen = "model" if "model" in models else min(models)
    if len(models) > 1 and chosen != "model":
        several = ", ".join(sorted(models)[:3])
        raise BadInput(
            f"holds {len(models)} models ({several})",
            where=str(folder),
            way_out="give each a folder of its own",
        )
    shards = models[chosen]
    total = int(shards[0]["parts"] or 1)
    if len(shards) != total or any(int(shard["parts"] or 1) != total for shard in shards):
        raise BadInput(
            f"has {len(shards)} of the {total} shards of {chosen}",
            where=str(folder),
            way_out="add the missing ones",
        )
    return [folder / shard.string for shard in shards]


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
