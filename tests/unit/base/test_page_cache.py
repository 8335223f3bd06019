"""What can be told of the page cache without leaning on the disk; letting go of files is tested in integration."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.profiler.stage_bench.page_cache import evict, residency, warm


def test_a_file_just_written_is_in_memory(tmp_path: Path) -> None:
    """All its pages are, also of a size that is no multiple of a page."""
    paths = [tmp_path / f"{number}.bin" for number in range(5)]
    for number, path in enumerate(paths):
        path.write_bytes(b"x" * (4096 * number + 100))
    found = residency(paths)
    assert (found.share, found.num_files, found.reason) == (1.0, 5, "")


def test_only_a_sample_is_looked_at(tmp_path: Path) -> None:
    """Spread evenly over the list."""
    paths = [tmp_path / f"{number}.bin" for number in range(30)]
    for path in paths[::3]:
        path.write_bytes(b"x")
    assert residency(paths, sample=10).num_files == 10


@pytest.mark.parametrize(("content", "reason"), [(b"", "empty"), (None, "No such file")])
def test_what_cannot_be_told_says_why(tmp_path: Path, content: bytes | None, reason: str) -> None:
    """An empty file has no pages, one that is missing cannot be opened."""
    path = tmp_path / "a.bin"
    if content is not None:
        path.write_bytes(content)
    found = residency([path])
    assert found.share is None
    assert reason in found.reason


def test_no_files_no_share() -> None:
    """The reason says that there are none."""
    assert residency([]).reason == "there are no files"


def test_a_device_is_no_file(tmp_path: Path) -> None:
    """What cannot be mapped is told, not raised."""
    found = residency([Path("/dev/null"), tmp_path])
    assert found.share is None
    assert found.reason


def test_a_file_that_is_not_ours_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel calls every page of another's file resident."""
    path = tmp_path / "a.bin"
    path.write_bytes(b"x" * 5000)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    found = residency([path])
    assert found.share is None
    assert "owner" in found.reason


def test_a_sample_of_none_is_refused(tmp_path: Path) -> None:
    """At least one file must be looked at."""
    with pytest.raises(ValueError, match="at least 1"):
        residency([tmp_path], sample=0)


def test_letting_go_changes_no_file(tmp_path: Path) -> None:
    """Contents are the same afterwards; reading warms again."""
    path = tmp_path / "a.bin"
    path.write_bytes(b"content" * 1000)
    evict(path)
    warm([path, tmp_path / "missing"])
    assert path.read_bytes() == b"content" * 1000
    assert residency([path]).share == 1.0
