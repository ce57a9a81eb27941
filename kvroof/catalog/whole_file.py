"""Writing a file whole or not at all: an interrupted run leaves the old one, or none."""

from __future__ import annotations

import os
from pathlib import Path

from kvroof.ground.errors import BadInput


def writable(name: str, endings: tuple[str, ...], where: str) -> Path:
    """Return the path of a file that may be written, before anything is computed for it.

    Args:
        name: What was asked for.
        endings: What it may end in, the usual one first; anything where there are none.
        where: The option that names it.

    Raises:
        BadInput: Another ending, a folder that does not exist, or a place that cannot be written to.
    """
    shown, path = f"{where} {name[-80:]}", Path(name)
    if endings and path.suffix.lower() not in endings:
        known = endings[0] if len(endings) == 1 else f"one of {', '.join(endings)}"
        raise BadInput(f"does not end in {known}", where=shown, way_out=f"name it like x{endings[0]}")
    if not os.path.isdir(path.absolute().parent):
        raise BadInput("its folder does not exist", where=shown)
    try:
        taken = path.exists()
    except OSError as error:
        raise BadInput(f"cannot be written: {error.strerror}", where=shown) from None
    if path.is_dir():
        raise BadInput("is a folder", where=shown)
    if not os.access(path if taken else path.absolute().parent, os.W_OK):
        raise BadInput("cannot be written: no permission", where=shown)
    return path


def write_whole(path: str | Path, content: str | bytes, where: str = "") -> None:
    """Write a file in one step: beside its place first, then moved onto it.

    Args:
        path: The file. One that is there is replaced; a pipe or a device is written to as it is.
        content: Text in UTF-8, or bytes.
        where: What an error calls the place; the path unless said.

    Raises:
        BadInput: A place that cannot be written to.
    """
    target = Path(path)
    data = content.encode("utf-8") if isinstance(content, str) else content
    try:
        if target.exists() and not target.is_file():
            target.write_bytes(data)
            return
        part = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            part.write_bytes(data)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no such place"
        raise BadInput(f"cannot be written: {reason}", where=where or str(path)) from None
