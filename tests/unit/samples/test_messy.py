"""Each fault is produced, recorded, and behaves as its name says."""

from __future__ import annotations

import io
from functools import cache

import cv2
import numpy as np
import pytest
from PIL import Image, ImageOps

from headrace.samples.generator import Crop, crops
from headrace.samples.messy import MESSY_KINDS, ORIENTATION_TAG, MessyKind

COUNT, SEED = 48, 21


@cache
def _messy() -> tuple[Crop, ...]:
    return tuple(crops(COUNT, SEED, messy_ratio=1.0))


@cache
def _clean() -> tuple[Crop, ...]:
    return tuple(crops(COUNT, SEED))


def _of(kind: MessyKind) -> list[Crop]:
    return [crop for crop in _messy() if crop.record.messy == kind]


def _pixels(data: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(ImageOps.exif_transpose(image).convert("RGB").resize((256, 256)))


def _clean_twin(crop: Crop) -> Crop:
    """Return the clean image of the same number, cut from the same place to the same size."""
    number = int(crop.record.file.split(".")[0])
    twin = _clean()[number]
    assert twin.record.region == crop.record.region
    return twin


def _sharpness(pixels: np.ndarray) -> float:
    return float(cv2.Laplacian(cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY), cv2.CV_64F).var())


def test_every_fault_gets_its_share() -> None:
    """Faults are dealt in turn, so that each occurs equally often."""
    assert {kind: len(_of(kind)) for kind in MESSY_KINDS} == dict.fromkeys(MESSY_KINDS, COUNT // len(MESSY_KINDS))


@pytest.mark.parametrize(("ratio", "expected"), [(0.0, 0), (0.25, 10), (1.0, 40)])
def test_ratio_is_met_exactly(ratio: float, expected: int) -> None:
    """The share of messy files is the one asked for."""
    assert sum(crop.record.messy is not None for crop in crops(40, 1, messy_ratio=ratio)) == expected


def test_blur_is_less_sharp() -> None:
    """A blurred image has less fine detail than its clean twin."""
    crop = _of("blur")[0]

    assert _sharpness(_pixels(crop.data)) < 0.9 * _sharpness(_pixels(_clean_twin(crop).data))


def test_low_light_is_darker() -> None:
    """An image in low light has less than half of its clean twin's brightness."""
    crop = _of("low_light")[0]

    assert _pixels(crop.data).mean() < 0.5 * _pixels(_clean_twin(crop).data).mean()


def test_rotation_leaves_dark_corners() -> None:
    """A rotated image keeps its size and is black in the corners that rotation laid bare."""
    for crop in _of("rotation"):
        pixels = _pixels(crop.data)
        assert max(pixels[corner].max() for corner in ((0, 0), (0, -1), (-1, 0), (-1, -1))) < 40


def test_orientation_is_upright_once_the_tag_is_obeyed() -> None:
    """Obeying the tag gives nearly the pixels of the clean twin; ignoring it does not."""
    for crop in _of("orientation"):
        with Image.open(io.BytesIO(crop.data)) as image:
            assert image.getexif()[ORIENTATION_TAG] in (3, 6, 8)
        twin = _pixels(_clean_twin(crop).data).astype(float)
        assert np.abs(_pixels(crop.data) - twin).mean() < 8


def test_orientation_swaps_the_stored_sides() -> None:
    """Tags 6 and 8 store the image on its side: the recorded width is the clean twin's height."""
    for crop in _of("orientation"):
        with Image.open(io.BytesIO(crop.data)) as image:
            turned = image.getexif()[ORIENTATION_TAG] in (6, 8)
        twin = _clean_twin(crop).record
        stored = (twin.height, twin.width) if turned else (twin.width, twin.height)
        assert (crop.record.width, crop.record.height) == stored


@pytest.mark.parametrize(("kind", "mode"), [("grey", "L"), ("cmyk", "CMYK")])
def test_channels_are_those_of_the_name(kind: MessyKind, mode: str) -> None:
    """Grey files have one channel, CMYK files four."""
    for crop in _of(kind):
        with Image.open(io.BytesIO(crop.data)) as image:
            assert image.mode == mode


def test_truncated_begins_well_and_breaks_off() -> None:
    """A truncated file is recognised as JPEG of its size but cannot be decoded whole."""
    for crop in _of("truncated"):
        with Image.open(io.BytesIO(crop.data)) as image:
            assert image.size == (crop.record.width, crop.record.height)
            with pytest.raises(OSError, match="truncated"):
                image.load()


def test_not_an_image_is_an_error_page() -> None:
    """What is not an image is HTML under an image's name, without label, region or size."""
    for crop in _of("not_an_image"):
        record = crop.record
        assert crop.data.startswith(b"<!DOCTYPE html>")
        assert record.file.endswith(".jpg")
        assert (record.label, record.region, record.width, record.height) == (None, None, None, None)


def test_only_broken_files_count_as_undecodable() -> None:
    """Files that OpenCV cannot read at all are among those recorded as undecodable."""
    for crop in _messy():
        if crop.record.decodable:
            assert cv2.imdecode(np.frombuffer(crop.data, np.uint8), cv2.IMREAD_COLOR) is not None
    assert {crop.record.messy for crop in _messy() if not crop.record.decodable} == {"truncated", "not_an_image"}
