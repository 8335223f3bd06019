"""Files that people name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.base.given_files import read_given_file


def test_a_file_is_read_up_to_a_bound(tmp_path: Path) -> None:
    """No more of it than was asked for."""
    (tmp_path / "a").write_bytes(b"abc")
    assert read_given_file(tmp_path / "a", 10) == b"abc"
    assert read_given_file(tmp_path / "a", 2) == b"ab"


def test_a_pipe_that_somebody_writes_is_read() -> None:
    """As a shell's `<(pip freeze)` is."""
    reading, writing = os.pipe()
    os.write(writing, b"numpy==2.1.0")
    os.close(writing)
    assert read_given_file(Path(f"/dev/fd/{reading}"), 100) == b"numpy==2.1.0"
    os.close(reading)


def test_a_pipe_that_nobody_writes_ends(tmp_path: Path) -> None:
    """With what it is."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="a pipe that gave nothing"):
        read_given_file(tmp_path / "pipe", 100, patience_seconds=0.01)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    """And nothing is as good as an empty file."""
    with pytest.raises(OSError, match="Is a directory"):
        read_given_file(tmp_path, 100)
    assert read_given_file(Path("/dev/null"), 100) == b""
