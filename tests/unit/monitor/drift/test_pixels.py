"""What the statistics of pixels say of real photographs that were changed on purpose."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from headrace.monitor.drift.pixels import PIXEL_FEATURES, measure_pixels
from headrace.samples.generator import crops
from headrace.stages.decode import decode

_RANDOM = np.random.default_rng(3)


@pytest.fixture(scope="module")
def photographs() -> list[np.ndarray]:
    """Some crops of the photographs, decoded."""
    return [decode(crop.data, short_side=256) for crop in crops(12, 5)]


def _means(images: list[np.ndarray]) -> dict[str, float]:
    rows = [measure_pixels(image) for image in images]
    return dict(zip(PIXEL_FEATURES, np.mean([row for row in rows if row is not None], axis=0), strict=True))


@pytest.mark.parametrize(
    ("change", "up", "down"),
    [
        (lambda image: (image * 0.6).astype(np.uint8), [], ["brightness", "dark_end", "bright_end", "contrast"]),
        (lambda image: cv2.GaussianBlur(image, (0, 0), 2.0), [], ["sharpness", "noise"]),
        (
            lambda image: np.clip(image + _RANDOM.normal(0, 12, image.shape), 0, 255).astype(np.uint8),
            ["noise", "sharpness"],
            [],
        ),
        (
            lambda image: np.clip(image * np.array([1.3, 1.0, 0.7]), 0, 255).astype(np.uint8),
            ["red_cast"],
            ["blue_cast"],
        ),
        (lambda image: cv2.cvtColor(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB), [], ["saturation"]),
    ],
    ids=["darker", "blurred", "noisier", "redder", "grey"],
)
def test_a_change_moves_the_statistics_that_are_named_for_it(
    photographs: list[np.ndarray], change: object, up: list[str], down: list[str]
) -> None:
    """Each statistic moves in the direction that its words promise."""
    before, after = _means(photographs), _means([change(image) for image in photographs])  # type: ignore[operator]
    assert all(after[name] > before[name] for name in up)
    assert all(after[name] < before[name] for name in down)


def test_brightness_is_that_of_all_pixels(photographs: list[np.ndarray]) -> None:
    """A sample of 64 x 64 pixels tells the mean of all within three grey levels, on average over images."""
    whole = np.mean([cv2.cvtColor(image, cv2.COLOR_RGB2GRAY).mean() for image in photographs])
    assert _means(photographs)["brightness"] == pytest.approx(whole, abs=3)


@pytest.mark.parametrize(
    "image",
    [
        np.zeros((4, 100, 3), np.uint8),
        np.zeros((100, 100, 3), np.float32),
        np.zeros((100, 100, 4), np.uint8),
        np.zeros(100, np.uint8),
    ],
    ids=["too small", "not bytes", "four channels", "no image"],
)
def test_what_is_no_image_has_none(image: np.ndarray) -> None:
    """None, not numbers that mean nothing."""
    assert measure_pixels(image) is None


def test_black_and_grey_images_have_finite_statistics() -> None:
    """An image of one colour, or of one channel, ends in no logarithm of zero."""
    for image in (np.zeros((50, 70, 3), np.uint8), np.full((50, 70), 255, np.uint8)):
        found = measure_pixels(image)
        assert found is not None
        assert np.isfinite(found).all()
