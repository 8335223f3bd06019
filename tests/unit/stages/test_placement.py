"""Letterboxed images: what is found in the model's input is moved back to the image, however it was decoded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import headrace as hr
from headrace.base.errors import SettingsError
from headrace.base.plan import DecodePlan
from headrace.stages.decode import DecodeChain
from headrace.stages.images import fit
from headrace.stages.placement import placement as placement_of

#: The white rectangle in a black image: x1, y1, x2, y2.
WHITE = (320, 160, 640, 480)


class Finder(hr.Module):
    """Finds the white rectangle in what it takes, and says where it is in the image."""

    input = hr.ImageInput(long_side=128, pad="#727272")

    def process(self, batch: Any) -> Sequence[Any]:
        """Return the corners of what is white, in pixels of the input."""
        assert batch.shape[1:] == (128, 128, 3)
        found = [np.argwhere(image[..., 0] > 200) for image in batch]
        return [np.array([*where.min(0)[::-1], *(where.max(0)[::-1] + 1)], float) for where in found]

    def postprocess(self, result: np.ndarray) -> tuple[Any, Any]:
        """Return it in pixels of the image, and the size of that."""
        [placement] = hr.current_placements()
        return placement.to_image(result).tolist(), placement.image


def picture(path: Path, size: tuple[int, int], *, orientation: int = 1) -> Path:
    """Write an image of (width, height) with the rectangle; stored turned where its orientation says so."""
    pixels = np.zeros((size[1], size[0], 3), np.uint8)
    x1, y1, x2, y2 = WHITE
    pixels[y1:y2, x1:x2] = 255
    exif = Image.Exif()
    exif[274] = orientation
    stored = np.rot90(pixels) if orientation == 6 else pixels  # 6: turn it clockwise to see it upright
    Image.fromarray(np.ascontiguousarray(stored)).save(path, exif=exif, quality=95)
    return path


@pytest.mark.parametrize("settings", [
    [], ["decode.scale=full"], ["resize.executor=thread"], ["decode.executor=process"],
    ["decode.executor=process", "resize.executor=thread"],
    ["resize.executor=process"],
])  # fmt: skip
@pytest.mark.parametrize(("size", "orientation"), [((1100, 640), 1), ((640, 1100), 1), ((1100, 640), 6)])
def test_boxes_return_to_the_image(
    settings: list[str], size: tuple[int, int], orientation: int, tmp_path: Path
) -> None:
    """Wide, tall or stored on its side; decoded at scale or not, here or in a process, whole or in two stages."""
    picture(tmp_path / "a.jpg", size, orientation=orientation)
    delivery = hr.collect()
    pipeline = hr.Pipeline(hr.folder(tmp_path), module=Finder(), delivery=delivery)
    hr.run(pipeline, hr.Plan().with_settings(settings))
    [(_, (box, image))] = delivery.results
    assert image == (size[1], size[0])
    pixel = max(size) / 128  # of the model's input, in pixels of the image
    assert box == pytest.approx(WHITE, abs=1.01 * pixel)


def test_a_large_jpeg_is_decoded_at_scale(tmp_path: Path) -> None:
    """No more pixels are decoded than the longer side needs, and the chain knows the size of the file."""
    data = picture(tmp_path / "a.jpg", (1100, 640)).read_bytes()
    chain = DecodeChain(DecodePlan(), None, {}, long_side=128)
    assert chain.decode(data).shape == (80, 138, 3)
    assert chain.file_size == (640, 1100)


def test_the_border_has_its_colour_and_the_image_is_whole() -> None:
    """The image is in the middle of the square; without `pad` there is no border."""
    image = np.full((50, 100, 3), 200, np.uint8)
    square = fit(image, hr.ImageInput(long_side=40, pad="#0a141e"))
    assert square.shape == (40, 40, 3)
    assert (square[10:30] == 200).all()
    assert (square[:10] == [10, 20, 30]).all()
    assert (square[30:] == [10, 20, 30]).all()
    assert fit(image, hr.ImageInput(long_side=40)).shape == (20, 40, 3)
    assert not np.shares_memory(fit(image, hr.ImageInput(long_side=100)), image)


def test_boxes_go_there_and_back() -> None:
    """What `to_input` does, `to_image` undoes, for cut and for padded images."""
    boxes = np.array([[30.0, 20.0, 50.0, 35.0]])
    for wanted in (hr.ImageInput(long_side=64, pad="#000000"), hr.ImageInput(short_side=32, crop=32)):
        placement = placement_of((60, 90), (60, 90), wanted)
        assert placement.to_image(placement.to_input(boxes)) == pytest.approx(boxes)


@pytest.mark.parametrize("wrong", [
    {"long_side": 64, "short_side": 64}, {"long_side": 64, "crop": 64}, {"pad": "#000000"}, {"long_side": 64, "pad": "grey"},
    {"long_side": 0},
])  # fmt: skip
def test_what_does_not_go_together_is_refused(wrong: dict[str, Any]) -> None:
    """The longer side stands in place of shorter side and crop; a border needs it and a colour."""
    with pytest.raises(SettingsError, match=r"long_side|pad"):
        hr.ImageInput(**wrong)


def test_a_smaller_model_takes_a_smaller_square() -> None:
    """`input_side` of a Plan's model scales the longer side."""
    assert hr.ImageInput(long_side=640, pad="#727272").scaled_to(320) == hr.ImageInput(long_side=320, pad="#727272")


def test_there_is_none_outside_of_a_run() -> None:
    """The error says where it can be called."""
    with pytest.raises(SettingsError, match="postprocess"):
        hr.current_placements()
