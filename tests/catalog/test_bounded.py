"""Whatever reads a stranger's file refuses at once what does not end, and reads no more than its bound."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvroof.calibration.profile import read_profile
from kvroof.calibration.served import read_points
from kvroof.calibration.sources import read_csv
from kvroof.catalog.bounded import read_bytes, read_text
from kvroof.catalog.config import read_json
from kvroof.catalog.profiles import load_profile
from kvroof.cli.main import main
from kvroof.ground.errors import BadInput
from kvroof.serving.demand.traces import read_trace

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="named pipes and devices of POSIX")


def read_log_file(path: Path) -> None:
    """Explain a log."""
    asked = ["kv", "llama-3.1-8b", "--engine", "vllm", "--log", str(path)]
    CliRunner().invoke(main, asked, standalone_mode=False, catch_exceptions=False)


READERS: dict[str, Callable[[Path], object]] = {
    "config.json": read_json,
    "machine.toml": lambda path: load_profile(str(path)),
    "calibration.toml": lambda path: read_profile(str(path)),
    "points.csv": read_points,
    "points.jsonl": read_points,
    "kernels.csv": lambda path: read_csv(path, ["seconds"]),
    "trace.jsonl": read_trace,
    "trace.csv.gz": read_trace,
    "engine.log": read_log_file,
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("kind", ["device", "pipe", "folder", "nothing"])
def test_no_reader_opens_what_is_not_a_file(name: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    reason = {"pipe": "nobody writes", "nothing": "no such file"}.get(kind, "not a regular file")
    with pytest.raises(BadInput, match=rf"(?s){name}.*{reason}.*give "):
        READERS[name](path)


def test_a_file_is_read_to_its_bound_and_no_further(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"\xef\xbb\xbf12345")
    assert read_text(path, 8, "a text") == "12345"
    with pytest.raises(BadInput, match=r"larger than a text may be.*give a text"):
        read_text(path, 7, "a text")
    with path.open("wb") as file:
        file.truncate(2**40)  # more than a machine's memory, and none of it on the disk
    with pytest.raises(BadInput, match="larger"):
        read_bytes(path, 10, "a text")
    path.write_bytes(b"\xff")
    with pytest.raises(BadInput, match="not UTF-8 text"):
        read_text(path, 7, "a text")


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="pipes have no names here")
@pytest.mark.parametrize("sent", [b"a,b\n1,2\n", b"a" * 1000])
def test_a_pipe_that_someone_writes_to_is_read_within_the_bound(sent: bytes) -> None:
    reading, writing = os.pipe()
    os.write(writing, sent)
    os.close(writing)
    try:
        path = Path(f"/dev/fd/{reading}")
        if len(sent) <= 100:
            assert read_bytes(path, 100, "a table") == sent
            return
        with pytest.raises(BadInput, match="larger"):
            read_bytes(path, 100, "a table")
    finally:
        os.close(reading)
