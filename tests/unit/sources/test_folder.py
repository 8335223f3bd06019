"""Which files of a folder are taken, and that the others are spoken of."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

import headrace as hr
from headrace.sources.folder import Folder, find_all_files


def names(folder: Folder) -> list[str]:
    """Return the ids of a folder's jobs."""
    return [entry.id for entry in folder.entries()]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Return a folder of what people keep in folders."""
    (tmp_path / "photos").mkdir()
    (tmp_path / "elsewhere").mkdir()
    for name in (
        "a.jpg",
        "b.JFIF",
        "c.jpe",
        "d.tiff",
        "e.heic",
        "f.HEIC",
        "g.avif",
        "labels.jsonl",
        ".h.jpg",
        ".DS_Store",
    ):
        (tmp_path / "photos" / name).touch()
    (tmp_path / "photos" / ".cache").mkdir()
    (tmp_path / "photos" / "more").symlink_to(tmp_path / "elsewhere")
    return tmp_path / "photos"


def test_names_of_every_format_of_a_plan_are_taken(photos: Path) -> None:
    """JPEGs under their rarer names and TIFF are jobs."""
    assert names(Folder(photos)) == ["a.jpg", "b.JFIF", "c.jpe", "d.tiff"]


def test_images_left_out_are_said(photos: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Images that no Plan accepts, hidden ones and folders that are not entered are counted; other files are not."""
    names(Folder(photos))
    (said,) = caplog.messages
    kinds = said.removeprefix(f"{photos}: 4 files are taken; left out are ").split(", ")
    assert sorted(kinds) == [
        ".avif (no Plan accepts them): 1",
        ".heic (no Plan accepts them): 2",
        "hidden folders: 1",
        "hidden images: 1",
        "links to folders: 1",
    ]


def test_a_folder_of_which_all_is_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where nothing is left out but what is no image, nothing is said."""
    caplog.set_level(logging.INFO)
    for name in ("a.jpg", "labels.jsonl", "readme.txt"):
        (tmp_path / name).touch()
    assert names(Folder(tmp_path)) == ["a.jpg"]
    assert caplog.messages == []


def test_patterns_say_which_names_count(photos: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Who names the patterns is not told of other images."""
    assert names(Folder(photos, patterns=["*.heic"])) == ["e.heic", "f.HEIC"]
    assert "avif" not in caplog.text


def test_a_folder_that_is_too_deep_is_one_rejection(tmp_path: Path) -> None:
    """The system opens no path above 4,096 bytes; the other files are read, and the run ends."""
    (tmp_path / "a.jpg").write_bytes(b"a")
    here = os.open(tmp_path, os.O_RDONLY)
    try:
        for _ in range(25):
            os.mkdir("z" * 200, dir_fd=here)
            inner = os.open("z" * 200, os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = inner
    finally:
        os.close(here)
    kept = hr.collect()
    result = hr.run(hr.Pipeline(hr.folder(tmp_path), stages=[hr.fetch("fetch")], delivery=kept))
    assert dict(kept.results) == {"a.jpg": b"a"}
    assert (result.counters.rejected, result.counters.retried) == (1, 0)


def test_files_of_any_other_ending_are_told_where_that_is_asked(photos: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In a folder of clips nobody would miss them."""
    (photos / "notes").touch()
    find_all_files([photos], patterns=("*.tiff", "*.jp*"), tells_others=True)
    (said,) = caplog.messages
    assert "names without an ending: 1" in said
    assert ".heic: 2" in said
