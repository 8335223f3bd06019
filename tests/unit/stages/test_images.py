"""Resize, crop and normalise, against plain NumPy."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import DecodeRejected
from headrace.stages import images
from headrace.stages.images import IMAGENET_MEAN, IMAGENET_STD, Slot, centre_crop, fit, normalize, scaled_size, slot
from headrace.stages.inputs import ImageInput


def noise(height: int, width: int, channels: int = 3) -> np.ndarray:
    """An image of random pixels, always the same."""
    return np.random.default_rng(0).integers(0, 256, (height, width, channels), np.uint8)


def linear(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Bilinear resize by its definition: pixel centres at half, edges repeated."""

    def axis(length: int, wanted: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        place = np.clip((np.arange(wanted) + 0.5) * length / wanted - 0.5, 0, length - 1)
        before = np.floor(place).astype(int)
        return before, np.minimum(before + 1, length - 1), place - before

    top, bottom, down = axis(image.shape[0], height)
    left, right, across = axis(image.shape[1], width)
    pixels = image.astype(np.float64)
    rows = pixels[top] * (1 - down)[:, None, None] + pixels[bottom] * down[:, None, None]
    return rows[:, left] * (1 - across)[:, None] + rows[:, right] * across[:, None]


@pytest.mark.parametrize(
    ("height", "width", "short_side", "size"),
    [(100, 150, 50, (50, 75)), (150, 100, 50, (75, 50)), (40, 60, 80, (80, 120)), (300, 451, 256, (256, 385))],
)
def test_fit_resizes_as_bilinear_interpolation_says(
    height: int, width: int, short_side: int, size: tuple[int, int]
) -> None:
    """The shorter side gets its length, the form stays, and pixels are those of the definition within rounding."""
    image = noise(height, width)
    resized = fit(image, ImageInput(short_side=short_side))
    assert (resized.shape, resized.dtype) == ((*size, 3), np.uint8)
    assert np.abs(resized - linear(image, *size)).max() <= 1.5


def test_fit_by_area_averages() -> None:
    """Area interpolation by a whole factor is the mean of each block."""
    image = noise(64, 96)
    blocks = image.reshape(16, 4, 24, 4, 3).mean(axis=(1, 3))
    assert np.abs(fit(image, ImageInput(short_side=16, interpolation="area")) - blocks).max() <= 0.5 + 1e-6


def test_interpolations_differ() -> None:
    """Each interpolation is its own."""
    image = noise(64, 64)
    linear_, area, cubic = (
        fit(image, ImageInput(short_side=24, interpolation=kind)) for kind in ("linear", "area", "cubic")
    )
    assert not np.array_equal(linear_, area)
    assert not np.array_equal(linear_, cubic)


@pytest.mark.parametrize(("height", "width"), [(100, 150), (151, 100), (50, 50)])
def test_fit_crops_the_centre(height: int, width: int) -> None:
    """After the resize the central square is cut out."""
    image = noise(height, width)
    fitted = fit(image, ImageInput(short_side=50, crop=40))
    whole = fit(image, ImageInput(short_side=50))
    top, left = (whole.shape[0] - 40) // 2, (whole.shape[1] - 40) // 2
    np.testing.assert_array_equal(fitted, whole[top : top + 40, left : left + 40])


@pytest.mark.parametrize(
    "wanted",
    [
        ImageInput(),
        ImageInput(short_side=50),
        ImageInput(short_side=20),
        ImageInput(crop=50),
        ImageInput(crop=30),
        ImageInput(short_side=50, crop=30),
        ImageInput(short_side=80, crop=80),
    ],
    ids=str,
)
def test_fit_returns_an_image_of_its_own(wanted: ImageInput) -> None:
    """The result shares no memory with the image, keeps nothing larger alive, and lies row by row."""
    image = noise(50, 50)
    fitted = fit(image, wanted)
    assert not np.shares_memory(fitted, image)
    assert fitted.base is None
    assert fitted.flags.c_contiguous


@given(st.integers(50, 5000), st.integers(50, 5000), st.integers(1, 1000))
def test_scaled_size(height: int, width: int, short_side: int) -> None:
    """The shorter side has its length exactly, the longer one its proportion within half a pixel."""
    size = scaled_size(height, width, short_side)
    assert min(size) == short_side
    assert abs(max(size) - max(height, width) * short_side / min(height, width)) <= 0.5


@pytest.mark.parametrize(
    ("height", "width", "side", "top", "left"), [(10, 10, 4, 3, 3), (11, 10, 4, 3, 3), (4, 9, 4, 0, 2)]
)
def test_centre_crop(height: int, width: int, side: int, top: int, left: int) -> None:
    """The square is a view of the centre; what cannot be even is cut at the bottom and right."""
    image = noise(height, width)
    cropped = centre_crop(image, side)
    np.testing.assert_array_equal(cropped, image[top : top + side, left : left + side])
    assert np.shares_memory(cropped, image)


@pytest.mark.parametrize(("height", "width"), [(10, 30), (30, 10), (5, 5)])
def test_centre_crop_enlarges_what_is_too_small(height: int, width: int) -> None:
    """An image smaller than the square is enlarged until it covers it."""
    image = noise(height, width)
    cropped = centre_crop(image, 20)
    size = scaled_size(height, width, 20)
    top, left = (size[0] - 20) // 2, (size[1] - 20) // 2
    expected = linear(image, *size)[top : top + 20, left : left + 20]
    assert cropped.shape == (20, 20, 3)
    assert np.abs(cropped - expected).max() <= 1.5


def normalized(image: np.ndarray, mean: Any = IMAGENET_MEAN, std: Any = IMAGENET_STD) -> np.ndarray:
    """(image / 255 - mean) / std in double precision, channels first."""
    result: np.ndarray = ((image / 255 - np.array(mean)) / np.array(std)).transpose(2, 0, 1)
    return result


@pytest.mark.parametrize(
    ("mean", "std"), [(IMAGENET_MEAN, IMAGENET_STD), ((0.5,) * 3, (0.5,) * 3), ((0,) * 3, (1,) * 3)]
)
def test_normalize(mean: Any, std: Any) -> None:
    """The formula, in single precision, channels first."""
    image = noise(20, 30)
    result = normalize(image, mean, std)
    assert (result.shape, result.dtype) == ((3, 20, 30), np.float32)
    np.testing.assert_allclose(result, normalized(image, mean, std), atol=2e-6)


def test_normalize_by_imagenet_unless_told() -> None:
    """Without mean and deviation those of ImageNet are used."""
    image = noise(4, 5)
    np.testing.assert_array_equal(normalize(image), normalize(image, IMAGENET_MEAN, IMAGENET_STD))


def test_normalize_grey() -> None:
    """One channel takes the first mean and deviation."""
    image = noise(4, 5, 1)
    np.testing.assert_allclose(normalize(image, (0.5,), (0.25,)), normalized(image, (0.5,), (0.25,)), atol=2e-6)


def test_normalize_a_view() -> None:
    """A crop, which is no contiguous memory, is read as it is."""
    view = centre_crop(noise(20, 30), 10)
    np.testing.assert_allclose(normalize(view), normalized(view), atol=2e-6)


def test_normalize_into_out() -> None:
    """The caller's array is filled and returned; the batch's place stays reserved."""
    image, out, place = noise(4, 5), np.empty((3, 4, 5), np.float32), np.empty((3, 4, 5), np.float32)
    slot.array = place
    assert normalize(image, out=out) is out
    assert slot.array is place
    np.testing.assert_allclose(out, normalized(image), atol=2e-6)


def test_normalize_into_the_batch() -> None:
    """Where a place in the batch's buffer is reserved, the result is written there, beside its neighbours."""
    batch = np.full((3, 3, 4, 5), 7, np.float32)
    slot.array = batch[1]
    image = noise(4, 5)
    result = normalize(image)
    assert np.shares_memory(result, batch)
    np.testing.assert_allclose(batch[1], normalized(image), atol=2e-6)
    assert (batch[[0, 2]] == 7).all()


def test_a_place_is_taken_once() -> None:
    """A second result of the same item does not overwrite the first."""
    slot.array = np.empty((3, 4, 5), np.float32)
    first = normalize(noise(4, 5))
    kept = first.copy()
    second = normalize(np.zeros((4, 5, 3), np.uint8))
    assert not np.shares_memory(first, second)
    np.testing.assert_array_equal(first, kept)


@pytest.mark.parametrize("place", [np.empty((3, 5, 4), np.float32), np.empty((3, 4, 5), np.float64)])
def test_a_place_that_does_not_fit_is_left(place: np.ndarray) -> None:
    """Another shape or type gets an array of its own."""
    slot.array = place
    result = normalize(noise(4, 5))
    assert not np.shares_memory(result, place)
    assert (result.shape, result.dtype) == ((3, 4, 5), np.float32)


def test_a_place_belongs_to_one_thread() -> None:
    """What one thread has reserved, another does not find."""
    own = Slot()
    own.array = np.empty(1, np.float32)
    seen: list[object] = []
    thread = threading.Thread(target=lambda: seen.append(own.array))
    thread.start()
    thread.join()
    assert seen == [None]


@pytest.mark.parametrize("wanted", [ImageInput(short_side=256, crop=224), ImageInput(crop=224)])
def test_a_line_is_not_made_a_picture(wanted: ImageInput) -> None:
    """An image of one line is rejected rather than enlarged to gigabytes."""
    with pytest.raises(DecodeRejected, match="too narrow: 30000 x 1 pixels would become"):
        fit(np.zeros((1, 30_000, 3), np.uint8), wanted)


@pytest.mark.parametrize("interpolation", ["linear", "cubic", "area"])
@pytest.mark.parametrize(("height", "width"), [(8, 7200), (7201, 9), (1, 16_000)])
def test_a_narrow_image_is_cut_before_it_is_enlarged(
    height: int, width: int, interpolation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an image that would become too large only what the crop needs is enlarged, and the crop is the same."""
    image = np.repeat(noise(height // 8 + 1, width // 8 + 1), 8, 0).repeat(8, 1)[:height, :width]
    wanted = ImageInput(short_side=64, crop=56, interpolation=interpolation)
    expected = fit(image, wanted)  # small enough to be enlarged whole
    monkeypatch.setattr(images, "MOST_PIXELS", 50_000)
    sizes = []
    resize = images.cv2.resize
    monkeypatch.setattr(images.cv2, "resize", lambda *args, **keys: sizes.append(args[1]) or resize(*args, **keys))
    found = fit(image, wanted)
    assert found.shape == (56, 56, 3)
    assert np.abs(found.astype(int) - expected).mean() < 3  # half a pixel of the result at most
    assert max(sizes[0]) < 64 * 20


def test_a_large_image_may_be_made_smaller_whatever_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is on what is enlarged: an image that has more pixels already is scaled down whole."""
    monkeypatch.setattr(images, "MOST_PIXELS", 1000)
    assert fit(noise(200, 300), ImageInput(short_side=199)).shape == (199, 298, 3)
