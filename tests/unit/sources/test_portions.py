"""Portions of a source: each item in one of them, whatever else is there."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from headrace.base.errors import SettingsError
from headrace.sources.folder import Folder
from headrace.sources.items import Items
from headrace.sources.portions import Portion, PortionOf, take_portion
from headrace.sources.records import Records
from headrace.sources.urls import UrlList
from headrace.sources.video import Video


@pytest.mark.parametrize("count", [1, 2, 3, 8, 64])
def test_every_item_is_in_one_portion_and_portions_are_about_equal(count: int) -> None:
    """Names that count up, as files are called."""
    ids = [f"photos/{number:05}.jpg" for number in range(6_400)]
    portions = [Portion(index, count) for index in range(count)]
    sizes = Counter(portion for item in ids for portion in portions if portion.holds(item))
    assert sum(sizes.values()) == len(ids)
    assert all(abs(sizes[portion] - len(ids) / count) < 5 * (len(ids) / count) ** 0.5 for portion in portions)


def test_an_item_keeps_its_portion_when_others_come(tmp_path: Path) -> None:
    """A portion is started later, or again, and the folder has grown."""
    for number in range(40):
        (tmp_path / f"{number}.jpg").write_bytes(b"")
    before = [{entry.id for entry in PortionOf(Folder(tmp_path), Portion(index, 3)).entries()} for index in range(3)]
    (tmp_path / "00.jpg").write_bytes(b"")
    after = [{entry.id for entry in PortionOf(Folder(tmp_path), Portion(index, 3)).entries()} for index in range(3)]
    assert all(old <= new for old, new in zip(before, after, strict=True))
    assert sorted(item for portion in after for item in portion) == sorted(os.listdir(tmp_path))


def test_names_that_are_no_text_have_a_portion() -> None:
    """As a file system of another encoding gives them."""
    assert sum(Portion(index, 4).holds("caf\udce9.jpg") for index in range(4)) == 1


def test_what_the_source_knows_is_passed_on(tmp_path: Path) -> None:
    """Tries, place and kind of its items."""
    one = PortionOf(UrlList(["https://example.com/a"], max_receives=7), Portion(0, 2))
    assert (one.max_receives, one.where, one.gives_files) == (7, "portion 0/2 of a list in the program", False)
    (tmp_path / "a.jpg").write_bytes(b"")
    files = PortionOf(Folder(tmp_path), Portion(1, 2))
    assert files.gives_files
    assert files.job_ids()("a.jpg") is Portion(1, 2).holds("a.jpg") is files.owns("a.jpg")


def test_clips_are_whole(tmp_path: Path) -> None:
    """A clip belongs to one portion, and so do its frames; the place says which portion it is."""
    for number in range(8):
        (tmp_path / f"{number}.mp4").write_bytes(b"")
    portions = [take_portion(Video(tmp_path), Portion(index, 2)) for index in range(2)]
    named = [[entry.id for entry in one.parts()] for one in portions]
    assert all(named)
    assert sorted(named[0] + named[1]) == [f"{number}.mp4" for number in range(8)]
    frame = f"{named[0][0]}#7"
    assert [one.owns(frame) for one in portions] == [one.job_ids()(frame) for one in portions] == [True, False]
    assert str(portions[1].where).startswith("portion 1/2 of the frames of ")


def test_what_has_no_list_is_refused(tmp_path: Path) -> None:
    """Each run is given files of its own, or a source that is known by its place."""
    with pytest.raises(SettingsError, match="files of its own with --source"):
        take_portion(Records(tmp_path / "a.parquet"), Portion(0, 2))
    with pytest.raises(SettingsError, match="nothing tells where the items of Items come from"):
        PortionOf(Items([b"a", b"b"]), Portion(0, 2))


@pytest.mark.parametrize(
    ("text", "says"),
    [("8/8", "the last of 8 is 7/8"), *[(text, "expected I/N") for text in ("1", "-1/8", "0/0", "/", "a/b", "²/3")]],
)
def test_a_portion_that_is_none_is_explained(text: str, says: str) -> None:
    """With what was expected."""
    with pytest.raises(ValueError, match=says):
        Portion.parse(text)


def test_names_sort_as_portions_do() -> None:
    """So that `cat` puts their results in order."""
    names = [Portion(index, 12).name for index in range(12)]
    assert names[2] == "02-of-12"
    assert names == sorted(names)
