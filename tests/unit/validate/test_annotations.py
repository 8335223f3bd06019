"""Boxes and masks of a golden folder: they stay on what they mark, and what is wrong with a line is told."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image

import headrace as hr
from headrace.base.errors import SettingsError
from headrace.validate.golden_folder import read_golden_folder

#: The marked rectangle: x1, y1, x2, y2 in an image of 80 x 48 pixels.
MARKED = (32, 12, 48, 24)

Write = Callable[..., Path]


class Small(hr.Module):
    """Takes the central square of 24 pixels of what is scaled to 24."""

    input = hr.ImageInput(short_side=24, crop=24)

    def preprocess(self, image: np.ndarray) -> np.ndarray:
        """Scale and put the channels first."""
        return (image.astype(np.float32) / 255).transpose(2, 0, 1)

    def process(self, batch: Any) -> Sequence[Any]:
        """Return nothing of interest."""
        return [0] * len(batch)


class Letterboxed(Small):
    """Takes all of the image, with a border above and below."""

    input = hr.ImageInput(long_side=40, pad="#727272")


class Boxed(Small):
    """Adds a border, as letterboxing does."""

    def preprocess(self, image: np.ndarray) -> np.ndarray:
        """Pad."""
        return np.pad(image, ((4, 4), (4, 4), (0, 0)))


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a black image with a white rectangle, its mask, and lines about it."""

    def make(*lines: Mapping[str, Any], orientation: int = 1) -> Path:
        image = np.zeros((48, 80, 3), np.uint8)
        x1, y1, x2, y2 = MARKED
        image[y1:y2, x1:x2] = 255
        upright = {6: cv2.ROTATE_90_COUNTERCLOCKWISE}.get(orientation)
        exif = Image.Exif()
        exif[274] = orientation
        stored = image if upright is None else cv2.rotate(image, upright)
        Image.fromarray(stored).save(tmp_path / "a.png", exif=exif)
        mask = Image.fromarray((image[..., 0] > 0).astype(np.uint8) * 3, mode="P")
        mask.putpalette([0, 0, 0, 9, 9, 9, 8, 8, 8, 7, 7, 7])
        mask.save(tmp_path / "mask.png")
        np.save(tmp_path / "mask.npy", np.zeros((48, 80), np.int64))
        np.save(tmp_path / "small.npy", np.zeros((48, 79), np.int64))
        np.save(tmp_path / "negative.npy", np.full((48, 80), -1))
        np.save(tmp_path / "colour.npy", np.zeros((48, 80, 3), np.uint8))
        rows = [{"file": "a.png", **line} for line in lines]
        (tmp_path / "labels.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
        return tmp_path

    return make


@pytest.mark.parametrize("orientation", [1, 6])
def test_boxes_and_masks_stay_on_what_they_mark(write: Write, orientation: int) -> None:
    """After scaling by a half and cropping 8 columns: the white pixels, also of an image that is stored on its side."""
    folder = write(
        {"boxes": [list(MARKED), [0, 0, 10, 10]], "classes": [1, 0], "mask": "mask.png"}, orientation=orientation
    )
    golden = read_golden_folder(folder, Small(), ["cat", "dog"])
    white = golden.inputs[0, 0] > 0.5
    rows, columns = np.flatnonzero(white.any(axis=1)), np.flatnonzero(white.any(axis=0))
    assert golden.truth["boxes"].tolist() == [[[columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]]]
    assert golden.truth["classes"].tolist() == [[1]]  # the other was cut off
    assert ((golden.truth["mask"][0] == 3) == white).all()
    assert golden.labels is None


def test_marks_of_letterboxed_images_are_within_the_border(write: Write) -> None:
    """Nothing is cut off, boxes and masks are moved by the border, and of its pixels nobody knows the class."""
    folder = write({"boxes": [list(MARKED), [0, 0, 80, 48]], "classes": [1, 0], "mask": "mask.png"})
    golden = read_golden_folder(folder, Letterboxed(), ["cat", "dog"])
    white = golden.inputs[0, 0] > 0.5
    rows, columns = np.flatnonzero(white.any(axis=1)), np.flatnonzero(white.any(axis=0))
    marked = [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]
    assert golden.truth["boxes"].tolist() == [[marked, [0, 8, 40, 32]]]
    mask = golden.truth["mask"][0]
    assert ((mask == 3) == white).all()
    assert (mask[:8] == 255).all()
    assert (mask[32:] == 255).all()
    assert not (mask[8:32] == 255).any()


def test_images_without_anything_are_items_too(write: Write) -> None:
    """Rows are filled up with class -1, and a box beyond the edge is cut at it."""
    folder = write(
        {"boxes": [], "classes": []},
        {"boxes": [[0, 0, 80, 48], [32, 12, 48, 24]], "classes": ["dog", "cat"]},
        {"label": None},
    )
    golden = read_golden_folder(folder, Small(), ["cat", "dog"])
    assert golden.truth["classes"].tolist() == [[-1, -1], [1, 0]]
    assert golden.truth["boxes"][1, 0].tolist() == [0, 0, 24, 24]


def test_masks_are_no_images_to_calibrate_with(write: Write) -> None:
    """Any images of a folder will do where nothing is asked of them, but those."""
    folder = write({"mask": "mask.png"}, {"label": 0})
    golden = read_golden_folder(folder, Small(), labelled=False)
    assert golden.files == [str(folder / "a.png")]


def test_other_boxes_are_another_golden_set(write: Write) -> None:
    """The hash is of the truth as well."""
    one = read_golden_folder(write({"boxes": [[32, 12, 48, 24]], "classes": [0]}), Small())
    other = read_golden_folder(write({"boxes": [[32, 12, 48, 25]], "classes": [0]}), Small())
    assert one.sha256 != other.sha256


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ({"boxes": [[1, 2, 3]], "classes": [0]}, r"line 1: \[1, 2, 3\] is no box; expected four numbers"),
        ({"boxes": [[1, 2, "3", 4]], "classes": [0]}, "four numbers"),
        ({"boxes": [[9, 2, 3, 4]], "classes": [0]}, "x1 < x2"),
        ({"boxes": [[1, 2, float("nan"), 4]], "classes": [0]}, "is no label"),
        ({"boxes": [[1, 2, 3, 4]], "classes": [-1]}, "class -1 is none"),
        ({"boxes": [[1, 2, 3, 4]], "classes": [True]}, "class True is none"),
        ({"boxes": [[1, 2, 3, 4]], "classes": ["ox"]}, "class 'ox' is none.*cat, dog"),
        ({"boxes": [[1, 2, 3, 4]], "classes": []}, "two lists of one length"),
        ({"boxes": [[1, 2, 3, 4]]}, "two lists of one length"),
        ({"mask": "missing.png"}, "missing.png cannot be read"),
        ({"mask": "labels.jsonl"}, "labels.jsonl cannot be read"),
        ({"mask": "small.npy"}, "79 x 48 pixels, and its image 80 x 48"),
        ({"mask": "negative.npy"}, "of -1 to -1; expected"),
        ({"mask": "colour.npy"}, r"uint8\[48, 80, 3\]"),
    ],
)
def test_what_is_wrong_with_a_line_is_told(write: Write, line: Mapping[str, Any], told: str) -> None:
    """The value that was seen, and what was expected."""
    with pytest.raises(SettingsError, match=told):
        read_golden_folder(write(line), Small(), ["cat", "dog"])


def test_lines_that_tell_different_things_are_refused(write: Write) -> None:
    """A label here and boxes there make no set."""
    with pytest.raises(SettingsError, match="line 2 has label, and lines before have boxes"):
        read_golden_folder(write({"boxes": [], "classes": []}, {"label": 1}), Small())


def test_preprocessing_that_moves_pixels_itself_is_refused(write: Write) -> None:
    """Nobody could tell where the boxes end up."""
    with pytest.raises(SettingsError, match="where its boxes end up is not known"):
        read_golden_folder(write({"boxes": [[1, 2, 3, 4]], "classes": [0]}), Boxed())
