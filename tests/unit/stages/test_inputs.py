"""What a module needs."""

from __future__ import annotations

import pytest

from headrace.base.errors import SettingsError
from headrace.stages.inputs import ImageInput


@pytest.mark.parametrize(("short_side", "crop"), [(None, None), (256, 224), (224, 224), (None, 224), (256, None)])
def test_possible_sizes(short_side: int | None, crop: int | None) -> None:
    """Either size may be left out, and the crop be as large as the resized image."""
    wanted = ImageInput(short_side=short_side, crop=crop)
    assert (wanted.short_side, wanted.crop) == (short_side, crop)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"short_side": 0}, "short_side = 0 is not possible; allowed: a whole number >= 1"),
        ({"crop": -1}, "crop = -1 is not possible; allowed: a whole number >= 1"),
        ({"short_side": 224, "crop": 256}, "crop = 256 is not possible; allowed: at most short_side = 224"),
    ],
)
def test_impossible_sizes(sizes: dict[str, int], message: str) -> None:
    """A size that cannot be is refused with what could."""
    with pytest.raises(SettingsError) as caught:
        ImageInput(**sizes)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("wanted", "scaled"),
    [
        (ImageInput(short_side=256, crop=224), ImageInput(short_side=183, crop=160)),
        (ImageInput(short_side=640), ImageInput(short_side=160)),
        (
            ImageInput(short_side=224, crop=224, interpolation="area"),
            ImageInput(short_side=160, crop=160, interpolation="area"),
        ),
    ],
)
def test_the_same_view_on_fewer_pixels(wanted: ImageInput, scaled: ImageInput) -> None:
    """The crop has the size that is asked for, and what it is cut from is scaled with it."""
    assert wanted.scaled_to(160) == scaled
    assert wanted.scaled_to(None) is wanted


def test_images_that_keep_their_size_are_not_scaled() -> None:
    """A crop alone would be another view, not the same one on fewer pixels."""
    with pytest.raises(SettingsError, match="input_side = 160 is not possible"):
        ImageInput(crop=224).scaled_to(160)
