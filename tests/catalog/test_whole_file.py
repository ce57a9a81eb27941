"""A file is written whole or not at all."""

import os
from pathlib import Path

import pytest

from kvroof.catalog.whole_file import write_whole
from kvroof.ground.errors import BadInput


def test_text_and_bytes_arrive_as_they_are(tmp_path):
    write_whole(tmp_path / "a", "µs\n")
    write_whole(tmp_path / "b", b"\xff")
    assert (tmp_path / "a").read_bytes() == "µs\n".encode()
    assert (tmp_path / "b").read_bytes() == b"\xff"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    held = tmp_path / "held.json"
    held.write_text("old")

    def half(self, data):
        with self.open("wb") as file:
            file.write(data[:1])
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.raises(KeyboardInterrupt):
        write_whole(held, "new")
    assert held.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["held.json"]


@pytest.mark.parametrize("name", ["missing/x.json", "a\0b", "."])
def test_a_place_that_cannot_be_written_is_named(tmp_path, name):
    with pytest.raises(BadInput, match="--out: "):
        write_whole(tmp_path / name, "x", "--out")
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_is_written_to_and_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_whole(pipe, "words")
        assert os.read(reader, 100) == b"words"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
