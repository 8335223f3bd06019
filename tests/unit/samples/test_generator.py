"""Cutting labelled images from the photographs."""

from __future__ import annotations

import io
import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from headrace.samples.catalogue import NAMES, SPLITS, Split, photograph
from headrace.samples.generator import LONG_SIDE_PIXELS, crops, make
from headrace.samples.labels import Label, read_labels


@cache
def _many_records() -> tuple[Label, ...]:
    """Return the records of enough clean images to speak of shares and means."""
    return tuple(crop.record for crop in crops(200, 2))


def _read_folder(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    """Two folders of the same count and seed are equal byte for byte, labels included."""
    for name in ("one", "two"):
        make(tmp_path / name, count=16, seed=7, messy_ratio=0.5)

    assert _read_folder(tmp_path / "one") == _read_folder(tmp_path / "two")


def test_another_seed_gives_other_bytes() -> None:
    """No image of one seed is among those of another."""
    assert not {crop.data for crop in crops(6, 1)} & {crop.data for crop in crops(6, 2)}


def test_clean_images_do_not_depend_on_the_count() -> None:
    """The first images of a longer run are those of a shorter one."""
    assert list(crops(3, 5)) == list(crops(8, 5))[:3]


def test_crops_are_what_make_writes(tmp_path: Path) -> None:
    """Images in memory have the bytes and the labels of those on disk."""
    manifest = make(tmp_path, count=9, seed=3, messy_ratio=0.3)
    images = list(crops(9, 3, messy_ratio=0.3))

    assert tuple(crop.record for crop in images) == manifest.labels
    assert all((tmp_path / crop.record.file).read_bytes() == crop.data for crop in images)


@pytest.mark.parametrize("split", SPLITS)
def test_regions_stay_inside_the_split(split: Split) -> None:
    """Every image is cut from inside the region of its split."""
    for crop in crops(60, 11, split=split):
        left, top, right, bottom = crop.record.region or (0, 0, 0, 0)
        allowed = photograph(str(crop.label)).region(split)
        assert allowed[0] <= left < right <= allowed[2]
        assert allowed[1] <= top < bottom <= allowed[3]


@pytest.mark.full
def test_sizes_are_those_of_photographs_on_the_web() -> None:
    """Long sides lie between 480 and 1600 pixels and the mean image has about 0.9 megapixels."""
    sizes = [(record.width or 0, record.height or 0) for record in _many_records()]

    assert all(LONG_SIDE_PIXELS[0] <= max(size) <= LONG_SIDE_PIXELS[1] for size in sizes)
    assert 0.75 <= sum(width * height for width, height in sizes) / len(sizes) / 1e6 <= 1.05


@pytest.mark.full
def test_most_files_are_jpeg_some_png_and_webp() -> None:
    """All three kinds occur, JPEG in at least four of five."""
    counts = Counter(record.kind for record in _many_records())

    assert set(counts) == {"jpeg", "png", "webp"}
    assert counts["jpeg"] >= 160


def test_every_scene_gets_its_share() -> None:
    """In as many clean images as scenes, every scene occurs once."""
    assert sorted(str(crop.label) for crop in crops(len(NAMES), 8)) == sorted(NAMES)


def test_recorded_size_and_kind_are_those_of_the_file() -> None:
    """Width, height, kind and bytes are what a reader finds in the file."""
    for crop in crops(30, 6):
        with Image.open(io.BytesIO(crop.data)) as image:
            assert image.size == (crop.record.width, crop.record.height)
            assert str(image.format).lower() == crop.record.kind
        assert crop.record.bytes == len(crop.data)


def test_labels_file_has_a_line_for_every_file(tmp_path: Path) -> None:
    """Each line of `labels.jsonl` describes one file of the folder, and nothing else lies there."""
    manifest = make(tmp_path, count=10, seed=1, messy_ratio=0.4)
    lines = [json.loads(line) for line in manifest.labels_path.read_text(encoding="utf-8").splitlines()]

    assert [set(line) for line in lines] == [
        {"version", "file", "label", "kind", "messy", "region", "width", "height", "bytes"}
    ] * 10
    assert {line["file"] for line in lines} == {path.name for path in tmp_path.iterdir()} - {"labels.jsonl"}


def test_labels_are_read_back(tmp_path: Path) -> None:
    """Reading `labels.jsonl` gives the labels of the manifest."""
    manifest = make(tmp_path, count=8, seed=1, messy_ratio=1.0)

    assert read_labels(tmp_path) == manifest.labels


@pytest.mark.parametrize("line", ["{}", "[]", "not json", '{"version": 2, "region": null}'])
def test_a_line_that_is_no_label_is_refused(tmp_path: Path, line: str) -> None:
    """Reading names the line that is not a label."""
    (tmp_path / "labels.jsonl").write_text(line)

    with pytest.raises(ValueError, match=r"labels\.jsonl:1 is not a label"):
        read_labels(tmp_path)


def test_labels_of_a_later_version_are_refused(tmp_path: Path) -> None:
    """Reading labels of another version says which is known."""
    path = make(tmp_path, count=1, seed=1).labels_path
    path.write_text(path.read_text().replace('"version": 1', '"version": 9'))

    with pytest.raises(ValueError, match="has version 9, this headrace reads 1"):
        read_labels(tmp_path)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"count": 0}, "count is 0"),
        ({"messy_ratio": 1.5}, r"messy_ratio is 1\.5"),
        ({"messy_ratio": float("nan")}, "messy_ratio is nan"),
        ({"split": "test"}, "split is 'test'"),
    ],
)
def test_values_out_of_range_are_refused(tmp_path: Path, wrong: dict[str, Any], message: str) -> None:
    """A value out of its range is named, and no folder is made."""
    with pytest.raises(ValueError, match=message):
        make(tmp_path / "new", **{"count": 1, "seed": 1, **wrong})

    assert not (tmp_path / "new").exists()


def test_folder_with_files_is_refused(tmp_path: Path) -> None:
    """A folder that is not empty stays as it is."""
    (tmp_path / "notes.txt").write_text("mine")

    with pytest.raises(ValueError, match="is not empty"):
        make(tmp_path, count=1, seed=1)

    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    """A path that is a file is refused, also with force."""
    (tmp_path / "file").write_text("mine")

    with pytest.raises(ValueError, match="is a file"):
        make(tmp_path / "file", count=1, seed=1, force=True)


def test_force_replaces_an_earlier_run_and_nothing_else(tmp_path: Path) -> None:
    """With force the images of an earlier run go, other files stay."""
    make(tmp_path, count=5, seed=1)
    (tmp_path / "notes.txt").write_text("mine")

    manifest = make(tmp_path, count=2, seed=2, force=True)

    names = {path.name for path in tmp_path.iterdir()}
    assert names == {label.file for label in manifest.labels} | {"labels.jsonl", "notes.txt"}


def test_force_never_reaches_outside_the_folder(tmp_path: Path) -> None:
    """A label file that names a path elsewhere does not get it removed."""
    (tmp_path / "precious.jpg").write_text("mine")
    path = make(tmp_path / "images", count=1, seed=1).labels_path
    path.write_text(path.read_text().replace('"file": "000000.', '"file": "../precious.'))

    make(tmp_path / "images", count=1, seed=1, force=True)

    assert (tmp_path / "precious.jpg").exists()


def test_progress_is_told(tmp_path: Path) -> None:
    """Progress counts the files written."""
    seen: list[int] = []

    make(tmp_path, count=3, seed=1, progress=seen.append)

    assert seen == [1, 2, 3]
