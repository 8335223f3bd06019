"""A letterbox that `preprocess` makes itself: where boxes and masks end up, in golden folders and on the way back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

import headrace as hr
from headrace.base.errors import SettingsError
from headrace.validate.golden_folder import read_golden_folder
from headrace.validate.preparation import Preparation, find_stages_before_model

SIDE = 64


class OwnLetterbox(hr.Module):
    """Puts the scaled image below twelve rows and right of four columns of border."""

    input = hr.ImageInput(short_side=80)
    notes = True

    def preprocess(self, image: np.ndarray) -> Any:
        """Return (side, side, 3)."""
        height, width = 40, round(image.shape[1] * 40 / image.shape[0])
        canvas = np.full((SIDE, SIDE, 3), 114, np.uint8)
        canvas[12 : 12 + height, 4 : 4 + width] = cv2.resize(image, (width, height))
        if self.notes:
            hr.note_placement(scaled=(height, width), top=-12, left=-4, size=(SIDE, SIDE))
        self.seen = hr.current_placements()[0]
        return canvas

    def process(self, batch: Any) -> Any:
        """Return nothing of interest."""
        return [None for _ in batch]


class Silent(OwnLetterbox):
    """Says nothing of it."""

    notes = False


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return one image with a red box, and labels that know the box and a mask."""
    image = np.zeros((160, 200, 3), np.uint8)
    image[40:80, 100:140, 2] = 255  # BGR
    cv2.imwrite(str(tmp_path / "a.png"), image)
    mask = np.zeros((160, 200), np.uint8)
    mask[40:80, 100:140] = 1
    cv2.imwrite(str(tmp_path / "mask.png"), mask)
    row = {"file": "a.png", "boxes": [[100, 40, 140, 80]], "classes": [1]}
    (tmp_path / "labels.jsonl").write_text(json.dumps(row) + "\n")
    return tmp_path


def test_boxes_of_a_golden_folder_follow_what_preprocess_says(folder: Path) -> None:
    """The box lies on the red pixels of what the model gets."""
    golden = read_golden_folder(folder, OwnLetterbox())
    (item,) = np.asarray(golden.inputs)
    rows, columns = np.nonzero((item[..., 0] > 180) & (item[..., 1] < 60))
    x1, y1, x2, y2 = golden.truth["boxes"][0, 0]
    assert (x1, y1, x2, y2) == pytest.approx((columns.min(), rows.min(), columns.max() + 1, rows.max() + 1), abs=1)


def test_masks_of_a_golden_folder_follow_it_too(folder: Path) -> None:
    """With 255 in the border that was added."""
    (folder / "labels.jsonl").write_text(json.dumps({"file": "a.png", "mask": "mask.png"}) + "\n")
    golden = read_golden_folder(folder, OwnLetterbox())
    item, mask = np.asarray(golden.inputs)[0], golden.truth["mask"][0]
    assert (mask[:12] == 255).all()
    assert ((mask == 1) == ((item[..., 0] > 127) & (item[..., 1] < 60))).mean() > 0.98


def test_boxes_that_are_found_lead_back_to_the_file(folder: Path) -> None:
    """Through the decoder's scale and the module's own."""
    module = OwnLetterbox()
    Preparation(find_stages_before_model(module))((folder / "a.png").read_bytes())
    there = module.seen.to_input(np.array([100.0, 40.0, 140.0, 80.0]))
    assert module.seen.image == (160, 200)
    assert there == pytest.approx([4 + 25, 12 + 10, 4 + 35, 12 + 20])
    assert module.seen.to_image(there) == pytest.approx([100, 40, 140, 80])


def test_a_preprocess_that_says_nothing_is_refused_with_what_to_say(folder: Path) -> None:
    """Where boxes end up is not known."""
    with pytest.raises(SettingsError, match=r"hr\.note_placement\(scaled="):
        read_golden_folder(folder, Silent())


def test_a_place_that_is_none_is_refused() -> None:
    """Where no image is at hand, and where a length is below 1."""
    with pytest.raises(SettingsError, match="no image is at hand"):
        hr.note_placement(scaled=(10, 10))
    with pytest.raises(SettingsError, match="scaled"):
        hr.note_placement(scaled=(0, 10))
