"""Reading a file that nobody vouches for: of a kind that ends, and no more of it than it may hold."""

from __future__ import annotations

import os
import stat
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from kvroof.ground.errors import BadInput
from kvroof.ground.units import format_bytes


def open_file(path: Path, what: str, where: str | None = None) -> BufferedReader:
    """Return a regular file, or a pipe that someone writes to (`<(...)`), opened for reading.

    Args:
        path: The file.
        what: What it should be, for the way out.
        where: What an error calls the place; the path unless said.

    Raises:
        BadInput: No such file, a folder, a device, a pipe without a writer, or a file that may not be read.
    """
    where, way_out = where or str(path), f"give {what}"
    try:
        file = open(path, "rb", opener=_at_once)  # noqa: SIM115 - the caller closes it
    except (OSError, ValueError) as error:
        raise BadInput(_reason(error), where=where, way_out=way_out) from None
    mode, reason = os.fstat(file.fileno()).st_mode, ""
    if stat.S_ISFIFO(mode):
        os.set_blocking(file.fileno(), True)
        reason = "" if file.peek(1) else "a pipe that nobody writes to"
    elif not stat.S_ISREG(mode):
        reason = "not a regular file"
    if reason:
        file.close()
        raise BadInput(f"cannot be read: {reason}", where=where, way_out=way_out)
    return file


def read_bytes(path: Path, most_bytes: int, what: str, where: str | None = None) -> bytes:
    """Return the content of a file of at most `most_bytes`; see `open_file`.

    Raises:
        BadInput: A file that cannot be read, or a larger one.
    """
    with open_file(path, what, where) as file:
        return read_most(file, most_bytes, what, where or str(path))


def read_most(file: BinaryIO, most_bytes: int, what: str, where: str) -> bytes:
    """Return what is left of an open file, if that is at most `most_bytes`.

    Raises:
        BadInput: It cannot be read, or there is more.
    """
    try:
        data = file.read(most_bytes + 1)
    except OSError as error:
        raise BadInput(_reason(error), where=where, way_out=f"give {what}") from None
    if len(data) > most_bytes:
        limit = format_bytes(most_bytes)
        raise BadInput(f"is larger than {what} may be ({limit})", where=where, way_out=f"give {what}")
    return data


def read_text(path: Path, most_bytes: int, what: str) -> str:
    """Return the text of a UTF-8 file of at most `most_bytes`, less a byte order mark.

    Raises:
        BadInput: A file that cannot be read, a larger one, or one that is not text.
    """
    try:
        return read_bytes(path, most_bytes, what).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadInput("cannot be read: not UTF-8 text", where=str(path), way_out=f"give {what}") from None


def _at_once(name: str, flags: int) -> int:
    """Open without waiting for a writer, as a pipe without one would make us."""
    return os.open(name, flags | getattr(os, "O_NONBLOCK", 0))


def _reason(error: OSError | ValueError) -> str:
    known: dict[type, str] = {FileNotFoundError: "no such file", IsADirectoryError: "not a regular file"}
    return f"cannot be read: {known.get(type(error)) or getattr(error, 'strerror', None) or 'no such place'}"
