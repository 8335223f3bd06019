"""Files that lie in memory, read without letting other threads at the GIL: all of them, or nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.store.resident_file import read_resident


@pytest.mark.parametrize("size", [1, 4_096, 30_001, (1 << 18) - 1, 1 << 18])
def test_a_file_is_read_whole(tmp_path: Path, size: int) -> None:
    """Where the kernel says that it lies in memory, which it need not."""
    file = tmp_path / "file"
    file.write_bytes(content := os.urandom(size))
    for _ in range(3):
        assert read_resident(os.fsencode(file)) in (content, None)


def test_what_would_wait_or_is_no_small_file_is_not_read(tmp_path: Path) -> None:
    """Nothing, a folder, a link, a pipe, an empty and a large file; and nothing stays open."""
    for name in ("empty", "large"):
        (tmp_path / name).write_bytes(bytes(((1 << 18) + 1) * (name == "large")))
    (tmp_path / "link").symlink_to(__file__)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    handles = os.listdir("/proc/self/fd")
    for name in ("empty", "large", "link", "pipe", "folder", "missing"):
        assert read_resident(os.fsencode(tmp_path / name)) is None, name
    assert os.listdir("/proc/self/fd") == handles
