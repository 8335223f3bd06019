"""How a pipeline's own stages prepare an image for its model, whatever they hand past it."""

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
from headrace.validate.preparation import find_stages_before_model, shape_of_any

SIDE = 16


def blob(image: np.ndarray) -> np.ndarray:
    """(height, width, 3) uint8 -> (3, 16, 16) float32."""
    return np.ascontiguousarray(cv2.resize(image, (SIDE, SIDE)).transpose(2, 0, 1), np.float32)


class Sized(hr.Module):
    """A detector whose postprocess needs the size of the image."""

    input = hr.ImageInput()

    def preprocess(self, image: np.ndarray) -> tuple[np.ndarray, tuple[int, int]]:
        """Return what the model takes, and the size."""
        return blob(image), image.shape[:2]

    def process(self, batch: Any) -> list[Any]:
        """Answer nothing."""
        return [0] * len(batch)


class Bare(hr.Module):
    """The same behind a fan-out that keeps the size."""

    input = hr.ArrayInput()

    def process(self, batch: Any) -> list[Any]:
        """Answer nothing."""
        return [0] * len(batch)


def fanned(module: hr.Module, pieces: int) -> list[Any]:
    """Return the stages of a pipeline that hands the image's size around the model."""
    whole = hr.ImageInput()
    return [
        hr.fetch("fetch"), hr.decode("decode", whole),
        hr.fan_out("cut", lambda image: hr.Fan([blob(image)] * pieces, keep=image.shape[:2])), *module.stages(),
        hr.join("join", lambda joined: joined.keep),
    ]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three images of three sizes, with labels."""
    for number in range(3):
        cv2.imwrite(str(tmp_path / f"{number}.png"), np.full((20 + number, 30, 3), 60 * number, np.uint8))
    lines = [json.dumps({"file": f"{number}.png", "label": number}) for number in range(3)]
    (tmp_path / "labels.jsonl").write_text("\n".join(lines))
    return tmp_path


def test_what_is_handed_past_the_model_is_left_aside(folder: Path) -> None:
    """Of (blob, size) the model gets the blob."""
    golden = read_golden_folder(folder, Sized())
    assert golden.inputs.shape == (3, 3, SIDE, SIDE)
    assert golden.inputs[2].max() == 120


def test_a_fan_out_before_the_model_is_followed(folder: Path) -> None:
    """The pipeline's own stages prepare the image for a module that decodes nothing itself."""
    module = Bare()
    golden = read_golden_folder(folder, module, stages=fanned(module, 1))
    assert golden.inputs.shape == (3, 3, SIDE, SIDE)
    assert golden.labels is not None
    assert golden.labels.tolist() == [0, 1, 2]


def test_children_are_items_of_their_own_where_no_labels_are_asked_for(folder: Path) -> None:
    """As calibration data; what is true of an image is not known of its pieces."""
    module = Bare()
    golden = read_golden_folder(folder, module, stages=fanned(module, 2), labelled=False)
    assert len(golden) == 6
    assert [Path(file).name for file in golden.files] == ["0.png", "0.png", "1.png", "1.png", "2.png", "2.png"]
    with pytest.raises(SettingsError, match="makes 2 items of it"):
        read_golden_folder(folder, module, stages=fanned(module, 2))


def test_without_an_image_before_the_model_there_is_no_folder(folder: Path) -> None:
    """It is said, and what to give instead."""
    with pytest.raises(SettingsError, match=r"no stage of the pipeline decodes images for it.*\.npz"):
        read_golden_folder(folder, Bare())


def test_what_is_no_array_is_told(folder: Path) -> None:
    """Such as words."""

    class Words(Sized):
        def preprocess(self, image: np.ndarray) -> Any:
            return "text"

    with pytest.raises(SettingsError, match="is a str and no array of numbers"):
        read_golden_folder(folder, Words())


def test_the_shape_of_any_image_tells_what_the_model_gets() -> None:
    """And nothing where user code makes nothing of noise."""

    class Broken(Sized):
        def preprocess(self, image: np.ndarray) -> Any:
            raise ValueError("no face")

    assert shape_of_any(find_stages_before_model(Sized())) == (3, SIDE, SIDE)
    assert shape_of_any(find_stages_before_model(Broken())) is None
