"""What can be told of the page cache without leaning on the disk; letting go of files is tested in integration."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from headrace.base.page_cache import evict, file_of, files_of, residency, state_of, warm
from headrace.base.pieces import Piece


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


@pytest.mark.parametrize(
    ("payload", "path"),
    [
        (Path("/a b.jpg"), Path("/a b.jpg")),
        ("file:///a%20b.jpg", Path("/a b.jpg")),
        ("https://example.com/a.jpg", None),
        (b"bytes", None),
        (Piece(Path("/a.tar"), 512, 9), None),
    ],
)
def test_which_payloads_are_files(payload: Any, path: Path | None) -> None:
    """Paths and file addresses; a part of a file is not all of it."""
    assert file_of(payload) == path


@pytest.mark.parametrize(
    ("share", "state"), [(None, None), (1.0, "warm"), (0.95, "warm"), (0.5, "mixed"), (0.05, "cold"), (0.0, "cold")]
)
def test_how_much_is_in_memory_has_a_name(share: float | None, state: str | None) -> None:
    """Of which two runs can be told apart."""
    assert state_of(share) == state


def test_each_file_is_named_once() -> None:
    """In order, however many items lie in it."""
    pieces = [Piece(Path("/b.tar"), 512, 9), Piece(Path("/a.tar"), 512, 9), Piece(Path("/b.tar"), 1536, 9), b"x"]
    assert files_of(pieces) == [Path("/b.tar"), Path("/a.tar")]
